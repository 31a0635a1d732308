"""What these tests share: the engine, both images, and one project of Compose. Each says how long it took."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import container_engine
from tests.support.container_engine import BUILD_SECONDS, DIRECTORY, ROOT, Engine
from tests.support.server_containers import (
    BASE_IMAGE,
    SERVER_IMAGE,
    SERVICES,
    SPARK_IMAGE,
    TOKEN,
    Project,
    ServerContainer,
    project,
    running_server,
)

BUILDS: dict[str, list[str]] = {SERVER_IMAGE: [], SPARK_IMAGE: ["--target", "spark"]}
"""As on the page."""


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"\n{what}: {time.monotonic() - begun:.0f} s")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with container_engine.engine() as engine:
        yield engine
    if engine.is_own:
        used = subprocess.run(
            ["du", "--summarize", "--human-readable", DIRECTORY], capture_output=True, text=True, check=True
        )
        print(f"\nlayers for the next run: {used.stdout.strip()}")


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    with timed(BASE_IMAGE):
        engine.base_image(BASE_IMAGE)
    return BASE_IMAGE


@pytest.fixture(scope="session")
def build_logs(engine: Engine, base_image: str) -> list[str]:
    """What the builds of both images have written."""
    logs = []
    for name, options in BUILDS.items():
        with timed(f"the image {name}"):
            done = engine.run(
                "build", "--progress=plain", "--tag", name, *options, ROOT, seconds=BUILD_SECONDS
            )
        logs.append(done.stdout + done.stderr)
    return logs


@pytest.fixture(scope="session")
def images(engine: Engine, build_logs: list[str]) -> Engine:
    """The engine, which has both images."""
    return engine


@pytest.fixture(scope="module")
def server(images: Engine) -> Iterator[ServerContainer]:
    with running_server(images) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(images: Engine, base_image: str) -> Iterator[Project]:
    """All services of Compose whose images can be had, healthy."""
    images.prometheus_image(SERVICES["prometheus"]["image"], base_image)
    token_file = DIRECTORY / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o644)
    with project(images, "flight-shuffle-tests", token_file) as cluster:
        services = cluster.available_services()
        with timed(f"compose up --wait {' '.join(services)}"):
            cluster.compose("up", "--wait", "--wait-timeout=900", *services)
        yield cluster
