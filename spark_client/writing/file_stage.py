"""The stage that writes the rows of a task to Parquet files, and reports them.

Guarantee: of a partition whose rows have all come there is one row for each of its files, which are complete then; the
files of a task that fails or ends before stay in the write's own folder, which its driver removes.

Files
    One for each partition that a task reads, or piece of a cut one; with folder columns one for each of their values in
    it. The rows come sorted by these columns (the pipeline adds that stage), so a task has one file open. A partition
    without rows has none.

Memory
    Rows are held until they fill a row group: ``GROUP_BYTES`` or ``GROUP_ROWS``, whichever comes first, or less where
    Spark limits the task's memory. Beside them there is the encoded group, of about the same size at most.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from flight_server.keys import compute
from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.spill import writing_budget
from spark_client.steps import REPORTS, OwnStage, Pass, reported

from .folders import folder_of, texts_of
from .storage_place import Place

GROUP_BYTES = 64 << 20
GROUP_ROWS = 1 << 20


@dataclass(frozen=True)
class WrittenFile:
    """A file of an attempt: its name in the write's folder, the folder of its columns' values, these as texts, and what
    it holds.
    """

    name: str
    folder: str
    texts: tuple[str | None, ...]
    rows: int
    size_bytes: int

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> WrittenFile:
        return cls(**{**report, "texts": tuple(report["texts"])})


@dataclass(frozen=True)
class FileLayout:
    """What files of a write have in common.

    Args:
        declared: the schema of a file.
        folders: the columns by whose values rows are apart, and name folders.
        compression: as pyarrow names it.
        zone: in which times are in names of folders.
        ending: of the names that tasks give to files.
        required: those of the folders that have neither null nor an empty text.
    """

    declared: Declared
    folders: tuple[str, ...]
    compression: str
    zone: str
    ending: str = ""
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileStage(OwnStage):
    """Writes its input to files in ``folder`` of ``place``."""

    place: Place
    folder: str
    layout: FileLayout
    declared: Declared = Declared("write", REPORTS)  # noqa: RUF009 - it is frozen

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - the face of a stage
        files: list[WrittenFile] = []
        current: _OpenFile | None = None
        prefix = f"{_attempt()}-{uuid.uuid4().hex}"
        try:
            for values, rows in self._of_folders(batches):
                if current is None or current.values != values:
                    if current is not None:
                        files.append(current.end())
                    current = _OpenFile(self, f"{prefix}-{len(files)}{self.layout.ending}", values)
                current.add(rows)
            if current is not None:
                files.append(current.end())
        except BaseException:
            if current is not None:
                current.give_up()
            raise
        if files:
            yield reported([asdict(each) for each in files])

    def empty(self) -> WrittenFile:
        """A file without rows, which the driver writes."""
        return _OpenFile(
            self, f"{uuid.uuid4().hex}{self.layout.ending}", (None,) * len(self.layout.folders)
        ).end()

    def _of_folders(self, batches: Iterator[Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Rows of one folder each, with the values of its columns, without those columns that files do not have."""
        stored, folders = self.layout.declared.schema.names, list(self.layout.folders)
        for batch in batches:
            rows = batch.select(stored)
            if not folders:
                yield (), rows
                continue
            keys = batch.select(folders)
            starts = run_starts(keys.columns)
            for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
                values = tuple(column[start] for column in keys.columns)
                yield values, rows.slice(start, end - start)


def run_starts(columns: Sequence[Any]) -> list[int]:
    """Where rows begin whose values differ from those of the row before."""
    ends = [np.asarray(compute().run_end_encode(column, pa.int64()).run_ends) for column in columns]
    return [0, *np.unique(np.concatenate(ends))[:-1].tolist()]


def _attempt() -> str:
    """Names the attempt for people; a file's name has more, so that no two are the same."""
    context = TaskContext.get()
    return "driver" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"


class _OpenFile:
    """A file that is being written."""

    def __init__(self, stage: FileStage, name: str, values: tuple[Any, ...]) -> None:
        from pyarrow import parquet as pq  # noqa: PLC0415 - only who writes files needs it

        layout = stage.layout
        self.values = values
        self._texts = tuple(texts_of(values, layout.zone))
        for each, text in zip(layout.folders, self._texts, strict=True):
            if text is None and each in layout.required:
                raise InvalidRequest(
                    f"{layout.declared.stage}: column {each!r} has nulls or empty texts, which are one in the name of "
                    "a partition, but is declared NOT NULL; filter them or allow nulls",
                    column=each,
                )
        self._place, self._name = stage.place.below(stage.folder), name
        self._declared = layout.declared
        self._budget_bytes = writing_budget(GROUP_BYTES)
        self._batches: list[Any] = []
        self._group_bytes = self._group_rows = self._rows = 0
        self._folder = folder_of(layout.folders, self._texts)
        self._stream = self._place.open(name)
        self._writer = pq.ParquetWriter(self._stream, layout.declared.schema, compression=layout.compression)

    def add(self, batch: Any) -> None:
        self._batches.append(batch)
        self._group_bytes += batch.nbytes
        self._group_rows += batch.num_rows
        if self._group_bytes >= self._budget_bytes or self._group_rows >= GROUP_ROWS:
            self._write_group()

    def end(self) -> WrittenFile:
        self._write_group()
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        return WrittenFile(self._name, self._folder, self._texts, self._rows, size_bytes)

    def give_up(self) -> None:
        """Close it as it is, and remove it. Never raises."""
        self._batches.clear()
        for each in (self._writer, self._stream):
            with suppress(Exception):
                each.close()
        with suppress(Exception):
            self._place.delete(self._name)

    def _write_group(self) -> None:
        if not self._group_rows:
            return
        table = self._declared.cast(pa.Table.from_batches(self._batches))
        self._writer.write_table(table, self._group_rows)
        self._rows += self._group_rows
        self._batches, self._group_bytes, self._group_rows = [], 0, 0
