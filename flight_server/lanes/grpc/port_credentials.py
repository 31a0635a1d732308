"""The credentials of the gRPC port, whose certificates may change while it listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

Pems = tuple[bytes, bytes, bytes | None]
"""A certificate chain, its key, and the certificates that must have signed the clients'; None for any client."""


def credentials(newest: Callable[[], Pems]) -> grpc.ServerCredentials:
    """GRPC's threads ask for the ``newest`` when a connection begins. Whether clients must present a certificate does
    not change.
    """
    used = newest()

    def newer() -> Any:
        nonlocal used  # gRPC asks under a lock of its own
        found = newest()
        if found == used:
            return None
        used = found
        return _configuration(found)

    wants_client = used[2] is not None
    return grpc.dynamic_ssl_server_credentials(
        _configuration(used), newer, require_client_authentication=wants_client
    )


def _configuration(pems: Pems) -> Any:
    cert, key, client_ca = pems
    return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca)
