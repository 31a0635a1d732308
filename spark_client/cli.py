"""The command ``flight-shuffle``: writes the package as a zip, lists servers, lists and ends holds of changelogs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flight_server.protocol import FlightShuffleError
from spark_client.arrow import readable_size
from spark_client.client import ShuffleClient
from spark_client.executors import zipped


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; None for the command line's arguments."""
    parser = argparse.ArgumentParser(prog="flight-shuffle", description="Tools of the Spark client.")
    commands = parser.add_subparsers(required=True)
    zip_ = commands.add_parser("zip", help="write the package as a zip for --py-files and addArtifact")
    zip_.add_argument("path", type=Path, help="the file, for example flight-shuffle.zip")
    zip_.set_defaults(run=_zip, parser=zip_)
    holds = commands.add_parser("holds", help="list the holds that keep versions of a changelog readable")
    release = commands.add_parser("release", help="end holds of a changelog, of any client")
    servers = commands.add_parser(
        "servers", help="list servers and what they hold; exit status 1 if one is gone"
    )
    for command, run in ((holds, _holds), (release, _release), (servers, _servers)):
        help_ = "the server, for example grpc://127.0.0.1:8815, or several with commas between"
        command.add_argument("location", help=help_)
        if command is not servers:
            command.add_argument("changelog")
        command.add_argument("--token-file", type=Path, help="a file that has the server's token")
        command.add_argument("--tls-root-certs", type=Path, help="a PEM file of certificates to trust")
        command.set_defaults(run=run, parser=command)
    release.add_argument("hold", nargs="+", help="its name, as 'holds' lists it")
    options = parser.parse_args(arguments)
    options.run(options)


def _zip(options: argparse.Namespace) -> None:
    if options.path.suffix != ".zip":
        # Spark puts files of other names, wheels for example, on no path, and says nothing.
        options.parser.error(f"Spark needs a name that ends with .zip, not {options.path.name!r}")
    try:
        options.path.write_bytes(zipped())
    except OSError as error:
        options.parser.exit(1, f"the zip cannot be written: {error}\n")


def _holds(options: argparse.Namespace) -> None:
    try:
        with _client(options) as client:
            found = client.changelog(options.changelog).holds()
    except (FlightShuffleError, OSError) as error:
        options.parser.exit(1, f"{error}\n")
    for hold in found:
        sys.stdout.write(
            f"{hold.name}  version {hold.version}, for {duration(hold.held_seconds)}, "
            f"lease {duration(hold.lease_left_seconds)}, {hold.owner or 'owner unknown'}\n"
        )


def _release(options: argparse.Namespace) -> None:
    try:
        with _client(options) as client:
            changelog = client.changelog(options.changelog)
            for hold in options.hold:
                changelog.release(hold)
    except (FlightShuffleError, OSError) as error:
        options.parser.exit(1, f"{error}\n")


def _servers(options: argparse.Namespace) -> None:
    try:
        with _client(options) as client:
            found = client.statistics()["servers"]
    except (FlightShuffleError, OSError) as error:
        options.parser.exit(1, f"{error}\n")
    for each in found:
        name = f"{each['location']}  start {each['start'] or 'unknown'}"
        if each["gone"] is not None:
            sys.stdout.write(f"{name}  gone: {each['gone']}\n")
            continue
        memory, disk = (_used(each, part) for part in ("memory", "disk"))
        draining = ", draining" if each["draining"] else ""
        sys.stdout.write(f"{name}  memory {memory}, disk {disk}, {each['datasets']:,} datasets{draining}\n")
    if any(each["gone"] is not None for each in found):
        sys.exit(1)


def _used(server: Mapping[str, Any], part: str) -> str:
    used, limit = server[f"{part}_used_bytes"], server[f"{part}_limit_bytes"]
    return readable_size(used) if limit is None else f"{readable_size(used)} of {readable_size(limit)}"


def _client(options: argparse.Namespace) -> ShuffleClient:
    certificates: Path | None = options.tls_root_certs
    return ShuffleClient(
        options.location,
        token=options.token_file,
        tls_root_certs=None if certificates is None else certificates.read_bytes(),
    )


def duration(seconds: float) -> str:
    """For people: the two greatest units, such as ``6 d 23 h``."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        number, left = divmod(left, size)
        if parts or number or unit == "s":
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


if __name__ == "__main__":
    main()
