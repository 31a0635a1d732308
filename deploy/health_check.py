"""Exit with 0 when the server on this host says that it serves, else with 1: the container's HEALTHCHECK.

It asks ``/readyz`` at the port of ``FLIGHT_SERVER_HTTP_PORT`` (8816), in plain text or TLS as the server has it; the
certificate, which names no loopback, is not checked. Where nothing answers there, as with ``--http-port -1``, it asks
gRPC's health protocol at the port of ``FLIGHT_SERVER_PORT`` (8815), in plain text. An address in one of them is
Kubernetes's, which sets it for a service of that name, and does not count, as it does not for the server.

Each of the three answers has ``DEADLINE_SECONDS``. The rest of the Dockerfile's 30 s is for Python's start, and gRPC's.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

DEADLINE_SECONDS = 6.0


def main() -> int:
    """Return the exit status; what is wrong goes to standard error, where `docker inspect` shows it."""
    status = asked_by_http()
    if status is None:
        return asked_by_grpc()
    if status != http.client.OK:
        print(f"/readyz: {status}", file=sys.stderr)
        return 1
    return 0


def port_of(variable: str, default: int) -> int:
    """The server's port by the environment."""
    text = os.environ.get(variable, "")
    return default if not text or "://" in text else int(text)


def asked_by_http() -> int | None:
    """The status of ``/readyz``; None: there is no answer."""
    port = port_of("FLIGHT_SERVER_HTTP_PORT", 8816)
    if port < 0:
        return None
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    for connection in (
        http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS),
        http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS, context=tls),
    ):
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            print(f"127.0.0.1:{port}: {error!r}", file=sys.stderr)
        finally:
            connection.close()
    return None


def asked_by_grpc() -> int:
    """0 if the server serves, else 1."""
    # Not above: it takes longer than all the rest, and is seldom needed.
    import grpc  # noqa: PLC0415 - as said above

    address = f"127.0.0.1:{port_of('FLIGHT_SERVER_PORT', 8815)}"
    # A proxy of the environment is for the outside.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            answer = check(b"", timeout=DEADLINE_SECONDS)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    if answer != b"\x08\x01":  # SERVING
        print(f"{address}: not serving", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
