"""A changelog and a model that keeps its whole history, through any sequence of commits, folds, rewrites, crashes and
reads.

:class:`History` retracts only what was asserted after ``since``, and what was never asserted, and pairs come in the
order of ``order_by``: for these a changelog promises to be what the whole history says. A later retraction may find its
runner-up gone; that is what ``delay_seconds`` means. :class:`AnyPattern` asserts and retracts anything, and looks
whether compaction or a crash makes another one of a version that was read once, and which rows a fold of everything
leaves.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flight_server.kinds.changelog import compaction, views
from flight_server.kinds.changelog.compaction import Work
from flight_server.kinds.changelog.runs import MAX_HASH, MemoryRun, Run, run_files
from flight_server.protocol import KeepRule, Transaction
from tests.support import keep_model
from tests.support.changelog_store import Engine
from tests.support.examples import examples
from tests.support.keep_model import SCHEMA, Row
from tests.support.ram_directory import ram_directory

DELETED = 0
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
RULES: dict[str, dict[str, Any] | None] = {
    "latest": LATEST,
    "top_k": {"rule": "top_k", "key": ["key"], "order_by": ["-time", "value"], "k": 2},
    "until_closed": {
        "rule": "until_closed",
        "key": ["key"],
        "closed_by": {"kind": "closed"},
        "keep": {"rule": "latest", "order_by": ["value", "-time"]},
    },
    "pair": {
        "rule": "pair",
        "key": ["key"],
        "kind": "kind",
        "values": ["send", "recv"],
        "order_by": ["time", "-value"],
    },
    "every row": None,
}

rows = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from(["bid", "closed", None]),
    st.integers(0, 2),
)
paired_rows = st.tuples(
    st.sampled_from(["a", "b"]), st.integers(1, 3), st.sampled_from(["send", "recv", None]), st.integers(0, 1)
)


class History(RuleBasedStateMachine):
    """See the module's text."""

    keep: dict[str, Any] | None = LATEST
    rows = rows

    def __init__(self) -> None:
        super().__init__()
        self._ended = ExitStack()
        self.base = self._ended.enter_context(ram_directory())
        self.copies = 0
        self.versions: list[list[tuple[Row, int]]] = []  # of a delete its keys, with the diff ``DELETED``

    @initialize()
    def start(self) -> None:
        directory = self.base / "0"
        directory.mkdir()
        self.engine = Engine(directory, SCHEMA, self.keep)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
        self._ended.close()

    # The model

    def counts(self, version: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for updates in self.versions[:version]:
            for row, diff in updates:
                if diff == DELETED:
                    found = Counter({each: count for each, count in found.items() if self.key(each) != row})
                else:
                    found[row] += diff
        return found

    def key(self, row: Row) -> Row:
        assert self.keep is not None
        return tuple(row[SCHEMA.names.index(name)] for name in self.keep["key"])

    def shown(self, version: int) -> Counter[Row]:
        there = +self.counts(version)
        if self.keep is None:
            return there
        return keep_model.kept(KeepRule.parse(self.keep), there, SCHEMA)

    # What happens

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        changelog, before = self.engine.changelog, self.counts(len(self.versions))
        late = [row for updates in self.versions[changelog.since :] for row, diff in updates if diff > 0]
        updates: list[tuple[Row, int]] = []
        for row in data.draw(st.lists(self.rows, max_size=4)):
            if self.keep is not None and self.keep["rule"] == "pair":
                updates.append(((row[0], len(self.versions), *row[2:]), 1))
            elif before[row] == 0 and data.draw(st.integers(0, 4)) == 0:
                updates.append((row, -1))  # before its assertion
            else:
                updates.append((row, 1))
        wants: int = data.draw(st.integers(0, 1))
        if late and wants:
            row = data.draw(st.sampled_from(late))
            if before[row] > 0:
                updates.append((row, -1))
        self.versions.append(updates)
        transaction = Transaction("writer", len(self.versions))
        assert self.engine.commit(updates, transaction) == len(self.versions)
        if data.draw(st.integers(0, 5)) == 0:
            assert self.engine.commit(updates, transaction) == len(self.versions), (
                "a repetition changes nothing"
            )

    @precondition(lambda self: self.keep is not None)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        keys = [self.key(row) for row in data.draw(st.lists(self.rows, max_size=3))]
        self.versions.append([(key, DELETED) for key in keys])
        assert self.engine.delete(keys, Transaction("writer", len(self.versions))) == len(self.versions)

    @precondition(lambda self: self.late_copies())
    @rule()
    def retract_all_and_put_again(self) -> None:
        """All copies of a key's only row, however old they are."""
        row, count = self.late_copies()[0]
        for diff in (-count, 1):
            self.versions.append([(row, diff)])
            assert self.engine.commit(self.versions[-1]) == len(self.versions)

    def late_copies(self) -> list[tuple[Row, int]]:
        """The rows that are, and were, the only ones of their keys."""
        if self.keep is None:
            return []
        counts = self.counts(len(self.versions))
        keys = Counter(row[0] for row in counts)
        return [(row, count) for row, count in counts.items() if keys[row[0]] == 1 and count > 0]

    def kinds(self) -> list[str]:
        """What work may begin beside the work that goes on."""
        contents, going = self.engine.changelog.contents, self.engine.changelog.working
        if len(going) == 2:
            return []
        in_memory = [_is_memory(run) for run in contents.recent]
        found = []
        if not any(each.in_memory for each in going):
            found += ["rewrite in memory", "to a file"] if any(in_memory) else []
        if all(each.in_memory for each in going):
            found += ["fold", "fold in memory", *(["rewrite files"] if not all(in_memory) else [])]
        return found

    @precondition(lambda self: self.kinds())
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        engine, contents = self.engine, self.engine.changelog.contents
        kind = data.draw(st.sampled_from(self.kinds()), label="kind")
        if kind.startswith("fold"):
            first = data.draw(st.integers(0, len(contents.bases.ranges) - 1))
            last = data.draw(st.integers(first, len(contents.bases.ranges) - 1))
            since = data.draw(st.integers(engine.changelog.since, engine.changelog.upper))
            engine.begin_fold(since, first, last, to_file=kind == "fold")
            return
        runs = [run for run in contents.recent if _is_memory(run) is (kind != "rewrite files")]
        if kind != "to a file":
            places = st.lists(st.integers(0, len(runs) - 1), min_size=1, unique=True)
            runs = [runs[place] for place in data.draw(places)]
        engine.begin_rewrite(runs, to_file=kind != "rewrite in memory")

    @precondition(lambda self: self.engine.changelog.working)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        next(self.draw_work(data).steps, None)

    @precondition(lambda self: self.engine.changelog.working)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self.engine.publish(self.draw_work(data))

    def draw_work(self, data: st.DataObject) -> Work:
        # Hypothesis may keep what it draws from.
        working = self.engine.changelog.working
        return working[data.draw(st.integers(0, len(working) - 1))]

    @rule()
    def crash(self) -> None:
        """Go on with what the disk has at this moment."""
        self.copies += 1
        directory = self.base / str(self.copies)
        self.engine.copy_to(directory)
        self.engine.close()
        self.engine = Engine(directory, SCHEMA, self.keep)
        assert self.engine.changelog.upper == len(self.versions)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        changelog = self.engine.changelog
        version = data.draw(st.integers(changelog.since, changelog.upper))
        after = data.draw(st.integers(changelog.since, version))
        assert self.engine.snapshot(version) == self.shown(version)
        self.check_deltas(after, version)

    def check_deltas(self, after: int, upto: int) -> None:
        before, now = self.shown(after), self.shown(upto)
        changes = {row: now[row] - before[row] for row in before | now if now[row] != before[row]}
        assert self.engine.deltas(after, upto) == changes

    @invariant()
    def every_version_is_there(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.changelog.upper == len(self.versions)


class AnyPattern(History):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.first_read: dict[int, Counter[Row]] = {0: Counter()}

    delete = None  # type: ignore[assignment]  # see ``History``

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        diffs = st.sampled_from([1, 1, 1, 2, -1, -1, -3])
        self._commit(data.draw(st.lists(st.tuples(self.rows, diffs), max_size=5)))

    @rule(data=st.data())
    def commit_together(self, data: st.DataObject) -> None:
        """Versions of one group, of which some have no rows, or rows that add up to none."""
        row = data.draw(self.rows)
        kinds = st.sampled_from([[], [(row, 1), (row, -1)], [(row, 1)], [(row, -1)]])
        groups = data.draw(st.lists(kinds, min_size=1, max_size=3))
        versions = self.engine.commit_together(*groups)
        assert versions == list(range(len(self.versions) + 1, len(self.versions) + 1 + len(groups)))
        self.versions += groups
        for version in versions:
            self.first_read[version] = self.engine.snapshot(version)

    def _commit(self, updates: list[tuple[Row, int]]) -> None:
        self.versions.append(updates)
        version = self.engine.commit(updates)
        self.first_read[version] = self.engine.snapshot(version)

    @precondition(lambda self: self.late_copies())
    @rule()
    def retract_all_and_put_again(self) -> None:
        row, count = self.late_copies()[0]
        self._commit([(row, -count)])
        self._commit([(row, 1)])

    @rule()
    def crash(self) -> None:
        super().crash()
        self.check()

    @precondition(lambda self: self.engine.changelog.working)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        super().publish(data)
        self.check()

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.check()

    def check(self) -> None:
        changelog = self.engine.changelog
        for version in range(changelog.since, changelog.upper + 1):
            assert self.engine.snapshot(version) == self.first_read[version]
        before, now = self.first_read[changelog.since], self.first_read[changelog.upper]
        changes = {row: now[row] - before[row] for row in before | now if now[row] != before[row]}
        assert self.engine.deltas(changelog.since, changelog.upper) == changes

    @precondition(lambda self: not self.engine.changelog.working)
    @rule()
    def fold_all(self) -> None:
        """Of what cannot be asked for any more all goes that nothing shows, but for retractions that wait."""
        changelog = self.engine.changelog
        before = self.stored()
        self.engine.fold()
        self.check()
        after, shown = self.stored(), self.first_read[changelog.upper]
        waiting = {row for row, count in before.items() if count < 0}
        kept = waiting | shown.keys()
        if self.keep is not None and self.keep["rule"] == "until_closed":
            closing = [row for row in after.keys() - kept if row[2] == "closed"]
            assert len({row[0] for row in closing}) == len(closing)
            kept |= set(closing)
        alone = self.keep is not None and self.keep["rule"] == "pair"
        assert after == {
            row: shown[row] if alone and count > 0 else count
            for row, count in before.items()
            if count and row in kept
        }

    def stored(self) -> Counter[Row]:
        """The sum of each row's diffs."""
        found: Counter[Row] = Counter()
        for run in self.engine.changelog.contents.sources:
            updates = run.between(0, MAX_HASH)
            for row, diff in zip(updates.rows.to_pylist(), updates.diffs.tolist(), strict=True):
                found[tuple(row.values())] += diff
        return found


def _is_memory(run: Run) -> bool:
    return isinstance(run, MemoryRun)


CASES = [
    *((AnyPattern, name, False) for name in RULES),
    (History, "latest", False),
    (History, "pair", True),
    *(pytest.param(History, name, False, marks=pytest.mark.long) for name in RULES if name != "latest"),
    *(pytest.param(History, name, True, marks=pytest.mark.long) for name in ("latest", "until_closed")),
]


@pytest.mark.parametrize(("machine", "name", "large_keys"), CASES)
def test_a_changelog_is_what_its_whole_history_says(
    machine: type[History], name: str, large_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 3)
    monkeypatch.setattr(views, "SLICE_ROWS", 3)
    monkeypatch.setattr(run_files, "BLOCK_ROWS", 4)
    monkeypatch.setattr(compaction, "RANGE_ROWS", 2)
    if large_keys:
        monkeypatch.setattr(views, "SLICE_BYTES", 150)
    strategy = paired_rows if name == "pair" else rows

    class Machine(machine):  # type: ignore[misc, valid-type]
        keep = RULES[name]
        rows = strategy

    many = settings(
        # The pieces of a key take some 10 ms.
        max_examples=examples(0.15 if large_keys else 0.25),
        stateful_step_count=25,  # it reads all versions again and again
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=many)
