"""The command ``flight-shuffle`` (``commands``). Without the extra ``cli`` it writes the zip for executors, and nothing
else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from flight_server.protocol import InvalidRequest
from spark_client.executors import write_zip

_INTERRUPTED = 130
_EXTRA = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; None for the command line's arguments. Raises SystemExit: it did not end well."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        from spark_client.commands import run  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        code = _without_extra(words)
    except KeyboardInterrupt:  # imports take a second
        code = _INTERRUPTED
    else:
        code = run(words)
    if code:
        sys.exit(code)


def _without_extra(arguments: Sequence[str]) -> int:
    try:
        match arguments:
            case ["zip", path] if not path.startswith("-"):
                write_zip(Path(path))
                return 0
    except (InvalidRequest, OSError) as error:
        sys.stderr.write(f"flight-shuffle: {error}\n")
        return 2 if isinstance(error, InvalidRequest) else 1
    sys.stderr.write("flight-shuffle: this command needs typer and rich: pip install 'flight-shuffle[cli]'\n")
    return 2


if __name__ == "__main__":
    main()
