"""The driver's state machine, event by event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from spark_client.servers.spread_write import CancelJob, Renew, WriteState

from flight_server.protocol import Conflict, InvalidRequest, NotFound, ServerLost
from spark_client.connection import TimedOut, Unreachable
from spark_client.servers import (
    Create,
    DriverCall,
    Drop,
    Fail,
    Report,
    RunJob,
    Seal,
    ServerStart,
    SpreadWrite,
)

A, B = (ServerStart(f"grpc://{name}:1", f"start of {name}") for name in "ab")
ANSWER = {"rows": 1, "frames": 1, "bytes": 10, "partition_bytes": {"1": 10}}


def begun(**given: Any) -> tuple[SpreadWrite, RunJob]:
    machine = SpreadWrite({"d": 4}, "g", **given)
    (job,) = machine.begin()
    assert isinstance(job, RunJob)
    return machine, job


def report(
    machine: SpreadWrite, server: ServerStart, producer: int = 0, attempt: str = "x"
) -> list[DriverCall]:
    return machine.reported(Report("d", machine.generation("d"), producer, attempt, server))


def written(*servers: ServerStart) -> tuple[SpreadWrite, list[DriverCall]]:
    """A job whose task ``i`` wrote to ``servers[i]``, and the calls after its end."""
    machine, job = begun()
    for producer, each in enumerate(servers):
        report(machine, each, producer=producer)
    return machine, machine.job_ended(job, {"d": dict.fromkeys(range(len(servers)), "x")})


def sealed(*servers: ServerStart) -> SpreadWrite:
    machine, calls = written(*servers)
    answer_all(machine, calls)
    assert state(machine) is WriteState.SEALED
    return machine


def answer_all(machine: SpreadWrite, calls: Iterable[DriverCall]) -> None:
    for call in calls:
        if isinstance(call, Seal):
            assert not machine.sealed(call, ANSWER)


def state(machine: SpreadWrite) -> WriteState:
    """A call, so that mypy does not take it for the one before."""
    return machine.state


def drops(*servers: ServerStart, run: int = 1) -> list[DriverCall]:
    return [Drop(server, "d", f"g0{run}") for server in servers]


def test_each_server_is_sealed_with_its_attempts() -> None:
    _, calls = written(A, B, A)
    assert calls == [Seal(A, "d", "g01", {0: "x", 2: "x"}), Seal(B, "d", "g01", {1: "x"})]


def test_answers_are_summed() -> None:
    machine = sealed(A, B)
    totals = machine.totals("d")
    assert (totals.rows, totals.frames, totals.size_bytes) == (2, 2, 20)
    assert totals.sizes.sizes().tolist() == [0, 20, 0, 0]


def test_an_answer_that_comes_twice_counts_once() -> None:
    machine, calls = written(A, B)
    answer_all(machine, [calls[0], calls[0]])
    assert state(machine) is WriteState.SEALING
    answer_all(machine, [calls[1], calls[0]])
    assert machine.totals("d").rows == 2


def test_an_accepted_attempt_that_no_task_reported_is_an_error() -> None:
    machine, job = begun()
    report(machine, A)
    *dropped, failed = machine.job_ended(job, {"d": {0: "x", 1: "y"}})
    assert dropped == [CancelJob(1), *drops(A)]
    assert isinstance(failed, Fail)
    assert "no task reported" in str(failed.error)


def test_a_job_without_tasks_is_sealed_at_once_without_a_server() -> None:
    machine, job = begun()
    assert machine.job_ended(job, {"d": {}}) == []
    assert state(machine) is WriteState.SEALED
    assert machine.portions("d") == []


def test_the_only_server_seals_a_dataset_without_an_attempt_too() -> None:
    machine = SpreadWrite({"d": 4}, "g", created_on=A)
    assert machine.begin() == [Create(A, "d", 1)]
    (job,) = machine.created(Create(A, "d", 1), "drawn")
    assert isinstance(job, RunJob)
    assert machine.job_ended(job, {"d": {}}) == [Seal(A, "d", "drawn", {})]


def test_what_was_created_too_late_is_dropped() -> None:
    machine = SpreadWrite({"d": 4}, "g", created_on=A)
    machine.begin()
    machine.drop()
    assert machine.created(Create(A, "d", 1), "drawn") == [Drop(A, "d", "drawn")]


def test_a_loss_while_tasks_write_cancels_the_job_and_runs_it_elsewhere() -> None:
    machine, job = begun()
    report(machine, A)
    report(machine, B, producer=1)
    again = RunJob(2, {"d": "g02"}, frozenset({A}))
    assert machine.lost(A) == [CancelJob(1), *drops(B), again]
    assert machine.job_ended(job, {"d": {0: "x", 1: "x"}}) == []
    assert machine.job_failed(job, ValueError()) == []


def test_a_loss_that_took_nothing_changes_nothing() -> None:
    machine, _ = begun()
    report(machine, A)
    assert machine.lost(B) == []
    assert state(machine) is WriteState.WRITING


def test_a_report_of_a_server_that_was_lost_meanwhile_runs_the_job_again() -> None:
    machine, _ = begun()
    machine.lost(A)
    assert report(machine, A) == [CancelJob(1), RunJob(2, {"d": "g02"}, frozenset({A}))]


def test_a_report_of_a_later_run_shows_that_the_server_lives() -> None:
    machine, _ = begun()
    machine.lost(A)
    report(machine, A)
    assert report(machine, A) == []


def test_a_job_that_fails_after_a_loss_runs_again_and_one_without_is_an_error() -> None:
    machine, job = begun()
    machine.lost(A)
    cancel, again = machine.job_failed(job, ValueError("put failed"))
    assert (cancel, again) == (CancelJob(1), RunJob(2, {"d": "g02"}, frozenset({A})))
    assert isinstance(again, RunJob)
    *_, failed = machine.job_failed(again, ValueError("the function's"))
    assert isinstance(failed, Fail)
    assert str(failed.error) == "the function's"


@pytest.mark.parametrize("error", [Unreachable("gone"), TimedOut("slow"), NotFound("no dataset d")])
def test_a_server_that_cannot_seal_any_more_is_lost(error: Unreachable) -> None:
    machine, calls = written(A, B)
    seal = calls[0]
    assert isinstance(seal, Seal)
    *dropped, again = machine.refused(seal, error)
    assert dropped == drops(B)
    assert isinstance(again, RunJob)


def test_another_start_that_answers_is_another_server() -> None:
    machine, calls = written(A)
    assert isinstance(calls[0], Seal)
    (again,) = machine.sealed(calls[0], ANSWER, by=ServerStart(A.location, "later"))
    assert again == RunJob(2, {"d": "g02"}, frozenset({A}))


def test_a_seal_that_is_refused_for_another_reason_is_an_error() -> None:
    machine, calls = written(A, B)
    assert isinstance(calls[0], Seal)
    error = InvalidRequest("attempt 'x' has not committed")
    assert machine.refused(calls[0], error) == [*drops(A, B), Fail(error)]


def test_late_answers_of_an_earlier_generation_change_nothing() -> None:
    machine, calls = written(A, B)
    old = calls[0]
    assert isinstance(old, Seal)
    *_, job = machine.lost(B)
    report(machine, A)
    assert isinstance(job, RunJob)
    (seal,) = machine.job_ended(job, {"d": {0: "x"}})
    assert machine.sealed(old, ANSWER) == []
    assert machine.refused(old, NotFound("no d")) == []
    assert machine.refused(Renew(A, "d", "g01"), NotFound("no d")) == []
    assert machine.lost(A, "g01") == []
    assert state(machine) is WriteState.SEALING
    answer_all(machine, [seal])
    assert state(machine) is WriteState.SEALED


@pytest.mark.parametrize("when", ["sealing", "sealed"])
def test_a_portion_that_an_object_has_outlives_its_server(when: str) -> None:
    machine, (first, second) = written(A, B)
    assert isinstance(first, Seal)
    assert isinstance(second, Seal)
    stored = ANSWER | {"read_locations": ["grpc://a:1", "s3://bucket/d-g01/a.arrows"]}
    assert not machine.sealed(first, stored)
    if when == "sealed":
        assert not machine.sealed(second, ANSWER)
    assert not machine.lost(A)
    if when == "sealing":
        assert not machine.sealed(second, ANSWER)
    assert state(machine) is WriteState.SEALED
    assert machine.run == 1
    assert machine.totals("d").rows == 2
    assert machine.lost(B), "what no object has is lost"
    assert machine.run == 2


def test_the_third_loss_is_an_error_that_names_server_start_and_dataset() -> None:
    machine, _ = begun()
    for _ in range(2):
        report(machine, A)
        assert isinstance(machine.lost(A)[-1], RunJob)
    report(machine, A)
    cancel, failed = machine.lost(A)
    assert cancel == CancelJob(3)
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, ServerLost)
    assert failed.error.detail == {"server": A.location, "start": A.start, "dataset": "d", "run": 3}
    assert A.location in str(failed.error)
    assert [each.detail["run"] for each in machine.losses] == [1, 2, 3]


def test_a_loss_after_rows_were_handed_out_is_an_error() -> None:
    machine = sealed(A, B)
    machine.hand_out()
    *dropped, failed = machine.lost(A)
    assert dropped == drops(B)
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, ServerLost)
    assert state(machine) is WriteState.FAILED
    assert machine.drop() == machine.drop() == []


def test_a_lease_that_has_ended_is_a_loss_and_an_unanswered_renewal_is_none() -> None:
    machine = sealed(A, B)
    assert machine.refused(Renew(A, "d", "g01"), Unreachable("away")) == []
    assert machine.refused(Renew(A, "d", "g01"), NotFound("no d")) == [
        *drops(B),
        RunJob(2, {"d": "g02"}),
    ]


def test_a_verb_that_does_not_fit_is_a_conflict() -> None:
    machine, _ = begun()
    with pytest.raises(Conflict, match="being written cannot hand out"):
        machine.hand_out()
    with pytest.raises(Conflict, match="being written cannot release"):
        machine.release("d")
