"""Tables in files, batch by batch: Arrow's IPC file and stream, Parquet, CSV.

Guarantee: a file is written beside its name and gets it when all rows are in it: an error, or Ctrl-C, leaves what was
there before. What is no regular file (``/dev/stdout``, a FIFO) is written directly.

Memory: one batch of an IPC file; of CSV about 40 blocks of ``READ_BYTES``, which Arrow reads ahead; of Parquet the
pages of the columns that one batch comes from, and in a written one a row group of ``GROUP_BYTES``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pyarrow as pa
import typer

Format = Literal["arrow", "arrows", "parquet", "csv"]
FORMATS: tuple[str, ...] = get_args(Format)
GROUP_BYTES = 32 << 20
READ_BYTES = 1 << 20


def format_of(path: Path | None, given: str | None) -> Format:
    """The format that is named, else that of the file's suffix, without a file ``arrows``. Raises BadParameter: neither
    says it.
    """
    found = given or ("arrows" if path is None else path.suffix.lower().removeprefix("."))
    if found not in FORMATS:
        what = f"no format {given!r}" if given else f"{path}: its name says no format"
        raise typer.BadParameter(f"{what}: say --format {', '.join(FORMATS)}")
    return cast("Format", found)


@contextmanager
def rows_of(path: Path, form: Format) -> Iterator[pa.RecordBatchReader]:
    """The rows of a file. Raises OSError, ArrowInvalid: it cannot be read, or is no such file."""
    with ExitStack() as opened:
        remedy = f"another format is named by --format: {', '.join(FORMATS)}"
        opened.enter_context(_named(f"{path} cannot be read as {form}", remedy))
        source = opened.enter_context(pa.OSFile(str(path)))
        if form == "csv":
            from pyarrow import csv  # noqa: PLC0415 - loads a library

            yield csv.open_csv(source, csv.ReadOptions(block_size=READ_BYTES))
        elif form == "parquet":
            from pyarrow import parquet  # noqa: PLC0415 - as above

            file = parquet.ParquetFile(source, buffer_size=READ_BYTES, pre_buffer=False)
            yield pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
        elif form == "arrow":
            ipc = pa.ipc.open_file(source)
            batches = (ipc.get_batch(each) for each in range(ipc.num_record_batches))
            yield pa.RecordBatchReader.from_batches(ipc.schema, batches)
        else:
            yield pa.ipc.open_stream(source)


@contextmanager
def _named(what: str, remedy: str) -> Iterator[None]:
    """Arrow's errors name neither the file nor what to do."""
    try:
        yield
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(f"{what}: {error}; {remedy}") from error


@contextmanager
def rows_into(path: Path | None, form: Format, schema: pa.Schema) -> Iterator[Callable[[Any], None]]:
    """A function that writes a batch to a file; None for standard output. Raises OSError, ArrowInvalid: it cannot be
    written, or the format has no such type. BadParameter: a format that needs a file.
    """
    if path is None and form not in ("arrows", "csv"):
        raise typer.BadParameter(f"standard output takes arrows or csv, not {form}: give a file by -o")
    direct = path is None or (path.exists() and not path.is_file())
    waiting = path if path is None or direct else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with ExitStack() as opened:
            if waiting is None:
                sys.stdout.flush()
                # Of a copy of the descriptor: Arrow closes what it is given.
                sink = pa.PythonFile(os.fdopen(os.dup(sys.stdout.fileno()), "wb"), mode="w")
            else:
                sink = pa.OSFile(str(waiting), mode="w")
            yield opened.enter_context(_writing(opened.enter_context(sink), form, schema))
    except BaseException:
        if waiting is not None and not direct:
            waiting.unlink(missing_ok=True)
        raise
    if waiting is not None and path is not None and not direct:
        waiting.replace(path)


@contextmanager
def _writing(sink: Any, form: Format, schema: pa.Schema) -> Iterator[Callable[[Any], None]]:
    if form == "parquet":
        with _groups(sink, schema) as write:
            yield write
        return
    if form == "csv":
        from pyarrow import csv  # noqa: PLC0415 - loads a library

        with _named("CSV takes no such column", "write arrows, arrow or parquet"):
            writer = csv.CSVWriter(sink, schema)
    else:
        writer = (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(sink, schema)
    with writer:
        yield writer.write_batch


@contextmanager
def _groups(sink: Any, schema: pa.Schema) -> Iterator[Callable[[Any], None]]:
    """Gathers batches for row groups: one for each would make a large file of small pages."""
    from pyarrow import parquet  # noqa: PLC0415 - loads a library

    gathered: list[Any] = []
    with parquet.ParquetWriter(sink, schema) as writer:

        def flush() -> None:
            if gathered:
                writer.write_table(pa.Table.from_batches(gathered, schema))
                gathered.clear()

        def write(batch: Any) -> None:
            gathered.append(batch)
            if sum(each.nbytes for each in gathered) >= GROUP_BYTES:
                flush()

        yield write
        flush()
