"""Browsers: keeps other sites' pages from reading this server, or using up its resources, through a browser.

Guarantee: a request that a browser sends for another site's page is refused before it is handled, health checks
excepted, and no answer carries a CORS header.

Host
    A page whose name its author points at this server (DNS rebinding) has the server's origin for the browser, but the
    request carries that name. So ``Host`` must be an IP address or a name of this server: ``localhost``, the names that
    it listens on and advertises, the machine's host name with and without its domain, and ``allowed_hosts``. With a
    token, which the author does not have, any name is accepted.

Origin
    ``Origin``, if present, must name the host that ``Host`` names. Images, scripts, frames and links send none: there
    ``Sec-Fetch-Site`` decides, and without it (plain HTTP beyond this machine) ``Referer``; without all three a browser
    gets nothing below ``/v1/``. Links to the page ``/`` are followed; it has no data, and cannot be framed.

Programs that are no browsers pass if they ask for the server by its name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from aiohttp import web

from flight_server.concurrency import Background
from flight_server.protocol import Forbidden, InvalidRequest

_HOST = re.compile(r"(\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s\[\]/@:]+))(:[0-9]{0,5})?", re.ASCII)
ASK_AGAIN_SECONDS = 30.0
"""A host that has no domain, or whose name server does not answer, is asked for it at most once in this time."""
_ELSEWHERE = frozenset({"cross-site", "same-site"})


class Doorkeeper:
    """Refuses requests that another site's page may have sent.

    Args:
        names: of this server, beside ``localhost`` and the machine's; ``.domain`` stands for ``domain`` and all names
            that end in ``.domain``.
        any_name: whether the server wants a token.
    """

    def __init__(self, names: Iterable[str], background: Background, *, any_name: bool) -> None:
        self._names = {"localhost", socket.gethostname().lower(), *(_plain(name) for name in names)}
        self._domains = tuple(name for name in self._names if name.startswith("."))
        self._background = background
        self._any_name = any_name
        self._asks_domain_at = 0.0  # by the event loop's clock

    async def check(self, request: web.Request) -> None:
        """Raise Forbidden if another site's page may have sent the request, InvalidRequest if it has no ``Host``
        (HTTP/1.1), several, or a malformed one.
        """
        hosts = request.headers.getall("Host", [])
        if not hosts and request.version < (1, 1):
            return  # no browser speaks HTTP/1.0
        matched = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if matched is None:
            raise InvalidRequest("a request has one header 'Host': the name or address of this server")
        name = matched["name"]
        if not self._any_name and name is not None and not await self._is_ours(name):
            raise Forbidden(
                f"{name[:200]!r} is no name of this server: ask it by its address, or start it with "
                f"--allowed-hosts {name[:200]}, or with a token"
            )
        if self._from_elsewhere(request, hosts[0]):
            raise Forbidden("this server does not answer requests that a page of another site has made")

    async def _is_ours(self, name: str) -> bool:
        if _is_address(name) or self._is_known(name):
            return True
        loop = asyncio.get_running_loop()
        if loop.time() >= self._asks_domain_at:
            # Not at the start: it may ask a name server, which may not answer. Then this is the name without a domain.
            full_name = await self._background.in_thread(socket.getfqdn)
            self._names.add(_plain(full_name))
            self._asks_domain_at = math.inf if "." in full_name else loop.time() + ASK_AGAIN_SECONDS
        return self._is_known(name)

    def _is_known(self, name: str) -> bool:
        plain = _plain(name)
        return plain in self._names or f".{plain}".endswith(self._domains)

    @staticmethod
    def _from_elsewhere(request: web.Request, host: str) -> bool:
        origin = request.headers.get("Origin")
        if origin is not None:
            return not _names(origin, host)
        if request.path == "/" and request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate":
            return False
        site = request.headers.get("Sec-Fetch-Site")
        if site is not None:
            return site in _ELSEWHERE
        referer = request.headers.get("Referer")
        if referer is not None:
            return not _names(referer, host)
        return request.path.startswith("/v1/") and request.headers.get("User-Agent", "").startswith(
            "Mozilla/"
        )


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.IPv4Address(name))
    return False


def _names(url: str, host: str) -> bool:
    with suppress(ValueError):
        parts = urlsplit(url)
        ours = urlsplit(f"{parts.scheme}://{host}")
        default = 443 if parts.scheme == "https" else 80
        mine = ours.hostname, ours.port or default
        return parts.scheme in ("http", "https") and (parts.hostname, parts.port or default) == mine
    return False
