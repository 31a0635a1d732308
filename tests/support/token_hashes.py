"""Tokens as the token file has them."""

from __future__ import annotations

import hashlib


def hash_of_token(token: str) -> str:
    """The text that stands for a token."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
