"""TLS of the client: the certificate that it presents, and the contexts of HTTPS connections."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from flight_server.host import load_pair
from flight_server.protocol import InvalidRequest, Unauthenticated

from .advice import read_credential


@dataclass(frozen=True)
class ClientCertificate:
    """PEM, or files that have it.

    A path is a file on each host where the client, or a task of it, runs; new connections present what it then has.
    """

    cert: bytes | Path
    key: bytes | Path = field(repr=False)

    @classmethod
    def of(cls, cert: bytes | Path | None, key: bytes | Path | None) -> Self | None:
        """None without both. Raises InvalidRequest: one is missing."""
        if cert is None and key is None:
            return None
        if cert is None or key is None:
            raise InvalidRequest("tls_client_cert and tls_client_key go together: a certificate and its key")
        return cls(cert, key)

    def read(self) -> tuple[bytes, bytes]:
        """Certificate and key as they are now. Raises Unauthenticated: a file cannot be read."""
        cert, key = self.cert, self.key
        return (
            read_credential(cert, "the client's certificate") if isinstance(cert, Path) else cert,
            read_credential(key, "the key of the client's certificate") if isinstance(key, Path) else key,
        )


class TlsContexts:
    """The context of new HTTPS connections to one server. Thread-safe.

    Args:
        root_certs: PEM; None for the system's.
    """

    def __init__(self, root_certs: bytes | None, certificate: ClientCertificate | None) -> None:
        self._root_certs = root_certs
        self._certificate = certificate
        self._newest: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None

    def newest(self) -> ssl.SSLContext:
        """Presents the client's certificate as it is now. Raises Unauthenticated: also, it and the key do not fit."""
        pair = None if self._certificate is None else self._certificate.read()
        known = self._newest
        if known is not None and known[0] == pair:
            return known[1]
        # Another one: threads that connect use the last one, and OpenSSL changes certificate and key one by one.
        context = ssl.create_default_context(
            cadata=None if self._root_certs is None else self._root_certs.decode()
        )
        if pair is not None:
            try:
                load_pair(context, *pair)
            except (ssl.SSLError, ValueError) as error:
                raise Unauthenticated(
                    "tls_client_cert and tls_client_key are no PEM certificate chain with its unencrypted key"
                ) from error
        self._newest = pair, context
        return context
