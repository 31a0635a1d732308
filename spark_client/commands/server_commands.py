"""``servers``, ``holds``, ``release``, ``zip``, ``token``: what an operator does beside the data."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flight_server.protocol import Forbidden, InvalidRequest
from spark_client.executors import write_zip

from .connected import AsJson, Link, connected
from .printing import duration, print_json, print_line, used

Changelog = Annotated[str, typer.Argument(help="the changelog")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("servers")(connected(_servers))
    app.command("holds")(connected(_holds))
    app.command("release")(connected(_release))
    app.command("zip")(_zip)
    app.command("token")(_token)


def _servers(link: Link) -> None:
    """List servers and what they hold; exit status 1 if one is gone."""
    with link.client() as client:
        servers = client.statistics().get("servers")
    if servers is None:
        raise Forbidden('the server shows numbers of its own only to principals with read or admin on ""')
    for each in servers:
        if link.as_json:
            print_json(each)
        else:
            print_line(_server_line(each))
    if any(each["gone"] is not None for each in servers):
        raise typer.Exit(1)


def _server_line(server: dict[str, Any]) -> str:
    name = f"{server['location']}  start {server['start'] or 'unknown'}"
    if server["gone"] is not None:
        return f"{name}  gone: {server['gone']}"
    memory, disk = (
        used(server[f"{part}_used_bytes"], server[f"{part}_limit_bytes"]) for part in ("memory", "disk")
    )
    draining = ", draining" if server["draining"] else ""
    return f"{name}  memory {memory}, disk {disk}, {server['datasets']:,} datasets{draining}"


def _holds(link: Link, changelog: Changelog) -> None:
    """List the holds that keep versions of a changelog readable."""
    with link.client() as client:
        listed = client.changelog(changelog).holds()
    for hold in listed:
        if link.as_json:
            print_json(asdict(hold))
        else:
            print_line(
                f"{hold.name}  version {hold.version}, for {duration(hold.held_seconds)}, "
                f"lease {duration(hold.lease_left_seconds)}, {hold.owner or 'owner unknown'}"
            )


def _release(
    link: Link,
    changelog: Changelog,
    holds: Annotated[list[str], typer.Argument(metavar="HOLD...", help="its name, as 'holds' lists it")],
) -> None:
    """End holds of a changelog, of any client."""
    with link.client() as client:
        handle = client.changelog(changelog)
        for hold in holds:
            handle.release(hold)
            if link.as_json:
                print_json({"name": hold, "released": True})


def _zip(
    path: Annotated[Path, typer.Argument(help="the file, for example flight-shuffle.zip")],
    *,
    as_json: AsJson = False,
) -> None:
    """Write the package as a zip for --py-files and addArtifact."""
    try:
        write_zip(path)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message) from None
    if as_json:
        print_json({"file": str(path), "bytes": path.stat().st_size})


def _token(*, as_json: AsJson = False) -> None:
    """Print a new random token, and its SHA-256 as a line for a server's token file."""
    token = secrets.token_urlsafe(32)
    digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    if as_json:
        print_json({"token": token, "sha256": digest})
        return
    print_line(token)
    print_line(f'tokens = ["{digest}"]')
