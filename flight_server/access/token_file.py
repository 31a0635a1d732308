"""The token file (``--token-file``): principals in TOML, with the SHA-256 of their tokens, never the tokens.

    [principals.etl]
    tokens = ["sha256:<64 hexadecimal digits>"]     # several, so that one can be replaced without a pause
    read = ["sales/", "exchange/"]                  # prefixes of datasets' names; "" is all
    write = ["exchange/etl/"]
    admin = []
    quotas = { bytes = "20GiB", datasets = 1000, streams = 200 }    # each may be left out

Tokens are random, so their hashes cannot be guessed back, and need no salt.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from flight_server.protocol import parse_size

from .principals import ANYONE, OWN, Permission, Principal, Quotas

MAX_TEXT = 500  # of what a refusal quotes
MAX_BYTES = 4 << 20
HASH = "sha256:"
_HASHED = re.compile(f"{HASH}[0-9a-f]{{64}}")
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_PREFIX = re.compile(r"([A-Za-z0-9._:=-][A-Za-z0-9._/:=-]{0,199})?")
_KEYS = frozenset({"tokens", "quotas", *Permission})

Tokens = dict[bytes, Principal]
"""The principals by the SHA-256 of their tokens."""


class TokenFileRefused(ValueError):
    """The token file cannot be read, or does not say who may do what."""


def digest_of(token: bytes) -> bytes:
    """The key of a token in :data:`Tokens`."""
    return hashlib.sha256(token).digest()


def read_token_file(path: Path) -> bytes:
    """The file's bytes. Blocks. Raises TokenFileRefused: it cannot be read, or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TokenFileRefused(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise TokenFileRefused(f"{path} is larger than {MAX_BYTES} bytes")
    return content


def parse_token_file(path: Path, content: bytes) -> Tokens:
    """The principals in the bytes of the file.

    Raises:
        TokenFileRefused: it is empty or malformed, has no principal, or two of them have one token. The message repeats
            no token.
    """
    try:
        return parse_tokens(content.decode())
    except TokenFileRefused as error:
        raise TokenFileRefused(f"{path}: {str(error)[:MAX_TEXT]}") from None
    except (ValueError, RecursionError) as error:
        # Their texts quote at most one character of the file. tomllib has no limit of its own on brackets, and takes
        # int's on digits.
        raise TokenFileRefused(f"{path} is not TOML: {error}") from None


def parse_tokens(text: str) -> Tokens:
    """As :func:`parse_token_file`, of the text. Raises ValueError, RecursionError, too: it is not TOML."""
    content = tomllib.loads(text)
    named = content.pop("principals", None)
    if content:
        # Not which ones: a key may be a token that was pasted there.
        raise TokenFileRefused(
            "it has keys outside of its principals; every principal is a table [principals.NAME]"
        )
    if not isinstance(named, dict) or not named:
        raise TokenFileRefused("it has no principal: write a table [principals.NAME] for each")
    tokens: Tokens = {}
    for name, entry in named.items():
        principal, digests = _principal(name, entry)
        for digest in digests:
            if digest in tokens:
                raise TokenFileRefused(
                    f"a token of principal {name!r} is also one of {tokens[digest].name!r}"
                )
            tokens[digest] = principal
    return tokens


def _principal(name: str, entry: Any) -> tuple[Principal, list[bytes]]:
    if not _NAME.fullmatch(name):
        raise TokenFileRefused(f"{name[:80]!r} is no principal's name: use 1 to 64 of A-Z a-z 0-9 . _ @ -")
    if name in (ANYONE, OWN):
        raise TokenFileRefused(f"the name {name!r} is the server's own: give the principal another one")
    if not isinstance(entry, dict):
        raise TokenFileRefused(f"principal {name!r} is no table")
    if unknown := entry.keys() - _KEYS:
        raise TokenFileRefused(
            f"principal {name!r} has an unknown key {min(unknown)!r}; known are {', '.join(sorted(_KEYS))}"
        )
    prefixes = {each.value: _prefixes(name, each.value, entry.get(each, [])) for each in Permission}
    if not any(prefixes.values()):
        raise TokenFileRefused(f"principal {name!r} may do nothing: give it prefixes to 'read' or 'write'")
    return Principal(name, **prefixes, quotas=_quotas(name, entry.get("quotas", {}))), _digests(name, entry)


def _digests(name: str, entry: dict[str, Any]) -> list[bytes]:
    hashes = entry.get("tokens")
    if not isinstance(hashes, list) or not hashes:
        raise TokenFileRefused(f"principal {name!r} has no 'tokens': a list of \"{HASH}…\"")
    if not all(isinstance(each, str) and _HASHED.fullmatch(each) for each in hashes):
        raise TokenFileRefused(
            f'principal {name!r}: a token stands here as "{HASH}" and the 64 hexadecimal digits, in lower case, of '
            "its SHA-256, never as it is; 'flight-shuffle token' makes a new one and its hash, and so does "
            "'printf %s TOKEN | sha256sum' of one that you have"
        )
    return [bytes.fromhex(each.removeprefix(HASH)) for each in hashes]


def _prefixes(name: str, permission: str, prefixes: Any) -> tuple[str, ...]:
    if not isinstance(prefixes, list) or not all(isinstance(each, str) for each in prefixes):
        raise TokenFileRefused(f"principal {name!r}: {permission!r} is a list of prefixes of datasets' names")
    for prefix in prefixes:
        if not _PREFIX.fullmatch(prefix) or ".." in prefix:
            raise TokenFileRefused(
                f'principal {name!r}: {prefix[:80]!r} begins no dataset\'s name; "" is a prefix of all'
            )
    return tuple(prefixes)


def _quotas(name: str, limits: Any) -> Quotas:
    known = [each.name for each in fields(Quotas)]
    if not isinstance(limits, dict) or not limits.keys() <= set(known):
        raise TokenFileRefused(f"principal {name!r}: 'quotas' is a table of {', '.join(known)}")
    numbers = {}
    for key, value in limits.items():
        try:
            number = parse_size(value) if key == "bytes" else value
        except ValueError as error:
            raise TokenFileRefused(f"principal {name!r}: {error}") from None
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise TokenFileRefused(
                f"principal {name!r}: the quota {key!r} is a number above zero, not {number!r}"
            )
        numbers[key] = number
    return Quotas(**numbers)
