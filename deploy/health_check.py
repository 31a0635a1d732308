"""Exit with 0 when the server on this host says through gRPC's health protocol that it serves, else with 1.

The container's HEALTHCHECK. It asks the port of ``FLIGHT_SERVER_PORT`` (8815), in plain text: a server with
TLS needs a check of its own, which knows the name in its certificate.
"""

from __future__ import annotations

import os
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEADLINE_SECONDS = 3.0


def main() -> int:
    """Return the exit status; what is wrong goes to standard error, where `docker inspect` shows it."""
    address = f"127.0.0.1:{os.environ.get('FLIGHT_SERVER_PORT', '8815')}"
    # A proxy of the environment is for the outside.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_SECONDS)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        print(f"{address}: not serving", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
