"""Authorization: the one token of a server, the same on both lanes.

A call carries it in the header ``authorization``: ``Bearer <token>``, or ``Basic`` credentials whose
password is the token. Comparing takes the same time wherever two texts differ.
"""

from __future__ import annotations

import base64
import hmac

from .errors import Unauthenticated


def authorize(token: str | None, header: str | None) -> None:
    """Return if the header carries the token, or if the server has none.

    Raises:
        Unauthenticated: it does not.
    """
    if token is None:
        return
    if not header:
        raise Unauthenticated("this server wants a token: send the header 'authorization: Bearer <token>'")
    # aiohttp keeps bytes that are not UTF-8 as surrogates.
    if not hmac.compare_digest(_given(header).encode("utf-8", "surrogateescape"), token.encode()):
        raise Unauthenticated("the token in the header 'authorization' is not this server's")


def _given(header: str) -> str:
    scheme, _, value = header.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() == "basic":
        # What pyarrow's authenticate_basic_token sends.
        try:
            return base64.b64decode(value).decode().partition(":")[2]
        except ValueError:
            return ""
    return ""
