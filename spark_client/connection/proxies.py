"""Proxies of the environment, which gRPC takes by itself, also to an address of this host.

Guarantee: no proxy is between a client and a server that it has started, or that is on loopback. To another server gRPC
takes the proxy that the environment names, and :func:`proxy_of` says so; the bulk lane takes none.
"""

from __future__ import annotations

import ipaddress
import os
from functools import partial
from urllib.parse import urlsplit


def is_loopback(host: str | None) -> bool:
    """Whether the host of an address is this one by its loopback."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def is_remote(location: str) -> bool:
    """Whether the address has a host, and that is not this one's loopback."""
    host = urlsplit(location).hostname
    return bool(host) and not is_loopback(host)


def proxy_of(location: str) -> str | None:
    """The variable by which gRPC in this process goes through a proxy to a server that the client did not start; None
    without one. gRPC looks at the variables in this order, in small letters only, and for TLS as for plain TCP.
    """
    host, name = urlsplit(location).hostname or "", _set("grpc_proxy", "https_proxy", "http_proxy")
    if name is None or not is_remote(location):
        return None
    left_out = os.environ.get(_set("no_grpc_proxy", "no_proxy") or "", "")
    entries = filter(None, map(str.strip, left_out.split(",")))
    return None if any(map(partial(_covers, host), entries)) else name


def _set(*variables: str) -> str | None:
    return next((each for each in variables if os.environ.get(each)), None)


def _covers(host: str, entry: str) -> bool:
    """Whether an entry of ``no_proxy``, the end of a name or a network, is for the host."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())
