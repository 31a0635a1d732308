"""How often rows are rewritten, how many runs there are, and that merging ends."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.changelogs import planning
from flight_server.changelogs.planning import FAN_IN, IDLE_SHARE, Plan, plan
from flight_server.memory import MemoryPool
from flight_server.runs import MemoryRun, Run, Updates
from tests.support.run_rows import latest

EMPTY = Updates.empty(latest())


class InMemory(MemoryRun):
    """So many rows, without the rows."""

    def __init__(self, rows: int) -> None:
        super().__init__(EMPTY, 1, 1, MemoryPool(None).reserve(0))
        self.count = rows

    @property
    def rows(self) -> int:
        return self.count

    @property
    def size_bytes(self) -> int:
        return 10 * self.count


@dataclass(eq=False)
class InFile:
    """So many rows in a file, without the file."""

    rows: int

    @property
    def size_bytes(self) -> int:
        return 10 * self.rows


def merged(runs: list[Run], found: Plan) -> list[Run]:
    """The runs after a merge that removes nothing; it merges neighbours of one kind."""
    start = runs.index(found.runs[0])
    assert tuple(runs[start : start + len(found.runs)]) == found.runs
    assert len({isinstance(run, MemoryRun) for run in found.runs}) == 1
    assert found.to_file or isinstance(found.runs[0], MemoryRun)
    rows = sum(run.rows for run in found.runs)
    one: Run = InFile(rows) if found.to_file else InMemory(rows)  # type: ignore[assignment]
    return [*runs[:start], *([one] if rows else []), *runs[start + len(found.runs) :]]


@given(st.lists(st.sampled_from([0, 1, 1, 1, 5, 300, 40_000, 100_000]), max_size=50), st.booleans())
@settings(max_examples=25, deadline=None)
def test_there_are_few_runs_and_each_row_is_rewritten_a_few_times(commits: list[int], short: bool) -> None:
    runs: list[Run] = []
    rewritten = 0
    for rows in commits:
        large = rows > planning.MEMORY_ROWS
        runs.append(InFile(rows) if large else InMemory(rows))  # type: ignore[arg-type]
        while (found := plan(runs, 0, idle=False, settled=False, short=short)) is not None:
            rewritten += sum(run.rows for run in found.runs)
            runs = merged(runs, found)
    total = sum(commits)
    classes = max(1, total).bit_length() // 2 + 2
    assert rewritten <= 2 * classes * max(1, total)
    assert len(runs) <= 4 * FAN_IN * classes
    steps = 0
    while (found := plan(runs, 0, idle=True, settled=False, short=False)) is not None and steps < 50:
        runs, steps = merged(runs, found), steps + 1
        if len(runs) == 1:
            break  # the compactor says ``settled`` when a merge of one run left nothing
    largest = max((run.rows for run in runs), default=0)
    assert steps < 50
    assert total - largest <= IDLE_SHARE * total or total <= planning.SMALL_ROWS


def test_a_pause_merges_memory_with_a_newer_file() -> None:
    runs: list[Run] = [InMemory(5), InFile(100_000)]  # type: ignore[list-item]
    found = plan(runs, 0, idle=True, settled=False, short=False)
    assert found == Plan((runs[0],), to_file=True)
    runs = merged(runs, found)
    assert plan(runs, 0, idle=True, settled=False, short=False) == Plan(tuple(runs), to_file=True)


def test_nothing_is_merged_without_a_reason() -> None:
    assert plan([], 0, idle=True, settled=False, short=True) is None
    few: list[Run] = [InMemory(5), InMemory(5)]
    assert plan(few, 0, idle=False, settled=False, short=False) is None
    assert plan(few, 0, idle=True, settled=True, short=False) is None


def test_memory_goes_to_a_file_when_memory_is_short_the_log_is_long_or_there_is_much() -> None:
    few: list[Run] = [InMemory(5), InMemory(5)]
    written = Plan(tuple(few), to_file=True)
    assert plan(few, 0, idle=False, settled=False, short=True) == written
    assert plan(few, planning.LOG_BYTES + 1, idle=False, settled=False, short=False) == written
    much: list[Run] = [InMemory(planning.MEMORY_ROWS), InMemory(1)]
    assert plan(much, 0, idle=False, settled=False, short=False) == Plan(tuple(much), to_file=True)


def test_newer_files_wait_for_the_memory_before_them() -> None:
    files: list[Run] = [InFile(10**6) for _ in range(FAN_IN)]  # type: ignore[misc]
    between: Run = InMemory(5)
    found = plan([between, *files], 0, idle=False, settled=False, short=False)
    assert found == Plan((between,), to_file=True)
    assert plan(files, 0, idle=False, settled=False, short=False) == Plan(tuple(files), to_file=True)
    assert plan(files, 0, idle=False, settled=False, short=False).of_files  # type: ignore[union-attr]
