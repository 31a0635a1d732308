"""Texts of dictionaries are decoded in about the memory that they take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_client.arrow import Declared
from spark_client.arrow.widening import ASKED_BYTES, decoded
from tests.support.arrow_peak import arrow_peak


def coded(kind: pa.DataType, dictionary: list[str | None]) -> pa.Array:
    """Many of the first text, and one of each other, with nulls."""
    codes = np.zeros(60_000, np.int32)
    codes[np.arange(1, len(dictionary)) * 7] = np.arange(1, len(dictionary))
    texts = pa.array(dictionary).cast(kind)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=np.arange(len(codes)) % 10 == 9), texts)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_long_text_beside_short_ones_takes_no_more_than_it_is_long(kind: pa.DataType) -> None:
    column = coded(kind, ["s", "x" * 400_000, None])
    with arrow_peak() as pool:
        found = decoded(column)
        assert pool.max_memory() < 2 * ASKED_BYTES
    assert found.type == kind
    assert found.equals(pa.array(column.to_pylist(), kind))


@pytest.mark.parametrize("dictionary", [["a", "bc"], [], [None], [""], ["x" * 150] * 3])
def test_all_texts_are_decoded(dictionary: list[str | None]) -> None:
    column = coded(pa.string(), dictionary) if dictionary else pa.array([], pa.string()).dictionary_encode()
    chunks = pa.chunked_array([column, column.slice(3)], column.type)
    assert decoded(chunks).equals(pa.chunked_array([column.to_pylist(), column.to_pylist()[3:]], pa.string()))


def test_other_dictionaries_are_decoded() -> None:
    assert decoded(pa.array([1, None, 1]).dictionary_encode()).equals(pa.array([1, None, 1]))
    nested = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array([[1], None]))
    assert decoded(nested).to_pylist() == [None, [1], None]


def test_a_cast_decodes_so() -> None:
    batch = pa.record_batch({"t": coded(pa.string(), ["s", "x" * 400_000])})
    with arrow_peak() as pool:
        Declared("a stage", pa.schema([("t", pa.string())])).cast(batch)
        assert pool.max_memory() < 2 * ASKED_BYTES
