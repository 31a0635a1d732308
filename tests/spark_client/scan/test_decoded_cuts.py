"""Batches whose texts are dictionaries, cut by what they take as texts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_client.scan.stored_texts import cut

MOST = 1000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("nulls", [0.0, 0.3])
def test_slices_are_all_rows_in_order_and_not_much_larger_than_asked(kind: pa.DataType, nulls: float) -> None:
    random = np.random.default_rng(5)
    texts = pa.array(["", "a" * 7, None, "b" * 90, "c" * 1500]).cast(kind)
    codes = pa.array(random.integers(0, 5, 300).astype(np.int32), mask=random.random(300) < nulls)
    coded = pa.DictionaryArray.from_arrays(codes, texts)
    batch = pa.record_batch({"n": np.arange(300), "t": coded, "u": coded}).slice(11, 280)
    found = [*cut(batch, MOST)]
    assert pa.Table.from_batches(found).to_pylist() == batch.to_pylist()
    for each in found:
        sizes = [2 * len(text or "") for text in each["t"].to_pylist()]
        assert sum(sizes) <= MOST or len(sizes) == 1
    assert len(found) < 280


@pytest.mark.parametrize(("kind", "size"), [(pa.int8(), 128), (pa.uint8(), 256), (pa.uint64(), 300)])
def test_a_dictionary_may_have_as_many_values_as_its_index_has_numbers(kind: pa.DataType, size: int) -> None:
    codes = pa.array([None, *(number % size for number in range(1000))], kind)
    coded = pa.DictionaryArray.from_arrays(codes, [f"text {number}" for number in range(size)])
    batch = pa.record_batch({"t": coded})
    found = [*cut(batch, MOST)]
    assert len(found) > 1
    assert pa.Table.from_batches(found).to_pylist() == batch.to_pylist()


def test_batches_that_are_small_as_texts_are_whole() -> None:
    coded = pa.array(["a", "bc", None] * 100).dictionary_encode()
    batch = pa.record_batch({"t": coded, "n": np.arange(300)})
    assert [*cut(batch, MOST)] == [batch]
    empty = pa.record_batch({"t": pa.array([], pa.string()).dictionary_encode()})
    assert [*cut(empty, MOST)] == [empty]
    plain = pa.record_batch({"t": ["x" * 5000] * 3})
    assert [*cut(plain, MOST)] == [plain]
