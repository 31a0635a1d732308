"""The jobs of a run, as they are decided before it: their order, what each reads and writes, and what it releases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_client.arrow import Declared
from spark_client.pipeline.decided_jobs import PlannedJob, jobs_of, outdated, reads_of
from spark_client.pipeline.nodes import Exchange, Input, Leg, Origin, Pair, PlanPart, exchanges
from spark_client.steps import FinalStage, JoinStage, MapStage, PartialStage, SortStage, Stage

NOTHING: Any = None
DECLARED = Declared("a stage", pa.schema([]))
FUNCTION = MapStage(NOTHING, DECLARED)
PARTIAL, FINAL = PartialStage(NOTHING, DECLARED), FinalStage(NOTHING, (), DECLARED)
SORT = SortStage(DECLARED, ())


def leg(*parts: PlanPart) -> Leg:
    return Leg(parts or (PlanPart(Input(NOTHING, "rows")),), StructType([]), DECLARED)


def of(origin: Origin, *stages: Stage) -> Leg:
    return leg(PlanPart(origin, stages))


def sent(name: str, rows: Leg | Exchange | None = None, *keys: str, **arguments: Any) -> Exchange:
    """An exchange of the rows of a leg, or of another exchange."""
    given = of(rows) if isinstance(rows, Exchange) else rows or leg()
    return Exchange(given, 4, keys, label=name, **arguments)


def joined(
    left: Exchange, right: Exchange, how: str = "inner", before: Sequence[Stage] = (), *after: Stage
) -> Leg:
    """The rows of both; ``before`` are stages of the right side."""
    stage = JoinStage(DECLARED, SimpleNamespace(how=how))  # type: ignore[arg-type]  # all that a decision asks
    return of(Pair(PlanPart(left), PlanPart(right, tuple(before))), stage, *after)


def shown(jobs: Collection[PlannedJob]) -> list[str]:
    """Each job as ``written(read, …) + written(read, …) - released``."""
    return [
        " + ".join(f"{each.exchange}({_names(read.exchange for read in each.reads)})" for each in job.writes)
        + "".join(f" - {each}" for each in job.releases)
        for job in jobs
    ]


def _names(nodes: Any) -> str:
    return ", ".join(str(node) for node in nodes)


def pieces(of_leg: Leg) -> list[str]:
    """What the leg's tasks may read in pieces."""
    return [str(read.exchange) for part in of_leg.parts for read in reads_of(part) if read.may_cut]


def test_rows_that_no_exchange_sends_need_no_job() -> None:
    assert jobs_of(exchanges(leg())) == []


def test_a_chain_is_a_job_for_each_exchange_which_releases_the_one_before() -> None:
    a = sent("a")
    b = sent("b", of(a, FUNCTION))
    c = sent("c", b)
    assert shown(jobs_of([c])) == ["a()", "b(a) - a", "c(b) - b"]


def test_both_sides_of_a_join_are_one_job_and_are_read_by_the_next() -> None:
    a, b = sent("a", None, "k"), sent("b", None, "k")
    c = sent("c", joined(a, b))
    assert shown(jobs_of([c])) == ["a() + b()", "c(a, b) - a - b"]
    assert shown(jobs_of(exchanges(joined(a, b)))) == ["a() + b()"]


def test_the_sides_of_a_join_run_after_what_each_of_them_needs() -> None:
    a, b = sent("a"), sent("b")
    c, d = sent("c", a, "k"), sent("d", b, "k")
    assert shown(jobs_of(exchanges(joined(c, d)))) == ["a()", "b()", "c(a) + d(b) - a - b"]


def test_a_part_of_a_union_that_needs_another_runs_after_it_together_with_the_rest() -> None:
    a = sent("a")
    b, c = sent("b", of(a, FUNCTION)), sent("c")
    assert shown(jobs_of(exchanges(leg(PlanPart(a), PlanPart(b), PlanPart(c))))) == ["a()", "b(a) + c()"]


def test_an_exchange_with_several_readers_runs_once_and_stays_until_the_last() -> None:
    a = sent("a")
    b, c = sent("b", of(a, FUNCTION), "k"), sent("c", a, "k")
    assert shown(jobs_of(exchanges(joined(b, c)))) == ["a()", "b(a) + c(a) - a"]
    d = sent("d", joined(b, a))
    assert shown(jobs_of([d])) == ["a()", "b(a)", "d(b, a) - a - b"]
    assert shown(jobs_of([sent("itself", joined(a, a))])) == ["a()", "itself(a, a) - a"]


def test_what_the_run_is_for_is_not_released_though_a_job_reads_it() -> None:
    a = sent("a")
    b = sent("b", of(a, FUNCTION))
    assert shown(jobs_of(exchanges(leg(PlanPart(a), PlanPart(b))))) == ["a()", "b(a)"]


def test_an_aggregate_is_written_in_parts_and_its_groups_by_the_next_job() -> None:
    rows = of(Input(NOTHING, "rows"), PARTIAL)
    groups = sent("groups", rows, "k")
    top = sent("top", of(groups, FINAL))
    (first, second) = jobs_of([top])
    assert shown([first, second]) == ["groups()", "top(groups) - groups"]
    assert first.writes[0].leg is rows
    assert second.writes[0].leg.parts[0].stages == (FINAL,)
    assert second.writes[0].reads[0].may_cut is False


def test_a_persisted_exchange_has_a_job_of_its_own_and_is_not_released() -> None:
    a, b = sent("a", None, "k"), sent("b", None, "k")
    c = sent("c", joined(a, b))
    assert shown(jobs_of([c], kept=[a])) == ["a()", "b()", "c(a, b) - b"]


def test_nothing_runs_for_a_persisted_exchange_that_is_there() -> None:
    a = sent("a")
    b = sent("b", a, "k")
    c = sent("c", None, "k")
    d = sent("d", joined(b, c))
    assert shown(jobs_of([d], written=[b], kept=[b])) == ["c()", "d(b, c) - c"]
    assert jobs_of([b], written=[b], kept=[b]) == []
    # Another reader needs what is upstream of it all the same.
    assert shown(jobs_of([d, sent("e", a)], written=[b], kept=[b])) == [
        "c()",
        "a()",
        "d(b, c) + e(a) - c - a",
    ]


def test_a_run_that_has_lost_a_dataset_writes_it_and_what_it_needs_again() -> None:
    a, x = sent("a"), sent("x", None, "k")
    b = sent("b", of(a, FUNCTION), "k")
    c = sent("c", joined(b, x))
    d = sent("d", c)
    jobs = jobs_of([d])
    assert shown(jobs) == ["a()", "b(a) + x() - a", "c(b, x) - b - x", "d(c) - c"]
    # After the second job b is gone; what the first one wrote was released.
    assert shown(jobs_of([d], written=[x])) == ["a()", "b(a) - a", "c(b, x) - b - x", "d(c) - c"]
    # A job that is left reads what is there, and releases it.
    assert shown(jobs_of([d], written=[b, x])) == shown(jobs[2:])


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (of(sent("a")), ["a"]),
        (of(sent("a"), FUNCTION), ["a"]),
        (of(sent("a"), SORT), []),
        (of(sent("a", None, "k")), ["a"]),
        (of(sent("a", None, "k"), PARTIAL), ["a"]),
        (of(sent("a", None, "k"), FUNCTION), []),
        (of(sent("a", None, "k", split=True), FUNCTION), ["a"]),
        (of(sent("a", split=False)), []),
        (joined(sent("a", None, "k"), sent("b", None, "k")), ["a", "b"]),
        (joined(sent("a", None, "k"), sent("b", None, "k"), "left"), ["a"]),
        (joined(sent("a", None, "k"), sent("b", None, "k"), "full"), []),
        # A function on one side would run once for each piece of the other.
        (joined(sent("a", None, "k"), sent("b", None, "k"), "inner", [FUNCTION]), []),
        (joined(sent("a", None, "k"), sent("b", None, "k"), "inner", [PARTIAL]), ["b"]),
        (joined(sent("a", None, "k"), sent("b", None, "k"), "inner", [], SORT), []),
        (joined(sent("a", None, "k", split=False), sent("b", None, "k")), []),
        (leg(PlanPart(sent("a")), PlanPart(sent("b"), (SORT,))), ["a"]),
    ],
)
def test_partitions_are_read_in_pieces_where_every_stage_may_see_a_part_of_the_rows(
    read: Leg, found: list[str]
) -> None:
    assert pieces(read) == found
    (job,) = jobs_of([sent("last", read)], written=[*exchanges(read)])
    assert [str(each.exchange) for each in job.writes[0].reads if each.may_cut] == found


def test_an_exchange_was_made_after_those_that_it_needs() -> None:
    a = sent("a")
    b = sent("b", a)
    assert a.serial < b.serial < replace(a, partitions=3).serial


def test_what_was_made_of_an_exchange_that_is_written_again_is_written_again() -> None:
    a = sent("a")
    b, c = sent("b", a), sent("c", a)
    d = sent("d", c)
    e = sent("e", joined(b, d))
    assert outdated([e], [a, b, c]) == set()
    assert outdated([e], [b, d]) == set(), "nothing is made of a again"
    assert outdated([e], [b, c]) == set()
    assert outdated([e], [b]) == {b}, "c was lost, and a is there no longer"
    assert outdated([e], [a, b]) == set(), "c is made of the a that b was made of"
    assert outdated([e], [b, c], [b]) == set()
    assert outdated([e], [b], [b]) == set(), "a persisted one stays"
    assert outdated([e], [c, d], [c]) == set()


def test_what_was_thinned_out_by_keys_that_are_written_again_is_written_again() -> None:
    small, large = sent("small"), sent("large")
    pair = sent("pair", joined(small, large))
    assert outdated([pair], [large], [], {large: small}) == {large}
    assert outdated([pair], [large], [], {}) == set()
    assert outdated([pair], [small, large], [], {large: small}) == set()
