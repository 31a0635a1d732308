"""A server in a container, and Compose's services, as a program outside of them sees them."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from flight_server.protocol import PutCommand
from spark_client import ShuffleClient
from spark_client.connection import RemoteServer
from spark_client.lanes import PutStream

from .container_engine import DIRECTORY, ROOT, Engine
from .dockerfile import stages
from .polling import eventually

BASE_IMAGE = stages(ROOT / "Dockerfile")["base"].base
SERVER_IMAGE, SPARK_IMAGE = "flight-server", "flight-spark"
TOKEN = "let-me-in"
COMPOSE = ROOT / "deploy" / "compose.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
HEALTHY_SECONDS = 600.0
"""On a machine that has much else to do."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that no program listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@dataclass(frozen=True)
class Container:
    """One that runs, or has ended."""

    engine: Engine
    name: str

    def fact(self, template: str) -> str:
        """As ``docker inspect --format`` gives it."""
        return self.engine.output("inspect", "--format", template, self.name)

    @property
    def is_healthy(self) -> bool:
        return self.fact("{{.State.Health.Status}}") == "healthy"

    def wait_until_healthy(self) -> None:
        eventually(lambda: self.is_healthy, expected=True, deadline_seconds=HEALTHY_SECONDS)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The server's lines of the log that have this event."""
        done = self.engine.run("logs", self.name)
        lines = [
            json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")
        ]
        return [line for line in lines if line["event"] == name]

    def inside(self, *command: str, text: str | None = None) -> str | None:
        """What the command writes there, as the container's user; None if it fails."""
        done = self.engine.run("exec", "--interactive", self.name, *command, text=text, check=False)
        return done.stdout if done.returncode == 0 else None

    def kill_process(self) -> None:
        """SIGKILL to its first process, of which the engine knows nothing: it does not start again what it kills."""
        options = ["--rm", "--pid=host", "--user=0", "--entrypoint=python"]
        kill = f"import os; os.kill({self.fact('{{.State.Pid}}')}, 9)"
        self.engine.run("run", *options, SERVER_IMAGE, "-c", kill)


@dataclass(frozen=True)
class ServerContainer(Container):
    """A server, reached at its own ports on loopback."""

    port: int
    token: str = TOKEN

    @property
    def location(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def client(self) -> ShuffleClient:
        return ShuffleClient(self.location, token=self.token)

    def remote(self) -> closing[RemoteServer]:
        return closing(RemoteServer(self.location, token=self.token))

    def put_durable(self, name: str, table: pa.Table) -> None:
        """A dataset that outlives the server."""
        with self.remote() as server:
            server.action("create", {"dataset": name, "durable": True})
            with PutStream(server, PutCommand(name, producer=0, attempt="1"), table.schema) as stream:
                for batch in table.to_batches():
                    stream.write(batch)
                stream.commit()


@contextmanager
def running_server(
    engine: Engine, *options: str, memory: str | None = None, **settings: str
) -> Iterator[ServerContainer]:
    """As the page starts one, with variables for the ``settings``; removed with its volume."""
    port, http_port = free_ports(2)
    variables = {
        "token": TOKEN,
        # The same inside and outside, so that the bulk lane is reached, too.
        "port": str(port),
        "http_port": str(http_port),
        "advertise_host": "127.0.0.1",
        **settings,
    }
    command = ["run", "--detach", "--read-only", "--tmpfs=/tmp", *options]
    command += [f"--env=FLIGHT_SERVER_{name.upper()}={value}" for name, value in variables.items()]
    command += [f"--publish=127.0.0.1:{each}:{each}" for each in (port, http_port)]
    if memory is not None:
        command += [f"--memory={memory}", f"--memory-swap={memory}"]
    container = ServerContainer(engine, engine.output(*command, SERVER_IMAGE), port)
    try:
        container.wait_until_healthy()
        yield container
    finally:
        engine.run("rm", "--force", "--volumes", container.name, check=False)


@dataclass(frozen=True)
class Project:
    """Compose's services, of a project of their own, at free ports of this machine."""

    engine: Engine
    name: str
    override: Path
    ports: dict[str, int]

    def compose(self, *arguments: str, seconds: float = 1200, check: bool = True) -> str:
        """What ``docker compose`` writes, on both outputs. Raises RuntimeError if it fails, and is to ``check``."""
        files = [f"--file={COMPOSE}", f"--file={self.override}"]
        done = self.engine.run(
            "compose", f"--project-name={self.name}", *files, *arguments, seconds=seconds, check=check
        )
        return done.stdout + done.stderr

    def container(self, service: str) -> Container:
        """That of the service, also if it has ended."""
        return Container(self.engine, self.compose("ps", "--all", "--quiet", service).split()[-1])

    def available_services(self) -> list[str]:
        """Those whose images are here, or can be had."""
        started = {name: each for name, each in SERVICES.items() if "profiles" not in each}
        return [
            name for name, each in started.items() if "build" in each or self.engine.has_image(each["image"])
        ]


@contextmanager
def project(engine: Engine, name: str, token_file: Path) -> Iterator[Project]:
    """One that is taken down at the end, with its volumes. An override has what this machine does not allow."""
    names = ["FLIGHT_GRPC_PORT", "FLIGHT_HTTP_PORT", "SPARK_UI_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    override = DIRECTORY / f"{name}.yaml"
    files = min(SERVICES["flight-server"]["ulimits"]["nofile"], resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    override.write_text(yaml.safe_dump({"services": {"flight-server": {"ulimits": {"nofile": files}}}}))
    variables = {"FLIGHT_TOKEN_FILE": str(token_file), **{key: str(port) for key, port in ports.items()}}
    own = Engine(engine.client, engine.environment | variables, engine.is_own)
    made = Project(own, name, override, ports)
    try:
        yield made
    finally:
        made.compose("--profile=job", "down", "--volumes", "--timeout=20", "--remove-orphans", check=False)
        override.unlink()
