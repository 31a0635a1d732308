"""The application: its commands, its exit codes, and one line on standard error for each error.

It remembers Ctrl-C: gRPC loses a KeyboardInterrupt that is raised in Python that runs for it (pyarrow's middleware).

Exit codes
    ======  =================================================================================================
    0       done
    1       the server or a file said no; a server of several is gone; a finding is bad (``doctor``)
    2       the command line is wrong
    3       the server cannot be reached, or does not answer
    130     Ctrl-C
    ======  =================================================================================================
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, cast

import pyarrow as pa
import typer
from typer.main import get_command

from flight_server.protocol import FlightShuffleError
from spark_client.connection import NoAnswer
from spark_client.version import __version__

from . import dataset_commands, doctor, server_commands, transfer_commands
from .printing import print_line, printable, without_calls

PROGRAM = "flight-shuffle"
REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""Click's, or that of the copy of Click in newer versions of typer."""

_app = typer.Typer(
    name=PROGRAM,
    help="Datasets, changelogs and servers of flight-shuffle. Each command has --help.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool | None) -> None:  # noqa: FBT001 - typer's signature
    if is_asked:
        print_line(f"{PROGRAM} {__version__}")
        raise typer.Exit


@_app.callback()
def _options(
    version: Annotated[
        bool | None,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = None,
) -> None:
    """Options of no command."""


_interrupted = threading.Event()
"""Ctrl-C came since the last block of :func:`ctrl_c_remembered` began."""
for _group in (dataset_commands, transfer_commands, doctor, server_commands):
    _group.add_to(_app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. None for the command line's arguments."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC writes lines of its own beside the error's
    try:
        with ctrl_c_remembered():
            answer: Any = get_command(_app).main(
                words or ["--help"], prog_name=PROGRAM, standalone_mode=False
            )
    except _UsageError as error:
        return _say(USAGE, cast("Any", error).format_message())
    except SystemExit as ended:  # of typer's completion
        return ended.code if isinstance(ended.code, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except NoAnswer as error:
        return _say(UNREACHABLE, error.message)
    except FlightShuffleError as error:
        return _say(REFUSED, without_calls(error))
    except (OSError, pa.ArrowException) as error:
        return _say(REFUSED, str(error))
    except Exception as error:  # noqa: BLE001 - of ours; a traceback could show a token
        place = traceback.extract_tb(error.__traceback__)[-1]
        return _say(
            REFUSED, f"internal error: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        )
    if not words:
        return USAGE
    return answer if isinstance(answer, int) else 0


def _say(code: int, message: str) -> int:
    if _interrupted.is_set():
        return INTERRUPTED
    sys.stderr.write(f"{PROGRAM}: {printable(' '.join(message.split()))}\n")
    return code


@contextmanager
def ctrl_c_remembered() -> Iterator[None]:
    """In the block, if this is the main thread and Ctrl-C is not ignored."""
    _interrupted.clear()
    handled = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handled is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handled)


def _interrupt(*_: object) -> None:
    _interrupted.set()
    raise KeyboardInterrupt
