"""Addresses as they may be shown: in messages, logs and plans.

Guarantee: :func:`shown` leaves no query, fragment or user info of an address in a text: a query may be a signature
(``?X-Amz-Signature=…``), user info a password. The name before the ``@`` of Azure's ``abfs://container@account`` stays,
which is a part of the place. Of an address without a scheme, as proxies may be written (``user:password@proxy:80``), it
leaves no user info, either.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"""
    (?P<scheme> (?<![A-Za-z0-9+.-]) [A-Za-z][A-Za-z0-9+.-]* :// )
    (?P<container> (?<=abfs://|wasb://) [^\s/:?\#'"@]+@ | (?<=abfss://|wasbs://) [^\s/:?\#'"@]+@ )?
    # A password may have a slash in it, and a port is none.
    (?: [^\s/:?\#'"@]* : (?!\d+/) [^\s?\#'"]* @ | [^\s/?\#'"]* @ )?
    (?P<place> [^\s?\#'"]* )
    (?: [?\#] [^\s'"]* )?
    """,
    re.VERBOSE,
)
# Only before a host with a dot or a port: other texts have a colon and an @, too.
_WITHOUT_SCHEME = re.compile(
    r"""
    (?<! [^\s'"=,;(\[{] )
    [^\s/:?\#'"@=,;(\[{]+ : [^\s/'",;]+ @
    (?= [\w-]+ (?: \.[\w-]+ )* :\d | [\w-]+ (?: \.[\w-]+ )+ | \[[0-9A-Fa-f:.]+\] )
    """,
    re.VERBOSE,
)


def shown(text: str) -> str:
    """The text with each address in it cut down to its scheme, host and path. Twice is fine."""
    if "://" in text:
        text = _ADDRESS.sub(_place, text)
    return _WITHOUT_SCHEME.sub("", text) if "@" in text else text


def _place(match: re.Match[str]) -> str:
    return f"{match['scheme']}{match['container'] or ''}{match['place']}"
