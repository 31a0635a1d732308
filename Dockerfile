# Two images. The server's: docker build --tag flight-server .
# Spark's, with this client:  docker build --tag flight-spark --target spark .
# The tag is not pinned to a digest on purpose: a rebuild takes the base image's security fixes, while every
# Python package is the version of requirements-dev.lock.

# Debian 12, whose Java is 17, with which the tests run. A tag without the release moves on to the next Debian.
FROM python:3.11-slim-bookworm AS base

FROM base AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    UV_COMPILE_BYTECODE=1 \
    UV_NO_CACHE=1
WORKDIR /src
COPY requirements-dev.lock ./
# By pip only uv, of the lock's version. For uv the lock is a constraint: of what it names an image gets what it needs.
RUN awk '/^[^ #]/ { of_uv = /^uv==/ } of_uv' requirements-dev.lock > uv.lock \
    && pip install --require-hashes --requirement uv.lock
COPY pyproject.toml ./

FROM build AS wheel
RUN uv pip install --python /usr/local/bin/python --constraint requirements-dev.lock hatchling
COPY LICENSE README.md ./
COPY flight_server flight_server
COPY spark_client spark_client
# With uv beside it, which the images do not have.
RUN pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && cp "$(command -v uv)" wheels

# These two know no source, so that their layers stay until a dependency changes.
FROM build AS spark-packages
RUN uv venv /opt/flight-spark \
    && uv pip install --python /opt/flight-spark --require-hashes --constraint requirements-dev.lock \
        --requirement pyproject.toml --extra server --extra spark

FROM build AS server-packages
RUN uv venv /opt/flight-server \
    && uv pip install --python /opt/flight-server --require-hashes --constraint requirements-dev.lock \
        --requirement pyproject.toml --extra server

FROM base AS spark
# tini ends with Java, and takes the exit of what executors started. Versions are those of Debian's release: a rebuild
# takes its security fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*
# Spark on Kubernetes mounts /opt/spark/conf, and expects the user's files in the working directory.
RUN groupadd --system --gid 185 spark \
    && useradd --system --uid 185 --gid spark --no-create-home --home-dir /opt/spark/work-dir spark \
    && install --directory --owner=spark --group=spark --mode=0770 /opt/spark/work-dir /var/lib/spark
COPY --from=spark-packages /opt/flight-spark /opt/flight-spark
# PySpark's package has what a distribution of Spark has, in a folder whose name has Python's version.
RUN ln -s /opt/flight-spark/lib/python3*/site-packages/pyspark/* /opt/spark/ \
    && mkdir /opt/spark/conf
RUN --mount=from=wheel,source=/src/wheels,target=/mnt \
    /mnt/uv pip install --python /opt/flight-spark --no-deps --no-cache --compile-bytecode /mnt/*.whl
COPY deploy/spark_entry.py /opt/spark_entry.py
ENV PATH=/opt/flight-spark/bin:$PATH \
    JAVA_HOME=/usr/lib/jvm/default-java \
    PYSPARK_PYTHON=/opt/flight-spark/bin/python \
    PYTHONUNBUFFERED=1 \
    SPARK_HOME=/opt/spark \
    SPARK_LOCAL_DIRS=/var/lib/spark/local \
    SPARK_WORKER_DIR=/var/lib/spark/work
WORKDIR /opt/spark/work-dir
USER 185:185
VOLUME /var/lib/spark
ENTRYPOINT ["tini", "-s", "--", "python", "/opt/spark_entry.py"]

# The last one is what is built without a --target.
FROM base AS server
# Numeric ids: Kubernetes checks runAsNonRoot by number. Not --system, whose numbers end at 999.
RUN groupadd --gid 10001 flight \
    && useradd --uid 10001 --gid flight --no-create-home --shell /usr/sbin/nologin flight \
    && install --directory --owner=flight --group=flight --mode=0750 /var/lib/flight-server
COPY --from=server-packages /opt/flight-server /opt/flight-server
RUN --mount=from=wheel,source=/src/wheels,target=/mnt \
    /mnt/uv pip install --python /opt/flight-server --no-deps --no-cache --compile-bytecode /mnt/*.whl
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
# A Python starts for each: on a busy host that alone takes longer than the server's answer.
HEALTHCHECK --interval=10s --timeout=30s --start-period=60s --retries=3 \
    CMD ["python", "/opt/flight-server/health_check.py"]
ENTRYPOINT ["flight-server"]
