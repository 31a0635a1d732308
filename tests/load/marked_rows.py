"""Rows that say which write they belong to and at which place, so that a lost, doubled or foreign row is seen.

Each row has the number of its write, its *stream* (the producer and the partition that it was written to), its number
in that stream, a check of these three and a text of a dictionary that differs from batch to batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("write", pa.int64()),
        ("stream", pa.int64()),
        ("number", pa.int64()),
        ("check", pa.int64()),
        ("text", pa.dictionary(pa.int32(), pa.string())),
    ]
)
ROW_BYTES = 36
_TEXTS = 5

Rows = Mapping[int, int]
"""How many rows each stream of a write has."""


class WrongRows(AssertionError):
    """A reader got something that no write has written, or a part of it."""


def stream_number(producer: int, partition: int) -> int:
    return producer * 1000 + partition


def batch(write: int, stream: int, start: int, count: int) -> pa.RecordBatch:
    """The rows ``start`` to before ``start + count`` of a stream of a write."""
    numbers = np.arange(start, start + count, dtype=np.int64)
    texts = pa.DictionaryArray.from_arrays(
        pa.array((numbers % _TEXTS).astype(np.int32)),
        pa.array([f"{write}/{stream}/{start}/{text}" for text in range(_TEXTS)]),
    )
    columns = [np.full(count, write), np.full(count, stream), numbers, _check(write, stream, numbers)]
    return pa.record_batch([*columns, texts], schema=SCHEMA)


def batches(write: int, stream: int, rows: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, batch_rows):
        yield batch(write, stream, start, min(batch_rows, rows - start))


def _check(write: int, stream: int, numbers: np.ndarray) -> np.ndarray:
    return numbers * 1_000_003 + (write * 7_919 + stream * 104_729)


class Seen:
    """What one reader has seen of a dataset: gets each batch in the order of the partition's frames."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}

    def add(self, partition: int, got: pa.RecordBatch) -> None:
        """Take a batch.

        Raises:
            WrongRows: it is none that a write has made, or not the next one of its stream.
        """
        if not got.num_rows:
            return
        writes, streams, numbers, checks = (got.column(at).to_numpy(zero_copy_only=False) for at in range(4))
        write, stream, start = int(writes[0]), int(streams[0]), int(numbers[0])
        where = f"partition {partition}, a batch of {got.num_rows} rows from row {start} of {write}/{stream}"
        if (writes != write).any() or (streams != stream).any():
            raise WrongRows(f"{where}: rows of several writes in one batch")
        if (numbers != np.arange(start, start + len(numbers))).any():
            raise WrongRows(f"{where}: its numbers are not consecutive")
        if (checks != _check(write, stream, numbers)).any():
            raise WrongRows(f"{where}: another check than was written")
        texts = got.column(4)
        first, last = texts[0].as_py(), texts[len(texts) - 1].as_py()
        of_batch = f"{write}/{stream}/"
        if not first.startswith(of_batch) or not last.endswith(f"/{int(numbers[-1]) % _TEXTS}"):
            raise WrongRows(f"{where}: its texts are {first!r} to {last!r}: another dictionary")
        if not first.split("/")[2] == str(start):
            raise WrongRows(f"{where}: its texts are of the batch from row {first!r}")
        expected = self._next.get((write, stream), 0)
        if start != expected:
            what = "come twice" if start < expected else "are missing"
            raise WrongRows(f"{where}: row {expected} is the next one, so rows {what}")
        self._next[write, stream] = start + len(numbers)

    @property
    def rows(self) -> int:
        return sum(self._next.values())

    def writes(self, written: Mapping[int, Rows]) -> tuple[int, ...]:
        """The writes that have rows here, in the order in which they were first seen.

        Args:
            written: what each write has written.

        Raises:
            WrongRows: one is not there as a whole.
        """
        found: dict[int, dict[int, int]] = {}
        for (write, stream), count in self._next.items():
            found.setdefault(write, {})[stream] = count
        for write, streams in found.items():
            expected = {stream: rows for stream, rows in written.get(write, {}).items() if rows}
            if streams != expected:
                raise WrongRows(f"write {write} has {streams} (stream: rows), not {expected}")
        return tuple(found)


def total(rows: Rows) -> int:
    return sum(rows.values())


def size_bytes(rows: Iterable[Rows]) -> int:
    return sum(map(total, rows)) * ROW_BYTES
