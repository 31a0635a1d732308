"""The command line of the server; picks uvloop; nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
import uvloop
from pydantic import ValidationError

from . import allocator, config, lean  # noqa: F401  # lean: before the server, which imports pyarrow
from .server import Server

_EXIT_USAGE = 2


def _configure_logs(settings: config.Settings) -> None:
    """Logs go to standard error; standard output has the ready line."""
    renderer: Any = structlog.processors.JSONRenderer()
    if settings.log_format == "text":
        # Plain tracebacks: the other ones print local variables, and with them users' data.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def _announce(server: Server) -> None:
    ready = {
        "event": "ready",
        "location": server.location,
        "http": server.core.http_location,
        "memory_limit_bytes": int(server.settings.memory_limit),
        "data_dir": str(server.store.data_dir),
    }
    if server.settings.log_format == "json":
        line = json.dumps(ready)
    else:
        line = f"flight-server is ready at {server.location}"
        if server.core.http_location:
            line += f" and {server.core.http_location}"
    print(line, flush=True)  # noqa: T201  # the one line on standard output that a parent waits for


async def _serve(settings: config.Settings) -> None:
    server = Server(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Already now: whoever has read the ready line, or does not wait for it, may end the server cleanly.
        asyncio.get_running_loop().add_signal_handler(number, server.core.drain_requested.set)
    try:
        await server.start()
    except BaseException:
        await server.stop()
        raise
    _announce(server)
    await server.run()


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = None,
    port: Annotated[int | None, typer.Option(help="gRPC port; 0 takes any free one.")] = None,
    http_port: Annotated[int | None, typer.Option(help="HTTP port; 0 any free one, -1 none.")] = None,
    advertise_host: Annotated[str | None, typer.Option(help="Host name that clients are told.")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="All bytes held, such as 8GiB.")] = None,
    disk_limit: Annotated[str | None, typer.Option(help="All bytes in segments, such as 100GiB.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Spilled and durable frames.")] = None,
    segment_size: Annotated[str | None, typer.Option(help="Size of a segment file.")] = None,
    max_message: Annotated[str | None, typer.Option(help="Largest Flight message.")] = None,
    full_validation: Annotated[
        bool | None, typer.Option(help="Check every offset and text of a batch.")
    ] = None,
    lease_seconds: Annotated[float | None, typer.Option(help="Lease where a dataset says none.")] = None,
    budget_deadline_seconds: Annotated[
        float | None, typer.Option(help="Patience of a producer held back.")
    ] = None,
    stall_seconds: Annotated[float | None, typer.Option(help="Patience with a stalled reader.")] = None,
    schema_seconds: Annotated[float | None, typer.Option(help="Patience of a reader without schema.")] = None,
    keepalive_seconds: Annotated[float | None, typer.Option(help="Interval of HTTP/2 pings.")] = None,
    drain_grace_seconds: Annotated[float | None, typer.Option(help="Grace for streams at the end.")] = None,
    source_roots: Annotated[list[Path] | None, typer.Option(help="Directory that sources may read.")] = None,
    source_s3: Annotated[bool | None, typer.Option(help="Sources may read s3:// URLs.")] = None,
    source_flight: Annotated[bool | None, typer.Option(help="Sources may pull from Flight servers.")] = None,
    source_failure_seconds: Annotated[float | None, typer.Option(help="Memory for failed pulls.")] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token; better in FLIGHT_SERVER_TOKEN.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM private key.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    exit_with_parent: Annotated[bool | None, typer.Option(help="End when standard input ends.")] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")] = None,
) -> None:
    """Serve Arrow Flight until SIGTERM. Flags go over FLIGHT_SERVER_* over --config over defaults."""
    given = {
        name: value for name, value in locals().items() if name != "config_file" and value not in (None, [])
    }
    try:
        settings = config.load(given, config_file)
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"]) or "settings"
            typer.echo(f"flight-server: {where}: {problem['msg']}", err=True)
        raise typer.Exit(_EXIT_USAGE) from None
    except (FileNotFoundError, ValueError) as error:
        typer.echo(f"flight-server: {error}", err=True)
        raise typer.Exit(_EXIT_USAGE) from None
    _configure_logs(settings)
    allocator.tune(int(settings.memory_limit))
    try:
        uvloop.run(_serve(settings))
    except OSError as error:
        typer.echo(f"flight-server: {error}", err=True)
        raise typer.Exit(1) from None


def main() -> None:
    """Entry point of the command ``flight-server``."""
    typer.run(serve)


if __name__ == "__main__":
    main()
