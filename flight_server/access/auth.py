"""Authorization: a server's one token, the same on both lanes.

A call carries it in the header ``authorization``, as ``Bearer <token>`` or the password of ``Basic`` credentials; or,
on the gRPC lane, in ``auth-token-bin``, where clients of Flight's older handshake put its answer. A comparison takes
the same time wherever texts differ, and no error or log repeats a given token.
"""

from __future__ import annotations

import base64
import hmac

from flight_server.protocol import Unauthenticated


def authorize(token: str | None, header: str | None, legacy: bytes | None = None) -> None:
    """Raise Unauthenticated unless the header, or without one the legacy one, has the token, or there is none."""
    if token is None:
        return
    if header:
        # aiohttp keeps bytes that are not UTF-8 as surrogates.
        check(token, [_token_in(header).encode("utf-8", "surrogateescape")], "in the header 'authorization'")
    elif legacy:
        check(token, [legacy], "in the header 'auth-token-bin'")
    else:
        raise Unauthenticated("this server wants a token: send the header 'authorization: Bearer <token>'")


def check(token: str, given: list[bytes], where: str) -> None:
    """Raise Unauthenticated unless one of ``given`` is the token."""
    if True not in [hmac.compare_digest(each, token.encode()) for each in given]:
        raise Unauthenticated(f"the token {where} is not this server's")


def _token_in(header: str) -> str:
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
