"""How many rows of Parquet are read at once where texts inside of other values have few long values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from spark_client.scan import stored_texts
from spark_client.scan.stored_texts import NESTED_ROWS, batches_of
from tests.support.scanning import splits_of

ROWS = 5 * NESTED_ROWS


def texts_inside(kind: str, size_bytes: int) -> pa.Array:
    """One of three texts in each row."""
    texts = pa.array([letter * size_bytes for letter in "abc"] * (ROWS // 3) + ["a"] * (ROWS % 3))
    if kind == "struct":
        return pa.StructArray.from_arrays([texts], names=["text"])
    offsets = pa.array(range(ROWS + 1), pa.int32())
    return (
        pa.MapArray.from_arrays(offsets, texts, texts)
        if kind == "map"
        else pa.ListArray.from_arrays(offsets, texts)
    )


@pytest.mark.parametrize("kind", ["list", "struct", "map"])
@pytest.mark.parametrize(("size_bytes", "most_rows"), [(400, NESTED_ROWS), (3, ROWS)])
def test_few_long_texts_inside_of_values_are_read_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size_bytes: int, most_rows: int
) -> None:
    """They take little in the file, and would take gigabytes in a batch of 64 Ki rows."""
    monkeypatch.setattr(stored_texts, "LARGE_BYTES", 6500 * ROWS)
    table = pa.table({"n": range(ROWS), "v": texts_inside(kind, size_bytes)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=ROWS)
    found = list(splits_of(tmp_path, batch_rows=ROWS).read(0))
    assert max(batch.num_rows for batch in found) == most_rows
    assert pa.Table.from_batches(found).equals(table.cast(found[0].schema))
    without = splits_of(tmp_path, names=["n"], schema=table.schema.remove(1), batch_rows=ROWS)
    assert [batch.num_rows for batch in without.read(0)] == [ROWS]


class Reader:
    """Gives batches of at most ``most`` rows, as Arrow where more have 2 GiB of texts, from the row ``first`` on."""

    def __init__(self, most: int, first: int) -> None:
        self.most, self.first = most, first

    def iter_batches(
        self, rows: int, units: list[int], names: list[str], *, use_threads: bool
    ) -> Iterator[Any]:
        assert not use_threads
        for start in range(0, 1000, rows):
            if rows > self.most and start + rows > self.first:
                raise pa.ArrowNotImplementedError("Nested data conversions")
            yield pa.record_batch({"n": range(start, min(1000, start + rows))})


@pytest.mark.parametrize("most", [1, 5, 63, 64, 1000])
@pytest.mark.parametrize("first", [0, 300, 999])
def test_where_arrow_gives_no_batch_of_so_many_rows_there_are_smaller_ones(most: int, first: int) -> None:
    found = pa.Table.from_batches(list(batches_of(Reader(most, first), 0, ["n"], 64)))
    assert found["n"].to_pylist() == [*range(1000)]


def test_what_arrow_cannot_read_at_all_is_an_error() -> None:
    with pytest.raises(pa.ArrowNotImplementedError):
        list(batches_of(Reader(0, 0), 0, ["n"], 64))
