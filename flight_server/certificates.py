"""Certificates: the server's own with its key, and those that have signed the clients', on both ports.

Guarantee: a connection that begins is judged by the files as they last were when :meth:`Certificates.refresh` could use
them; a connection that runs keeps what it began with. Files that do not fit together, or cannot be read, change nothing
and are logged once.

New files make new contexts on both ports: OpenSSL can add a trusted certificate to a context, but take none away, and a
TLS session that began with an old context cannot be resumed with a new one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from flight_server.config import Settings
from flight_server.host import expiry_seconds, load_pair

_log = structlog.get_logger("flight_server.certificates")

Pems = tuple[bytes, bytes, bytes | None]
"""A certificate chain, its key, and the certificates that must have signed the clients'; None for any client."""


class Certificates:
    """The files of the settings ``tls_cert``, ``tls_key`` and ``tls_client_ca``. Raises ValueError: a file cannot be
    read, or they do not fit together; the message names the options.
    """

    def __init__(self, settings: Settings) -> None:
        assert settings.tls_cert is not None
        assert settings.tls_key is not None
        self._cert, self._key, self._client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        self.trouble: str | None = None
        """Why the files as they are now are refused."""
        self.on_refusal: Callable[[], None] | None = None
        """Called when changed files are refused, once for each reason."""
        self._newest = self._fitting(self._read())

    def pems(self) -> Pems:
        """The newest certificate chain, its key, and the certificates that must have signed the clients'."""
        return self._newest[0]

    def expires_seconds(self) -> float | None:
        """When the first certificate of the chain in use expires, since the epoch; None if none says it."""
        return expiry_seconds(self._newest[0][0])

    def context(self) -> ssl.SSLContext:
        """For the HTTP port. With client certificates a client that presents none is connected, because health checks
        have none; the lane refuses its other requests. A client with a wrong certificate is not connected.
        """
        context = _Newest(ssl.PROTOCOL_TLS_SERVER)
        context.newest = lambda: self._newest[1]
        return context

    async def refresh(self) -> None:
        """Read the files, and use them from now on if they have changed and fit."""
        try:
            newest = await asyncio.to_thread(self._changed)
        except ValueError as error:
            before, self.trouble = self.trouble, str(error)
            if before != self.trouble:
                _log.error("certificates_refused", error=self.trouble, kept="the earlier ones")
                if self.on_refusal is not None:
                    self.on_refusal()
            return
        self.trouble = None
        if newest is not None:
            self._newest = newest
            _log.info("certificates_reloaded", tls_cert=str(self._cert))

    def _changed(self) -> tuple[Pems, ssl.SSLContext] | None:
        pems = self._read()
        return None if pems == self._newest[0] else self._fitting(pems)

    def _read(self) -> Pems:
        client_ca = None if self._client_ca is None else _content("--tls-client-ca", self._client_ca)
        return _content("--tls-cert", self._cert), _content("--tls-key", self._key), client_ca

    def _fitting(self, pems: Pems) -> tuple[Pems, ssl.SSLContext]:
        cert, key, client_ca = pems
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            load_pair(context, cert, key)
        except (ssl.SSLError, ValueError):
            # gRPC takes no encrypted key.
            raise ValueError(
                f"--tls-cert and --tls-key: {self._cert} and {self._key} are no PEM certificate "
                "chain with its unencrypted key"
            ) from None
        if client_ca is not None:
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
            except (ssl.SSLError, ValueError):
                raise ValueError(f"--tls-client-ca: {self._client_ca} has no PEM certificates") from None
            context.verify_mode = ssl.CERT_OPTIONAL
        return pems, context


class _Newest(ssl.SSLContext):
    """A context of which each connection gets the newest."""

    newest: Callable[[], ssl.SSLContext]

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.newest().wrap_bio(*args, **kwargs)


def _content(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{option}: {path} cannot be read: {error.strerror}") from None
