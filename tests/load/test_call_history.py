"""The model of the torture notices a loss, a double and a resurrection, and allows what is allowed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.load import marked_rows
from tests.load.call_history import CallHistory, Inexplicable
from tests.load.marked_rows import Rows, Seen, WrongRows
from tests.load.name_model import Call, Create, Drop, Found, Put, Read, Seal, Stage


class Story:
    """The calls of one name, told one after the other."""

    def __init__(self) -> None:
        self.history = CallHistory("d", 0.0)

    def begun(self, *calls: Call) -> Story:
        for call in calls:
            self.history.begin(call)
        return self

    def says(self, call: Call, answer: object = "ok") -> Story:
        self.history.answered(call, lambda found: found == answer, answer)
        return self

    def did(self, call: Call, answer: object = "ok") -> Story:
        return self.begun(call).says(call, answer)

    def gave_up(self, call: Call) -> Story:
        self.begun(call).history.give_up(call, "")
        return self

    def reads(self, *writes: int) -> Story:
        return self.did(Read(1000), Found("sealed", writes))

    def reads_nothing(self) -> Story:
        return self.did(Read(1000), "not found")

    def settled(self) -> Story:
        self.history.settle()
        return self

    def killed(self) -> Story:
        self.history.crash()
        return self


def durable(number: int) -> Story:
    """A durable stream with the rows of this write."""
    created = Create(number - 1, "stream", durable=True, leased=False)
    return Story().did(created, "made").did(Put(number, overwrites=False))


def test_what_was_acknowledged_durable_is_there_after_a_kill() -> None:
    durable(1).killed().reads(1)
    with pytest.raises(Inexplicable, match="put=1"):
        durable(1).killed().reads_nothing()


def test_what_was_not_durable_is_gone_after_a_kill() -> None:
    Story().did(Put(1, overwrites=False)).reads(1).killed().reads_nothing()
    with pytest.raises(Inexplicable):
        Story().did(Put(1, overwrites=False)).killed().reads(1)


def test_what_was_dropped_does_not_come_back() -> None:
    durable(1).did(Drop(2)).killed().reads_nothing()
    with pytest.raises(Inexplicable):
        durable(1).did(Drop(2)).killed().reads(1)


@pytest.mark.parametrize("found", [1, 2])
def test_an_overwrite_that_was_given_up_may_be_there_or_not(found: int) -> None:
    durable(1).gave_up(Put(2, overwrites=True)).reads(found)
    durable(1).gave_up(Put(2, overwrites=True)).killed().reads(found).killed().reads(found)


def test_a_staged_write_that_was_given_up_and_dropped_does_not_come_back() -> None:
    def told() -> Story:
        staged = Stage(2, write=2, mode="overwrite", durable=True, leased=False)
        return durable(1).did(staged).gave_up(Seal(3, write=2)).did(Drop(4, write=2))

    told().killed().reads(1)
    with pytest.raises(Inexplicable):
        told().reads(1).killed().reads(2)


def test_an_append_adds_its_rows_once_however_often_its_seal_is_made() -> None:
    append = Stage(2, write=2, mode="append", durable=False, leased=False)
    again = Stage(4, write=4, mode="append", durable=False, leased=False)

    def told() -> Story:
        first = Story().did(Put(1, overwrites=False)).did(append).gave_up(Seal(3, 2, ("query", 7)))
        return first.did(Seal(5, 2, ("query", 7))).did(again).did(Seal(6, 4, ("query", 7)))

    told().reads(1, 2)
    for wrong in ((1,), (1, 2, 4), (1, 2, 2), (2, 1)):
        with pytest.raises(Inexplicable):
            told().reads(*wrong)


def test_readers_that_come_while_a_name_changes_may_get_either_but_never_go_back() -> None:
    overwrite, early, late = Put(2, overwrites=True), Read(11), Read(12)
    story = durable(1).begun(overwrite, early).says(early, Found("sealed", (2,))).begun(late)
    with pytest.raises(Inexplicable):
        story.says(late, Found("sealed", (1,)))


def test_what_has_a_short_lease_may_go_but_does_not_come_back() -> None:
    def leased() -> Story:
        return (
            Story().did(Create(1, "stream", durable=True, leased=True), "made").did(Put(2, overwrites=False))
        )

    leased().reads(2).reads_nothing()
    leased().killed().reads(2)
    with pytest.raises(Inexplicable):
        leased().reads_nothing().killed().reads(2)


def rows(write: int = 1, stream: int = 0, start: int = 0, count: int = 10) -> pa.RecordBatch:
    return marked_rows.batch(write, stream, start, count)


def test_rows_that_are_whole_are_those_of_their_write() -> None:
    seen = Seen()
    seen.add(0, rows())
    seen.add(0, rows(start=10, count=5))
    seen.add(1, rows(stream=1))
    assert seen.writes({1: {0: 15, 1: 10}}) == (1,)


def see(batches: list[pa.RecordBatch], written: dict[int, Rows]) -> None:
    seen = Seen()
    for batch in batches:
        seen.add(0, batch)
    seen.writes(written)


@pytest.mark.parametrize(
    ("batches", "reason"),
    [
        ([rows(), rows()], "come twice"),
        ([rows(), rows(start=11)], "are missing"),
        ([rows(), rows(write=2)], "write 2 has"),
        ([rows(count=5)], "write 1 has"),
        ([rows().set_column(2, "number", rows(start=3).column(2))], "are missing|another check"),
        ([rows().set_column(4, "text", rows(write=2).column(4))], "another dictionary"),
    ],
)
def test_rows_that_lack_come_twice_or_are_mixed_are_noticed(
    batches: list[pa.RecordBatch], reason: str
) -> None:
    with pytest.raises(WrongRows, match=reason):
        see(batches, {1: {0: 10}, 2: {0: 20}})
