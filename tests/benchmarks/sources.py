"""Wide sources: files of 5,000, 10,000 and 20,000 columns, created and pulled through a server.

The seconds of a column must not grow with the number of columns: the last two columns of the table are
microseconds for each column of the file, and for each column and row of what was pulled.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import flight

from flight_server.protocol import CreateRequest, Kind
from tests.benchmarks.measure import conditions, console, cpu_seconds, table
from tests.support.server_process import ServerProcess

COLUMNS = (5_000, 10_000, 20_000)
ROWS = 10  # one message at any width: a message costs some microseconds for each of its columns
FORMATS = ("parquet", "ipc")


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="sources")
    parser.add_argument("--columns", type=int, nargs="*", default=COLUMNS)
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args(arguments)
    console.print(f"[bold]Sources[/bold] · {conditions(1)}; {options.rows} rows of int64")
    rows = []
    for columns in options.columns:
        with tempfile.TemporaryDirectory() as root:
            wide = pa.table({f"column-{number:05}": range(options.rows) for number in range(columns)})
            rows += [_row(Path(root), format_, wide) for format_ in FORMATS]
    table(
        "Wide sources",
        [
            "format",
            "columns",
            "create s",
            "pull and read s",
            "server CPU s",
            "create µs/column",
            "pull ns/value",
        ],
        rows,
    )


def _row(root: Path, format_: str, wide: pa.Table) -> list[str]:
    path = root / f"wide.{format_}"
    if format_ == "parquet":
        pq.write_table(wide, path)
    else:
        with pa.ipc.new_file(path, wide.schema) as writer:
            writer.write_table(wide)
    source = {"format": format_, "path": str(path)}
    with ServerProcess.start(source_roots=root) as server, flight.connect(server.location) as client:
        started, cpu_before = time.perf_counter(), cpu_seconds(server.pid)
        list(client.do_action(("create", CreateRequest("wide", Kind.SOURCE, source=source).encode())))
        created = time.perf_counter()
        read = client.do_get(flight.Ticket(b"wide")).read_all()
        ended = time.perf_counter()
        assert read.equals(wide)
        used_seconds = cpu_seconds(server.pid) - cpu_before
    return [
        format_,
        f"{wide.num_columns:,}",
        f"{created - started:.2f}",
        f"{ended - created:.2f}",
        f"{used_seconds:.2f}",
        f"{(created - started) / wide.num_columns * 1e6:.0f}",
        f"{(ended - created) / wide.num_columns / wide.num_rows * 1e9:.0f}",
    ]
