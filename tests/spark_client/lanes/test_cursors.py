"""What is read and how far it is, without a server."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.protocol import (
    FROM_TRAILER,
    PARTITION_ENDED,
    UNTIL_TRAILER,
    PartitionEnd,
    PartitionFailed,
    Ticket,
)
from flight_server.protocol.checksums import running_crc32c
from spark_client.lanes import BatchBurst, BrokenStream, PartitionCursor, PortionCursor, cursors
from spark_client.lanes.lane import ReadTotals
from tests.support.examples import examples

SUMS = (11, 22, 33)


def frames(*rows: int, sums: Sequence[int] = ()) -> BatchBurst:
    """A burst of frames with so many rows."""
    return BatchBurst([pa.record_batch({"n": range(count)}) for count in rows], checksums=sums)


def crc_of(sums: Sequence[int]) -> int:
    total = 0
    for checksum in sums:
        total = running_crc32c(total, checksum)
    return total


# A partition.


def test_each_connection_is_asked_for_what_comes_next() -> None:
    cursor = PartitionCursor(Ticket("d", 3, from_=2, until=9, reader="r"))
    assert cursor.ticket() == Ticket("d", 3, from_=2, until=9, reader="r")
    cursor.generation = "g"
    assert not cursor.begun
    assert cursor.take(frames(1, 2))
    assert (cursor.begun, cursor.next_frame, cursor.rows, cursor.position) == (True, 4, 3, "frame 4")
    assert cursor.ticket() == Ticket("d", 3, "g", 4, until=9, reader="r")


def test_a_reader_without_a_name_is_one_of_its_own_and_begins_once() -> None:
    one, other = PartitionCursor(Ticket("d")), PartitionCursor(Ticket("d"))
    assert one.reader not in (None, other.reader)
    assert (one.may_repeat, PartitionCursor(Ticket("d", reader="r")).may_repeat) == (False, True)


def test_totals_over_all_connections_agree() -> None:
    cursor = PartitionCursor(Ticket("d", 0))
    cursor.ticket()
    cursor.take(frames(1, 2, sums=SUMS[:2]))
    cursor.ticket()
    cursor.take(frames(3, sums=SUMS[2:]))
    assert cursor.end(ReadTotals(6, 3, crc_of(SUMS)), {FROM_TRAILER: "2"})


@pytest.mark.parametrize(
    ("totals", "headers"),
    [
        (ReadTotals(5, 3), {}),
        (ReadTotals(6, 2), {}),
        (ReadTotals(6, 3, 7), {}),
        (ReadTotals(6, 3), {FROM_TRAILER: "1"}),
    ],
    ids=["rows", "frames", "checksum", "range"],
)
def test_totals_that_differ_are_an_error(totals: ReadTotals, headers: dict[str, str]) -> None:
    cursor = PartitionCursor(Ticket("d", 0))
    cursor.ticket()
    cursor.take(frames(1, 2, 3, sums=SUMS))
    with pytest.raises(PartitionFailed, match="cannot be trusted"):
        cursor.end(totals, headers)


def test_frames_that_lack_may_come_over_another_connection() -> None:
    cursor = PartitionCursor(Ticket("d", 0))
    cursor.ticket()
    cursor.take(frames(1, 2))
    with pytest.raises(BrokenStream, match="after 2 frames; the server counts 3"):
        cursor.end(ReadTotals(6, 3), {})


def test_of_a_range_each_connection_has_totals_of_its_own() -> None:
    cursor = PartitionCursor(Ticket("d", 0, from_=4, until=7))
    cursor.ticket()
    cursor.take(frames(1, 2, sums=SUMS[:2]))
    cursor.ticket()
    cursor.take(frames(3, sums=SUMS[2:]))
    assert cursor.end(ReadTotals(3, 1, crc_of(SUMS[2:])), {FROM_TRAILER: "6", UNTIL_TRAILER: "7"})
    with pytest.raises(PartitionFailed, match="past the last one that was asked for"):
        cursor.take(frames(1))


# A portion.


def ended(partition: int, rows: int, count: int) -> pa.KeyValueMetadata:
    return pa.KeyValueMetadata({PARTITION_ENDED: PartitionEnd(partition, rows, count).encode().decode()})


def of(*messages: int | pa.KeyValueMetadata) -> BatchBurst:
    """A burst of frames with so many rows, and of ends of partitions."""
    ends = [None if isinstance(each, int) else each for each in messages]
    counts = [each if isinstance(each, int) else 0 for each in messages]
    return BatchBurst([pa.record_batch({"n": range(count)}) for count in counts], metadata=ends)


def portion(*partitions: int) -> PortionCursor:
    parts = {partition: 10 + partition for partition in partitions}
    cursor = PortionCursor("d", parts, generation="g", start="s")
    assert cursor.ticket() == Ticket("d", generation="g", partitions=partitions, start="s")
    return cursor


def parts_of(bursts: list[BatchBurst]) -> list[tuple[int, list[int]]]:
    return [(burst.part, [batch.num_rows for batch in burst.batches]) for burst in bursts]


def test_each_partitions_batches_are_bursts_of_its_part() -> None:
    cursor = portion(5, 2, 7)
    assert parts_of(cursor.take(of(1, 0, 2, ended(5, 3, 3), ended(2, 0, 0), 4))) == [
        (15, [1, 0, 2]),
        (17, [4]),
    ]
    assert cursor.position == "partition 7 frame 1"
    assert cursor.take(of(ended(7, 4, 1))) == []
    assert cursor.end(None, {})


def test_a_portion_goes_on_at_the_partition_and_frame_where_it_was() -> None:
    cursor = portion(5, 2)
    cursor.take(of(1, ended(5, 1, 1)))
    assert cursor.ticket().partitions == (5, 2), "its end comes again"
    cursor.take(of(ended(5, 1, 1), 2, 3))
    assert cursor.ticket() == Ticket("d", generation="g", from_=2, partitions=(2,), start="s")
    cursor.take(of(ended(2, 5, 2)))
    assert cursor.end(None, {})


def test_a_connection_that_ends_inside_a_partition_is_broken() -> None:
    cursor = portion(5, 2)
    cursor.take(of(1, ended(5, 1, 1)))
    with pytest.raises(BrokenStream, match="inside partition 5"):
        cursor.end(None, {})


@pytest.mark.parametrize(
    "messages",
    [
        [1, ended(5, 2, 1)],
        [1, ended(5, 1, 2)],
        [1, ended(2, 1, 1)],
        [1, ended(5, 1, 1), ended(2, 0, 0), 1],
        [ended(5, 0, 0), ended(2, 0, 0), ended(7, 0, 0)],
    ],
    ids=["rows", "frames", "another partition", "frames behind the last", "an end behind the last"],
)
def test_a_portion_that_differs_is_an_error(messages: list[int | pa.KeyValueMetadata]) -> None:
    with pytest.raises(PartitionFailed, match="cannot be trusted"):
        portion(5, 2).take(of(*messages))


@settings(max_examples=examples(1))
@given(
    rows=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 9), max_size=12),
    together=st.integers(1, 4),
)
def test_a_portion_that_is_cut_anywhere_hands_out_each_batch_once(
    rows: list[list[int]], cuts: list[int], together: int
) -> None:
    """``rows`` are those of each partition's frames, ``cuts`` how many messages the connections bring."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cursors, "PARTITIONS_AT_ONCE", 2)
        assert read_with_cuts(rows, cuts, together) == [
            (partition, count) for partition, counts in enumerate(rows) for count in counts
        ]


def read_with_cuts(rows: list[list[int]], cuts: list[int], together: int) -> list[tuple[int, int]]:
    """The part and rows of each batch that is handed out."""
    partitions = [*range(len(rows))]
    cursor = PortionCursor("d", {each: each for each in partitions}, generation="g", start=None)
    handed_out: list[tuple[int, int]] = []
    left, is_whole = [*cuts], False
    while not is_whole:
        ticket = cursor.ticket()
        assert isinstance(ticket.partitions, tuple)
        messages: list[int | pa.KeyValueMetadata] = []
        for partition in ticket.partitions:
            counts = rows[partition]
            first = ticket.from_ if partition == ticket.partitions[0] else 0
            messages += [*counts[first:], ended(partition, sum(counts), len(counts))]
        cut = left.pop() if left else len(messages)
        for start in range(0, min(cut, len(messages)), together):
            for burst in cursor.take(of(*messages[start : min(start + together, cut)])):
                handed_out += [(burst.part, batch.num_rows) for batch in burst.batches]
        is_whole = cut >= len(messages) and cursor.end(None, {})
    return handed_out
