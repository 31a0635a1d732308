"""PEM texts: given to Python's TLS, which takes a certificate with its key from a file only, and their expiry."""

from __future__ import annotations

import binascii
import calendar
import os
import re
import ssl
import time


def load_pair(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Present this certificate chain. No disk gets the key. Raises ssl.SSLError, ValueError: they are no chain with its
    unencrypted key.
    """
    with os.fdopen(os.memfd_create("pem"), "wb") as file:
        file.write(cert + b"\n" + key)
        file.flush()
        # With no password given, OpenSSL would ask the terminal for one.
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")


def expiry_seconds(chain: bytes) -> float | None:
    """When the first certificate of a PEM chain expires, since the epoch; None if none says it.

    Python's TLS shows the fields of a certificate only after it has verified a peer by it. The end of its validity has
    a fixed place (RFC 5280, 4.1): the fields of TBSCertificate before it are skipped.
    """
    ends = []
    for match in _CERTIFICATE.finditer(chain):
        try:
            ends.append(_not_after_seconds(binascii.a2b_base64(match[1])))
        except (ValueError, IndexError):
            continue
    return min(ends, default=None)


_CERTIFICATE = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END ", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17


def _not_after_seconds(certificate: bytes) -> float:
    fields = _parts(_parts(_parts(certificate)[0][1])[0][1])
    validity = fields[4 if fields[0][0] == _VERSION else 3][1]
    tag, text = _parts(validity)[1]
    if tag == _UTC_TIME:
        text = (b"19" if text >= b"5" else b"20") + text
    return calendar.timegm(time.strptime(text.decode("ascii"), "%Y%m%d%H%M%SZ"))


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of each value in ``der``."""
    parts, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size >= 0x80:  # the size of the size
            at, size = at + size - 0x80, int.from_bytes(der[at : at + size - 0x80])
        parts.append((tag, der[at : at + size]))
        at += size
    return parts
