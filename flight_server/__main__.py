"""The command ``flight-server``: runs the server on uvloop. It has an option for each setting."""

from __future__ import annotations

import gc
import inspect
import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

try:
    from flight_server.host import machine, unused_libraries  # noqa: F401  # before Arrow's
except ModuleNotFoundError as error:
    sys.exit(f"flight-server: there is no package {error.name}: install the wheel with its extra server")

# isort: split
import structlog
import typer
import uvloop
from pydantic import ByteSize, ValidationError
from pydantic.fields import FieldInfo
from structlog.stdlib import ProcessorFormatter

from flight_server import config
from flight_server.access import Authenticator, TokenFileRefused
from flight_server.certificates import Certificates
from flight_server.memory import allocator
from flight_server.server import Server
from flight_server.storage import DataDirUnusable

SWITCH_SECONDS = 0.0005
_EXIT_USAGE = 2
_METAVARS = (
    ("FlightLocation", "LOCATION"),
    ("Path", "PATH"),
    ("ByteSize", "SIZE"),
    ("float", "SECONDS"),
    ("_host_name", "NAME"),
    ("_prefix", "PREFIX"),
)
_PARSED = (bool, int, float)  # by typer; the model parses all other types from text

_log = structlog.get_logger("flight_server")


def _configure_logs(settings: config.Settings) -> None:
    """Send logs to standard error, also those of libraries, such as asyncio's; only the ready line goes to standard
    output.
    """
    renderer: Any = structlog.processors.JSONRenderer()
    if settings.log_format == "text":
        # Plain tracebacks: structlog's default prints local variables, and with them users' data.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    level = getattr(logging, settings.log_level.upper())
    added: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso")]
    rendered = [structlog.processors.format_exc_info, renderer]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *added, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    of_libraries = logging.StreamHandler()
    of_libraries.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *added],
            processors=[ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(handlers=[of_libraries], level=max(logging.WARNING, level))


def _announce(ready: list[dict[str, Any]], log_format: str) -> None:
    """Print the ready line: of one server, or of all workers."""
    first = ready[0]
    if log_format == "json":
        facts = {name: first[name] for name in ("location", "http", "memory_limit_bytes", "data_dir")}
        line = json.dumps({"event": "ready", **facts, "locations": [each["location"] for each in ready]})
    else:
        every = " and ".join(each[name] for each in ready for name in ("location", "http") if each[name])
        line = f"flight-server is ready at {every}"
    print(line, flush=True)  # noqa: T201  # the one line on standard output that a parent waits for


async def _serve(settings: config.Settings, announce: Callable[[Server], None]) -> None:
    server = Server(settings)
    server.drain_on_signals()  # before the start: a signal ends the server cleanly before the ready line, too
    try:
        await server.start()
    except BaseException:
        await server.stop()
        raise
    announce(server)
    await server.run()


def _serve_one(settings: config.Settings, announce: Callable[[Server], None]) -> int:
    """Serve in this process until the server has drained; the exit code."""
    allocator.tune(int(settings.memory_limit))
    try:
        _shorten_pauses()
        uvloop.run(_serve(settings, announce))
    except DataDirUnusable as error:
        return _say(_EXIT_USAGE, f"--data-dir: {error}")
    except OSError as error:
        return _say(1, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return 0


def _shorten_pauses() -> None:
    """Keep threads and garbage collection from stopping the event loop for long: once, after the imports.

    A thread that compacts or reads versions gives the interpreter's lock back after ``SWITCH_SECONDS``. The objects of
    all modules are left out of collections: one of them all takes some 50 ms, in which no thread runs.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


def _options_of_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Give typer a signature with an option for each setting, and ``--config`` for ``config_file``."""
    options = [_parameter(name, field) for name, field in config.Settings.model_fields.items()]
    config_file = Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings", metavar="PATH")
    ]
    version = Annotated[
        bool | None,
        typer.Option("--version", help="Print the version", callback=_print_version, is_eager=True),
    ]
    options += [_keyword("config_file", config_file), _keyword("version", version)]
    function.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined] # what inspect reads first
    function.__annotations__ = {option.name: option.annotation for option in options}
    return function


def _print_version(is_asked: bool | None) -> None:  # noqa: FBT001 - typer's signature
    if is_asked:
        # Imported here: a server without metrics needs no library for them.
        from flight_server.reporting.metrics import versions  # noqa: PLC0415  # as said above

        typer.echo(f"flight-server {versions()['version']}")
        raise typer.Exit


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """None unless the option was given, so that environment and file count."""
    metavars = (word for kind, word in _METAVARS if kind in str(field.annotation))
    option = typer.Option(help=_help(field), metavar=next(metavars, None))
    return _keyword(name, Annotated[_type(field) | None, option])


def _type(field: FieldInfo) -> Any:
    is_union = get_origin(field.annotation) in (Union, types.UnionType)
    kinds = get_args(field.annotation) if is_union else (field.annotation,)
    if get_origin(kinds[0]) is list:
        return list[str]
    return kinds[0] if kinds[0] in _PARSED else str


def _help(field: FieldInfo) -> str:
    text, default = field.description or "", field.default
    if isinstance(default, bool):
        text += f"; default: {'on' if default else 'off'}"
    elif isinstance(default, ByteSize):
        text += f"; default: {default.human_readable()}"
    elif isinstance(default, int | float | str):
        text += f"; default: {default:g}" if isinstance(default, float) else f"; default: {default}"
    return text


@_options_of_settings
def serve(config_file: Path | None, **flags: Any) -> None:
    """Serve Arrow Flight until SIGTERM. Flags go over FLIGHT_SERVER_* over --config over defaults."""
    flags = {name: value for name, value in flags.items() if value not in (None, [])}
    try:
        settings = config.load(flags, config_file)
        if settings.tls_cert is not None:
            Certificates(settings)  # wrong ones end the start here, of all workers
        _check_token_file(settings)
        _configure_logs(settings)
        _compare_memory(settings)
        if settings.worker_count > 1:
            # Imported here: with one worker nothing else needs multiprocessing.
            from flight_server.supervisor import Supervisor  # noqa: PLC0415  # as said above

            supervisor = Supervisor(settings, _serve_one, lambda ready: _announce(ready, settings.log_format))
    except ValidationError as error:
        raise typer.Exit(_say(_EXIT_USAGE, *config.explained(error))) from None
    except (OSError, ValueError) as error:
        raise typer.Exit(_say(_EXIT_USAGE, str(error))) from None
    if settings.worker_count > 1:
        raise typer.Exit(supervisor.run())
    raise typer.Exit(_serve_one(settings, lambda server: _announce([server.facts()], settings.log_format)))


def _check_token_file(settings: config.Settings) -> None:
    """Raise ValueError for a token file that would end the start."""
    try:
        Authenticator(settings.token, settings.token_file)
    except TokenFileRefused as refused:
        raise ValueError(f"--token-file: {refused}") from None


def _compare_memory(settings: config.Settings) -> None:
    """Warn of a memory limit that this process cannot reach."""
    memory_bytes = machine.memory_bytes()
    if settings.memory_limit > memory_bytes:
        _log.warning(
            "memory_limit_too_high",
            memory_limit_bytes=int(settings.memory_limit),
            memory_bytes=memory_bytes,
            reason="the container or machine has less memory, and the kernel ends the server when that is used up",
        )


def _say(code: int, *sentences: str) -> int:
    """Print why the process ends; its exit code."""
    for sentence in sentences:
        typer.echo(f"flight-server: {' '.join(sentence.split())}", err=True)
    return code


def main() -> None:
    """The command ``flight-server``."""
    typer.run(serve)


if __name__ == "__main__":
    main()
