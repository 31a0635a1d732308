"""What these tests share: the engine, both images, and one project of Compose. Each says how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import container_engine
from tests.support.container_engine import BUILD_SECONDS, DIRECTORY, ROOT, Engine
from tests.support.dockerfile import stages
from tests.support.server_containers import (
    SERVER_IMAGE,
    SPARK_IMAGE,
    TOKEN,
    Project,
    ServerContainer,
    project,
    running_server,
)

BASE_IMAGE = stages(ROOT / "Dockerfile")["base"].base


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"\n{what}: {time.monotonic() - begun:.0f} s")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with container_engine.engine() as engine:
        print(f"\nan engine of {'their own' if engine.is_own else 'this machine'}")
        yield engine


@pytest.fixture(scope="session")
def base_image(engine: Engine) -> str:
    with timed(BASE_IMAGE):
        engine.base_image(BASE_IMAGE)
    return BASE_IMAGE


@pytest.fixture(scope="session")
def build_logs(engine: Engine, base_image: str) -> list[str]:
    """What the builds of both images have said; those of the page."""
    logs = []
    for name, options in ((SERVER_IMAGE, []), (SPARK_IMAGE, ["--target", "spark"])):
        command = ["build", "--progress=plain", "--tag", name, *options, ROOT]
        with timed(f"the image {name}"):
            done = engine.run(*command, seconds=BUILD_SECONDS)
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
    images.prometheus_image("prom/prometheus:v3.5.0", base_image)
    token_file = DIRECTORY / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o644)
    with project(images, "flight-shuffle-tests", token_file) as cluster:
        services = cluster.available_services()
        with timed(f"compose up --wait {' '.join(services)}"):
            cluster.compose("up", "--wait", "--wait-timeout=900", *services)
        yield cluster
