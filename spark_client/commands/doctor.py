"""``doctor``: checks servers, the link to them, this machine and its Spark, and says of each finding what to change."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from flight_server.protocol import FlightShuffleError
from spark_client import __version__
from spark_client.arrow import readable_size
from spark_client.connection import check_locations

from .connected import Link, connected
from .findings import Finding, Verdict, ok, print_findings, warn
from .server_checks import ServerChecks
from .spark_checks import java, python_of_tasks

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where hosts keep copies of broadcasts; its size is asked
_SMALL_BYTES = 512 << 20


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(connected(_doctor))


def _doctor(
    link: Link,
    *,
    context: typer.Context,
    prefix: Annotated[
        str, typer.Option(help="of the name of the small dataset that it writes and drops")
    ] = "",
    pyspark_python: Annotated[
        str | None, typer.Option(envvar="PYSPARK_PYTHON", help="the Python of Spark's tasks")
    ] = None,
    java_home: Annotated[str | None, typer.Option(envvar="JAVA_HOME", help="Spark's Java")] = None,
    seconds: Annotated[float, typer.Option(help="how long each wait may last", min=0.1)] = 5.0,
) -> None:
    """Check servers, the link to them, this machine and its Spark. Each finding is ok, warn or bad, with what to
    change; exit code 1 if one is bad.
    """

    def findings() -> Iterator[Finding]:
        for location in _locations(link):
            for each in ServerChecks(link, location, prefix, seconds).findings():
                yield replace(each, server=location)
        yield _versions()
        yield _shared_memory()
        # Servers may be looked at from a host that runs no Spark: only what the command line names is bad.
        for option, found in (
            ("pyspark_python", python_of_tasks(pyspark_python)),
            ("java_home", java(java_home)),
        ):
            source = context.get_parameter_source(option)
            yield from found if source is not None and source.name == "COMMANDLINE" else map(_warning, found)

    if print_findings(findings(), as_json=link.as_json):
        raise typer.Exit(1)


def _locations(link: Link) -> tuple[str, ...]:
    try:
        return check_locations(link.location)
    except FlightShuffleError as error:
        raise typer.BadParameter(error.message) from None


def _warning(finding: Finding) -> Finding:
    return replace(finding, verdict=Verdict.WARN) if finding.verdict is Verdict.BAD else finding


def _versions() -> Finding:
    return ok(
        "versions here",
        f"flight-shuffle {__version__}, pyarrow {version('pyarrow')}, Python {platform.python_version()}",
    )


def _shared_memory() -> Finding:
    check = str(SHARED_MEMORY)
    try:
        size_bytes = shutil.disk_usage(SHARED_MEMORY).total
    except OSError as error:
        return warn(
            check,
            f"cannot be used: {error.strerror}",
            "mount one: without it copies of broadcasts and lookups are files in the temporary directory",
        )
    text = f"has {readable_size(size_bytes)}"
    if size_bytes < _SMALL_BYTES:
        return warn(
            check,
            f"{text}: larger broadcasts and lookups go to files in the temporary directory",
            "give the container more, for example --shm-size=2g, or in Kubernetes an emptyDir of medium Memory",
        )
    return ok(check, text)
