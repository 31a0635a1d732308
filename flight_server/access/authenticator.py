"""Authenticator: finds the principal of a call by the token that the call carries.

    authorization                       ``Bearer <token>``, or the password of ``Basic`` credentials
    x-flight-shuffle-authorization      the same, for proxies that take the first one for themselves; it goes over it
    a cookie                            of the dashboard, which stands for a token (``lanes.http.logins``)

Guarantee: the time of a comparison says nothing of a token, because only SHA-256 digests are looked up, in a table
whose order is secret (Python's keyed hashes). No error or log repeats a token. A change of the token file is in force
for the next call after :meth:`Authenticator.reload`.

Reload
    The file is read each time, and parsed if its bytes are not those that were parsed last. A file that is refused
    leaves the last principals in force; it is logged once, and ``trouble`` says it until the file is right. One that
    cannot be read, perhaps because the process has no descriptor left, is parsed as soon as it can be.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import structlog

from flight_server.protocol import Unauthenticated

from .principals import ANONYMOUS, ANYONE, OWN, Principal, unlimited
from .token_file import TokenFileRefused, Tokens, digest_of, parse_token_file, read_token_file

AUTHORIZATION = "authorization"
SECOND_AUTHORIZATION = "x-flight-shuffle-authorization"

_log = structlog.get_logger("flight_server.access.authenticator")


class Authenticator:
    """The tokens of one server. Without any, every call is of one principal that may do everything.

    Args:
        token: of a principal that may do everything.
        file: see ``token_file``.

    Raises:
        TokenFileRefused: see :func:`read_token_file` and :func:`parse_token_file`.
    """

    def __init__(self, token: str | None = None, file: Path | None = None) -> None:
        self.trouble: str | None = None
        self.on_reload: Callable[[Callable[[Principal], bool]], None] | None = None
        """Called after a reload. What it is given says whether a principal, as it was at any time before, is gone or
        has lost a permission.
        """
        self.on_refusal: Callable[[], None] | None = None
        """Called when the file is refused, once for each reason."""
        self._file = file
        self._own: Tokens = {} if token is None else {digest_of(token.encode()): unlimited(OWN)}
        self._tokens = self._own
        # What the file had when it was parsed last; None if it is to be parsed.
        self._parsed: bytes | None = None
        if file is not None:
            self._parsed = read_token_file(file)
            self._tokens = {**parse_token_file(file, self._parsed), **self._own}
        self._anyone = unlimited(ANYONE) if token is None and file is None else None

    @property
    def wants_token(self) -> bool:
        return self._anyone is None

    def principal(self, authorization: str | None, second: str | None = None) -> Principal:
        """That of a call with these headers. Raises Unauthenticated: no token, or a wrong one where it counts."""
        if self._anyone is not None:
            return self._anyone
        header, name = (second, SECOND_AUTHORIZATION) if second else (authorization, AUTHORIZATION)
        if not header:
            raise Unauthenticated(
                "this server wants a token: send the header 'authorization: Bearer <token>'"
            )
        # aiohttp keeps bytes that are not UTF-8 as surrogates.
        principal = self._tokens.get(digest_of(token_in(header).encode("utf-8", "surrogateescape")))
        if principal is None:
            raise Unauthenticated(f"the token in the header {name!r} is not this server's")
        return principal

    async def reload(self) -> None:
        """Read the token file again if it has changed. Never raises; cancelling is safe."""
        if self._file is None:
            return
        try:
            content = await asyncio.to_thread(read_token_file, self._file)
        except TokenFileRefused as refused:
            self._parsed = None
            self._refuse(refused)
            return
        if content == self._parsed:
            return
        try:
            tokens = {**await asyncio.to_thread(parse_token_file, self._file, content), **self._own}
        except TokenFileRefused as refused:
            self._parsed = content
            self._refuse(refused)
            return
        self._parsed = content
        before, self._tokens, self.trouble = self._tokens, tokens, None
        now = {each.name: each for each in tokens.values()}

        def has_lost(each: Principal) -> bool:
            return not now.get(each.name, ANONYMOUS).covers(each)

        lost = {each.name for each in before.values() if has_lost(each)}
        _log.info("token_file_read", principals=len(now), ended=sorted(lost))
        if self.on_reload is not None:
            self.on_reload(has_lost)

    def _refuse(self, refused: TokenFileRefused) -> None:
        before, self.trouble = self.trouble, str(refused)
        if before != self.trouble:
            _log.error("token_file_refused", trouble=self.trouble)
            if self.on_refusal is not None:
                self.on_refusal()


def token_in(header: str) -> str:
    """The token of an ``authorization`` header; empty if it has none."""
    scheme, _, value = header.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() == "basic":
        # pyarrow's authenticate_basic_token sends this.
        try:
            return base64.b64decode(value).decode().partition(":")[2]
        except ValueError:
            return ""
    return ""
