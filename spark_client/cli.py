"""The command ``flight-shuffle``, which writes the package as a zip."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from spark_client.executors import zipped


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; None for the command line's arguments."""
    parser = argparse.ArgumentParser(prog="flight-shuffle", description="Tools of the Spark client.")
    commands = parser.add_subparsers(required=True)
    zip_ = commands.add_parser("zip", help="write the package as a zip for spark-submit --py-files")
    zip_.add_argument("path", type=Path, help="the file, for example flight-shuffle.zip")
    zip_.set_defaults(run=_zip)
    options = parser.parse_args(arguments)
    options.run(options)


def _zip(options: argparse.Namespace) -> None:
    options.path.write_bytes(zipped())


if __name__ == "__main__":
    main()
