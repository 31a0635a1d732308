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
    zip_ = commands.add_parser("zip", help="write the package as a zip for --py-files and addArtifact")
    zip_.add_argument("path", type=Path, help="the file, for example flight-shuffle.zip")
    options = parser.parse_args(arguments)
    if options.path.suffix != ".zip":
        # Spark puts files of other names, wheels for example, on no path, and says nothing.
        zip_.error(f"Spark needs a name that ends with .zip, not {options.path.name!r}")
    try:
        options.path.write_bytes(zipped())
    except OSError as error:
        zip_.exit(1, f"the zip cannot be written: {error}\n")


if __name__ == "__main__":
    main()
