"""The model of changelogs in the torture notices a version that is lost, doubled or back."""

from __future__ import annotations

import pytest

from tests.load.call_history import CallHistory, Inexplicable
from tests.load.changelog_model import (
    Commit,
    Contents,
    CreateLog,
    DropLog,
    HoldVersion,
    LogState,
    ReadLog,
    Shown,
    Update,
)
from tests.load.name_model import Call

UPDATES = {
    1: Update({(1, 10, 0): 1, (2, 10, 0): 1}),
    2: Update({(1, 5, 1): 1}),
    3: Update({}, frozenset({2})),
}


class Story:
    """The calls of one changelog, told one after the other."""

    def __init__(self) -> None:
        self.history = CallHistory("log", 0.0, LogState())
        self.did(CreateLog(100), "made")

    def did(self, call: Call, answer: object) -> Story:
        self.history.begin(call)
        self.history.answered(call, lambda found: found == answer, answer)
        return self

    def gave_up(self, call: Call) -> Story:
        self.history.begin(call)
        self.history.give_up(call, "")
        return self

    def killed(self) -> Story:
        self.history.crash()
        return self

    def reads(self, *commits: int, after: int | None = None) -> Story:
        return self.did(ReadLog(1000, after=after), Shown(commits, len(commits), after))


def test_a_version_that_was_acknowledged_is_there_after_a_kill_and_once() -> None:
    Story().did(Commit(101, 1), 1).killed().reads(1)
    for wrong in ((), (1, 1)):
        with pytest.raises(Inexplicable):
            Story().did(Commit(101, 1), 1).killed().reads(*wrong)


@pytest.mark.parametrize("found", [(1,), (1, 2)])
def test_a_commit_that_was_given_up_may_be_there_or_not_but_stays_so(found: tuple[int, ...]) -> None:
    def told() -> Story:
        return Story().did(Commit(101, 1), 1).gave_up(Commit(102, 2)).killed().reads(*found)

    told().killed().reads(*found)
    with pytest.raises(Inexplicable):
        told().reads(*((1, 2) if found == (1,) else (1,)))


def test_a_transaction_is_committed_once_and_is_answered_as_the_first_time() -> None:
    first, again = Commit(101, 1, ("t", 1)), Commit(102, 1, ("t", 1))
    Story().gave_up(first).did(again, 1).reads(1)
    with pytest.raises(Inexplicable):
        Story().did(first, 1).did(again, 2)


def test_a_hold_keeps_its_version_readable() -> None:
    def told() -> Story:
        return Story().did(Commit(101, 1), 1).did(Commit(102, 2), 2)

    told().did(ReadLog(103, as_of=1), "compacted")
    with pytest.raises(Inexplicable):
        told().did(HoldVersion(104, "h", 1), 1).killed().did(ReadLog(103, as_of=1), "compacted")
    with pytest.raises(Inexplicable):
        told().did(ReadLog(103, as_of=1), "compacted").did(ReadLog(104, as_of=1), Shown((1,), 1, None))


def test_what_was_dropped_is_gone() -> None:
    Story().did(DropLog(101), "ok").did(ReadLog(102), "not found")
    with pytest.raises(Inexplicable):
        Story().did(Commit(101, 1), 1).did(DropLog(102), "ok").killed().reads(1)


def test_rows_are_those_of_the_rule() -> None:
    latest = Contents("latest", UPDATES)
    assert latest.shown(Shown((1, 2), 2, None)) == {(1, 10, 0): 1, (2, 10, 0): 1}
    assert latest.shown(Shown((1, 2, 3), 3, None)) == {(1, 10, 0): 1}
    assert latest.shown(Shown((1, 2, 3), 3, 1)) == {(2, 10, 0): -1}
    assert Contents("all", UPDATES).shown(Shown((1, 2), 2, 1)) == {(1, 5, 1): 1}
