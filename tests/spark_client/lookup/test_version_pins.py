"""The versions of micro-batches: pinned at the server, and asked for once on a host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.protocol import Compacted
from spark_client.hosts import HostFiles
from spark_client.lookup import version_pins
from spark_client.lookup.lookup_content import LookupContent
from spark_client.lookup.version_pins import MicroBatch, version_of
from tests.support.lookup_contents import content
from tests.support.versioned_table import VersionedTable

SCHEMA = pa.schema([("key", pa.int64()), ("rate", pa.float64())])
ROWS = SCHEMA.empty_table()


@pytest.fixture
def of(source: VersionedTable, base: Path) -> Iterator[LookupContent]:
    source.commit(ROWS)
    yield content(source, SCHEMA, ["key"], base)
    version_pins._known.clear()


def asked_anew(of: LookupContent, query: str, number: int) -> int:
    """As a process that has not asked yet."""
    version_pins._known.clear()
    return version_of(of, MicroBatch(query, number))


def notes(of: LookupContent) -> int:
    return len(HostFiles(of.copies).opened("app"))


def test_a_batch_keeps_its_version_and_the_next_has_a_newer_one(
    source: VersionedTable, of: LookupContent
) -> None:
    for number in range(4):
        assert asked_anew(of, "q", number) == number + 1
        source.commit(ROWS)
        assert asked_anew(of, "q", number) == number + 1
        if number:
            assert asked_anew(of, "q", number - 1) == number


def test_the_pins_of_the_last_two_batches_stay(source: VersionedTable, of: LookupContent) -> None:
    for number in range(25):
        asked_anew(of, "q", number)
        asked_anew(of, "r", 1)
        source.commit(ROWS)
    assert source.pins() == {"lookup.q.23.": 24, "lookup.q.24.": 25, "lookup.r.1.": 1}
    assert notes(of) == 3


def test_pins_before_a_gap_of_batches_without_rows_end_too(source: VersionedTable, of: LookupContent) -> None:
    for number in (0, 1, 5, 9):
        asked_anew(of, "q", number)
    assert source.pins() == {"lookup.q.9.": 1}
    assert notes(of) == 1


def test_a_host_that_lost_its_note_asks_again_and_gets_the_pinned_version(
    source: VersionedTable, of: LookupContent
) -> None:
    assert asked_anew(of, "q", 7) == 1
    source.commit(ROWS)
    (key,) = HostFiles(of.copies).opened("app")
    HostFiles(of.copies).remove(key)
    assert asked_anew(of, "q", 7) == 1


def test_a_batch_that_is_run_again_after_its_version_was_compacted_says_what_to_do(
    source: VersionedTable, of: LookupContent
) -> None:
    asked_anew(of, "q", 4)
    for key in HostFiles(of.copies).opened(""):
        HostFiles(of.copies).remove(key)  # another host
    source.commit(ROWS)
    source.compact(2)
    with pytest.raises(Compacted, match=r"new checkpoint location.*release\('lookup\.q\.4\.'\)"):
        asked_anew(of, "q", 4)
