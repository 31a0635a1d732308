"""Changelogs through the Python client, a real server process and real sockets, on both lanes."""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from flight_server.protocol.errors import (
    Compacted,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    StaleTicket,
)
from spark_client import Changelog, ShuffleClient, latest, top_k
from tests.support.polling import eventually
from tests.support.rates import (
    BY,
    LANES,
    RATES,
    Row,
    counted,
    folded,
    next_of,
    rates_of,
    rows_of,
)


def test_each_put_is_a_version_and_a_snapshot_has_what_the_rule_keeps(rates: Changelog) -> None:
    assert (rates.since, rates.upper) == (0, 0)
    assert rates.snapshot().version == 0
    assert rates.snapshot().table.equals(rates_of())
    assert rates.put(rates_of(("EUR", 1, 1.1), ("USD", 1, 1.0))) == 1
    assert rates.put(rates_of(("EUR", 2, 1.2)).to_batches()[0]) == 2
    # Out of order: it is not the latest.
    assert rates.put(rates_of(("EUR", 1, 1.5)).to_reader()) == 3
    assert rates.upper == 3
    now = rates.snapshot()
    assert (now.version, rows_of(now.table)) == (3, [("EUR", 2, 1.2), ("USD", 1, 1.0)])
    assert now.table.schema == RATES
    then = rates.snapshot(as_of=1)
    assert (then.version, rows_of(then.table)) == (1, [("EUR", 1, 1.1), ("USD", 1, 1.0)])


def test_a_batch_of_an_iterator_is_sent_before_the_next_one_is_made(
    shuffle: ShuffleClient, rates: Changelog
) -> None:
    before = shuffle.statistics()["frames_in"]

    def batches() -> Iterator[pa.RecordBatch]:
        for time in range(2):
            yield rates_of(("EUR", time, 1.0)).to_batches()[0]
            eventually(lambda: shuffle.statistics()["frames_in"], before + time + 1)

    assert rates.put(batches()) == 1


def test_a_follower_begins_with_the_snapshot_and_gets_each_change(rates: Changelog) -> None:
    rates.put(rates_of(("EUR", 1, 1.1), ("USD", 1, 1.0)))
    with rates.follow() as follower:
        first = next(follower)
        assert first.version == 1
        assert rows_of(first.table) == [("EUR", 1, 1.1, 1), ("USD", 1, 1.0, 1)]
        assert rates.statistics()["followers"] == 1, "so no fold passes what comes next"
        rates.put(rates_of(("EUR", 2, 1.2)))
        second = next(follower)
        assert second.version == 2
        assert rows_of(second.table) == [("EUR", 1, 1.1, -1), ("EUR", 2, 1.2, 1)]
        # A version that changes nothing for a reader still comes.
        rates.put(rates_of(("EUR", 1, 1.5)))
        third = next(follower)
        assert (third.version, third.table.num_rows) == (3, 0)
        assert third.table.schema == first.table.schema


def test_a_stalled_and_a_cancelled_follower_hold_back_no_other(rates: Changelog) -> None:
    stalled, cancelled = rates.follow(after=0), rates.follow(after=0)
    # 3 MB of deltas for each put: together more than sockets, windows and the server's buffers take.
    some = rates_of(*((f"C{number:06}".ljust(1000), 1, 1.0) for number in range(1500)))
    rates.put(some)
    assert next(stalled).version == 1
    assert next(cancelled).version == 1
    cancelled.close()
    rows: Counter[Row] = Counter()
    with rates.follow(after=0) as follower:
        for time in range(2, 8):
            version = rates.put(some.set_column(1, RATES.field("time"), pa.array([time] * some.num_rows)))
            for table in next_of(follower, version)[-1:]:
                rows = counted(table)
        assert sum(rows.values()) == 2 * some.num_rows
    now = rates.snapshot()
    found = counted(rates.snapshot(as_of=1).table)
    for table in next_of(stalled, now.version):
        found = folded(found, table)
    assert found == counted(now.table)
    stalled.close()


@pytest.mark.parametrize("shuffle", LANES, indirect=True)
def test_folding_random_updates_gives_every_snapshot(shuffle: ShuffleClient) -> None:
    ranks = shuffle.changelog("ranks", RATES, keep=top_k(2), delay_seconds=3600.0, **BY)
    chance = random.Random(7)
    put: list[Row] = []
    follower = ranks.follow(after=0)
    found: Counter[Row] = Counter()
    for version in range(1, 22):
        new = [(chance.choice("ABCD"), chance.randrange(50), float(version)) for _ in range(3)]
        gone = [put.pop(chance.randrange(len(put)))] if version % 3 == 0 else []
        put += new
        diffs = pa.array([1] * len(new) + [-1] * len(gone))
        assert ranks.put(rates_of(*new, *gone).append_column("_diff", diffs)) == version
        for table in next_of(follower, version):
            found = folded(found, table)
        expected: Counter[Row] = Counter()
        for currency in "ABCD":
            expected.update(sorted((row for row in put if row[0] == currency), key=lambda row: row[1:])[-2:])
        assert found == expected == counted(ranks.snapshot().table)
    follower.close()
    for version in range(0, 21, 5):
        base = counted(ranks.snapshot(as_of=version).table)
        assert folded(base, ranks.deltas(version).table) == found


def test_a_held_version_stays_readable_and_an_older_one_says_to_take_a_snapshot(
    shuffle: ShuffleClient,
) -> None:
    rates = shuffle.changelog("rates", RATES, keep=latest(), delay_seconds=0.0, **BY)
    for time in range(1, 4):
        rates.put(rates_of(("EUR", time, float(time))))
    with rates.hold(lease_seconds=600.0) as hold:
        assert hold.version == 3
        for time in range(4, 9):
            rates.put(rates_of(("EUR", time, float(time))))
        eventually(lambda: rates.since, 3)
        assert [each["version"] for each in rates.statistics()["holds"]] == [3]
        assert rows_of(rates.snapshot(as_of=3).table) == [("EUR", 3, 3.0)]
        with pytest.raises(Compacted) as caught:
            rates.snapshot(as_of=2)
        assert caught.value.detail["since"] == 3
        with pytest.raises(Compacted):
            rates.deltas(2)
        with pytest.raises(Compacted), rates.follow(after=2) as follower:
            next(follower)
        with pytest.raises(Compacted):
            rates.hold(2)
        hold.advance(5)
        assert hold.version == 5
        eventually(lambda: rates.since, 5)
    eventually(lambda: rates.since, 8)
    assert rates.statistics()["holds"] == []


def test_all_holds_are_listed_with_their_owners_and_any_client_ends_one(shuffle: ShuffleClient) -> None:
    rates = shuffle.changelog("rates", RATES, keep=latest(), delay_seconds=0.0, **BY)
    rates.put(rates_of(("EUR", 1, 1.0)))
    with rates.hold(lease_seconds=600.0) as mine:
        rates.put(rates_of(("EUR", 2, 1.0)))
        with rates.hold(lease_seconds=60.0):
            first, second = rates.holds()
            assert (first.name, first.version, second.version) == (mine.name, 1, 2)
            assert f"process {os.getpid()} on {socket.gethostname()}" in str(first.owner)
            assert first.held_seconds >= 0
            assert 60 < first.lease_left_seconds <= 600
            assert rates.statistics()["held_back"]["hold"] == mine.name
            assert rates.statistics()["waits_for"].startswith(f"hold {mine.name!r} of ")
            other = shuffle.changelog("rates")
            other.release(first)
            assert [hold.name for hold in rates.holds()] == [second.name]
            eventually(lambda: rates.since, 2)
            assert rates.statistics()["held_back"] is None
            for gone in (first, mine, "unknown"):
                with pytest.raises(NotFound, match="has no hold"):
                    other.release(gone)


def test_a_hold_is_renewed_while_it_is_open(shuffle: ShuffleClient) -> None:
    rates = shuffle.changelog("rates", RATES, keep=latest(), delay_seconds=0.0, **BY)
    rates.put(rates_of(("EUR", 1, 1.0)))

    def left_seconds() -> float:
        return float(rates.statistics()["holds"][0]["lease_left_seconds"])

    with rates.hold(lease_seconds=1.5):
        before = left_seconds()
        eventually(lambda: left_seconds() > before, expected=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda rates: rates.put(pa.table({"currency": ["EUR"]})),
        lambda rates: rates.put(rates_of(("EUR", 1, 1.1)).append_column("x", pa.array([1]))),
        lambda rates: rates.retract(rates_of(("EUR", 1, 1.1)).append_column("_diff", pa.array([1.0]))),
        lambda rates: rates.put(rates_of(("EUR", 1, 1.1)).set_column(1, "time", pa.array(["now"]))),
        lambda rates: rates.snapshot(as_of=1),
        lambda rates: rates.deltas(0, 1),
        lambda rates: rates.deltas(1),
        lambda rates: next(rates.follow(after=1)),
        lambda rates: rates.hold(1),
    ],
    ids=["missing", "unknown", "float", "type", "as_of", "deltas", "after", "follow", "hold"],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(
    rates: Changelog, call: Callable[[Changelog], object]
) -> None:
    with pytest.raises(InvalidRequest):
        call(rates)
    assert rates.upper == 0
    assert rates.put(rates_of(("EUR", 1, 1.1))) == 1


def test_declaring_it_again_finds_it_and_another_declaration_is_refused(
    shuffle: ShuffleClient, rates: Changelog
) -> None:
    rates.put(rates_of(("EUR", 1, 1.1)))
    again = shuffle.changelog("rates", RATES, keep=latest(), delay_seconds=3600.0, **BY)
    assert again.upper == 1
    assert shuffle.changelog("rates").schema == RATES
    assert shuffle.changelog("rates", keep=latest(), delay_seconds=3600.0, **BY).upper == 1
    with pytest.raises(InvalidRequest):
        shuffle.changelog("rates", keep=top_k(2), delay_seconds=3600.0, **BY)
    with pytest.raises(InvalidRequest):
        shuffle.changelog("rates", RATES.remove(2), keep=latest(), delay_seconds=3600.0, **BY)
    shuffle.put("table", rates_of())
    with pytest.raises(InvalidRequest, match="is no changelog"):
        shuffle.changelog("table")
    with pytest.raises(NotFound, match="has no dataset 'nothing'"):
        shuffle.changelog("nothing")


def test_a_handle_of_a_dropped_changelog_does_not_reach_the_next_one_of_its_name(
    shuffle: ShuffleClient, rates: Changelog
) -> None:
    rates.put(rates_of(("EUR", 1, 1.1)))
    follower = rates.follow(after=0)
    assert next(follower).version == 1
    rates.drop()
    with pytest.raises(NotFound):
        rates.drop()
    other = shuffle.changelog("rates", RATES)
    other.put(rates_of(("USD", 1, 1.0)))
    other.put(rates_of(("USD", 2, 1.0)))
    for call in (rates.snapshot, lambda: rates.deltas(1), lambda: rates.upper, lambda: rates.put(rates_of())):
        with pytest.raises(StaleTicket):
            call()
    with pytest.raises(FlightShuffleError):
        next(follower)
    assert other.upper == 2
