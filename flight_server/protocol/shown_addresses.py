"""Addresses as they may be shown: in messages, logs and plans.

Guarantee: :func:`shown` leaves no query, fragment or user info of an address in a text: a query may be a signature
(``?X-Amz-Signature=…``), user info a password. The name before the ``@`` of Azure's ``abfs://container@account`` stays,
which is a part of the place.
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


def shown(text: str) -> str:
    """The text with each address in it cut down to its scheme, host and path. Twice is fine."""
    return _ADDRESS.sub(_place, text) if "://" in text else text


def _place(found: re.Match[str]) -> str:
    return f"{found['scheme']}{found['container'] or ''}{found['place']}"
