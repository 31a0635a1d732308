# The server's image. Build: docker build -t flight-server .
# The tag is not pinned to a digest on purpose: a rebuild takes the base image's security fixes, while every
# Python package is the version of requirements-dev.lock.

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements-dev.lock ./
# As constraints, so that only what the server needs is installed of all that is locked. Hashes would ask for a
# hash of our own wheel too, which is built here.
RUN sed -n 's/^\([a-zA-Z0-9._-]*==.*[^ ]\) *\\$/\1/p' requirements-dev.lock > constraints.txt \
    && pip install --constraint constraints.txt hatchling \
    && python -m venv /opt/flight-server
COPY pyproject.toml LICENSE README.md ./
COPY flight_server flight_server
COPY spark_client spark_client
RUN pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/flight-server/bin/pip install --constraint constraints.txt "$(echo wheels/*.whl)[server,sql]"

FROM python:3.11-slim
# Numeric ids: Kubernetes checks runAsNonRoot by number.
RUN groupadd --system --gid 10001 flight \
    && useradd --system --uid 10001 --gid flight --no-create-home --shell /usr/sbin/nologin flight \
    && install --directory --owner=flight --group=flight --mode=0750 /var/lib/flight-server
COPY --from=build /opt/flight-server /opt/flight-server
COPY deploy/health_check.py /opt/flight-server/health_check.py
ENV PATH=/opt/flight-server/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FLIGHT_SERVER_HOST=0.0.0.0 \
    FLIGHT_SERVER_DATA_DIR=/var/lib/flight-server \
    FLIGHT_SERVER_LOG_FORMAT=json
USER 10001:10001
VOLUME /var/lib/flight-server
# gRPC lane; bulk lane and metrics
EXPOSE 8815 8816
# Starts a drain; give the container longer to stop than drain_grace_seconds.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "/opt/flight-server/health_check.py"]
ENTRYPOINT ["flight-server"]
