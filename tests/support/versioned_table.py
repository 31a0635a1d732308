"""A changelog without a server: its versions are files in a directory, and it notes what is asked of it.

It is a source of lookups, as ``ChangelogSource``, that can be pickled into other processes. It keeps every version
until ``compact``, and it computes deltas from whole snapshots.
"""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from flight_server.protocol import Compacted
from spark_client.lanes import CutRead


def countable(rows: pa.Table) -> Counter[str]:
    """The rows as texts that tell NaN from no NaN, and -0.0 from 0.0."""
    return Counter(repr(row) for row in rows.to_pylist())


@dataclass(frozen=True)
class VersionedTable:
    """A directory with versions."""

    directory: Path
    name: str = "rates"

    @property
    def identity(self) -> str:
        return str(self.directory)

    def commit(self, table: pa.Table) -> int:
        """Make these rows the next version; its number."""
        version = self.upper() + 1
        path = str(self.directory / f"{version}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return version

    def upper(self) -> int:
        return max((int(path.stem) for path in self.directory.glob("*.arrow")), default=0)

    def cut_reads(self, count: int) -> None:
        """Let the next reads break off before their end."""
        (self.directory / "cuts").write_text(str(count))

    def pins(self) -> dict[str, int]:
        """The version of each pin."""
        path = self.directory / "pins"
        found: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def compact(self, since: int) -> None:
        (self.directory / "since").write_text(str(since))

    def table(self, version: int) -> pa.Table:
        with pa.memory_map(str(self.directory / f"{version}.arrow")) as source:
            return pa.ipc.open_stream(source).read_all()

    def asked(self) -> list[str]:
        """What was asked, in order."""
        path = self.directory / "asked"
        return path.read_text().splitlines() if path.exists() else []

    @contextmanager
    def snapshot(self, version: int) -> Iterator[Iterator[pa.RecordBatch]]:
        self._ask(version, f"snapshot {version}")
        table = self.table(version)
        yield self._sent(table)

    @contextmanager
    def deltas(self, after: int, version: int) -> Iterator[Iterator[pa.RecordBatch]]:
        self._ask(after, f"deltas {after} {version}")
        old, new = self.table(after), self.table(version)
        counts = countable(new)
        counts.subtract(countable(old))
        first = {repr(row): number for number, row in enumerate([*old.to_pylist(), *new.to_pylist()])}
        chosen = [key for key, count in counts.items() if count]
        rows = pa.concat_tables([old, new]).take(pa.array([first[key] for key in chosen], pa.int64()))
        diffs = pa.array([counts[key] for key in chosen], pa.int64())
        table = rows.append_column("_diff", diffs)
        yield self._sent(table)

    def pin(self, name: str, *, releases: str | None = None) -> int:
        with (self.directory / "pins").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            pins: dict[str, int] = json.loads(file.read() or "{}")
            pins.setdefault(name, self.upper())
            if releases is not None:
                pins.pop(releases, None)
            file.truncate(0)
            file.write(json.dumps(pins))
            file.flush()
        self._ask(pins[name], f"pin {name}")
        return pins[name]

    def _sent(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(max_chunksize=50) or [empty(table.schema)]
        cuts = self.directory / "cuts"
        if cuts.exists() and (left := int(cuts.read_text())):
            cuts.write_text(str(left - 1))
            raise CutRead("the connection broke")

    def _ask(self, version: int, what: str) -> None:
        since = self.directory / "since"
        self._note(what)
        if since.exists() and version < int(since.read_text()):
            raise Compacted(f"version {version} is before {since.read_text()}", since=int(since.read_text()))

    def _note(self, what: str) -> None:
        with (self.directory / "asked").open("a") as file:
            file.write(what + "\n")


def empty(schema: pa.Schema) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
