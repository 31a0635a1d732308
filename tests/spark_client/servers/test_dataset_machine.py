"""The driver's state machine for datasets, event by event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from flight_server.protocol import (
    Conflict,
    InvalidRequest,
    NotFound,
    ServerLost,
    ServerPortion,
    StaleTicket,
    Unauthenticated,
    Unavailable,
)
from spark_client.connection import TimedOut, Unreachable
from spark_client.servers import Holder, HolderKind, PlannedDataset, Report, RunJob, Scope, ServerStart
from spark_client.servers.dataset_machine import DatasetMachine, HeldState
from spark_client.servers.driver_calls import (
    DriverCall,
    Drop,
    Fail,
    FindObject,
    Look,
    Patience,
    RemoveObjects,
    Renew,
    Seal,
)
from spark_client.servers.server_table import Presence, ServerTable

A, B, C = (ServerStart(f"grpc://{name}:1", f"start of {name}") for name in "abc")
ALL = (A.location, B.location)
ANSWER = {
    "rows": 1,
    "frames": 1,
    "bytes": 10,
    "partition_bytes": {"1": 10},
    "read_locations": ["grpc://here:1"],
}
OBJECT = "s3://bucket/x/d-g01/a.arrows"
STORED = ANSWER | {"read_locations": ["grpc://here:1", OBJECT]}
TOKEN = "g"


class Driver:
    """A driver whose calls are answered by the test. ``now`` is the clock."""

    def __init__(self, locations: Iterable[str] = ALL) -> None:
        self.table = ServerTable(locations)
        self.machine = DatasetMachine(self.table)
        self.holder = Holder(HolderKind.RUN)
        self.now = 100.0
        for server in (A, B):
            if server.location in self.table.locations:
                self.table.answered(*server, self.now)

    def plan(
        self, *names: str, reads: Sequence[str] = (), offload: str | None = None, holder: Holder | None = None
    ) -> list[DriverCall]:
        return self.machine.plan(
            dict.fromkeys(names or ("d",), PlannedDataset(4, offload)),
            TOKEN,
            holder or self.holder,
            self.now,
            candidates=self.table.locations,
            reads=reads,
        )

    def running(self, *names: str, **how: Any) -> RunJob:
        (job,) = self.plan(*names, **how)
        assert isinstance(job, RunJob)
        return job

    def ended(self, job: RunJob, *servers: ServerStart) -> list[DriverCall]:
        """The job's task ``i`` has written to ``servers[i]``, of each dataset."""
        reports = [
            Report(name, producer, "x", server, (server.location,), 5, 50)
            for name in job.generations
            for producer, server in enumerate(servers)
        ]
        return self.machine.ended(job, reports, self.now)

    def answer(self, call: DriverCall, answer: Any = ANSWER) -> list[DriverCall]:
        assert isinstance(call, Look | Seal | Renew | Drop | FindObject | RemoveObjects)
        return self.machine.answered(call, answer, self.now)

    def fail(self, call: DriverCall, error: Exception, *, refused: bool = False) -> list[DriverCall]:
        assert isinstance(call, Look | Seal | Renew | Drop | FindObject | RemoveObjects)
        return self.machine.failed(call, error, self.now, refused=refused)

    def written(self, *servers: ServerStart, **how: Any) -> list[DriverCall]:
        return self.ended(self.running(**how), *servers)

    def sealed(
        self, *servers: ServerStart, names: Sequence[str] = ("d",), answer: Any = ANSWER, **how: Any
    ) -> None:
        for call in self.ended(self.running(*names, **how), *servers):
            assert not self.answer(call, answer)
        assert {self.machine.state(name) for name in names} == {HeldState.SEALED}

    def lose(self, server: ServerStart) -> None:
        """Another call has found that it refuses connections."""
        self.fail(Drop(server.location, "another", "g01"), Unreachable("gone"), refused=True)

    def again(self, calls: Sequence[DriverCall]) -> RunJob:
        """The next run, after looks that ``A`` does not answer and ``B`` does."""
        (job,) = self.looked(calls)
        assert isinstance(job, RunJob)
        return job

    def looked(self, calls: Sequence[DriverCall]) -> list[DriverCall]:
        last: list[DriverCall] = [each for each in calls if not isinstance(each, Drop)]
        for call in calls:
            if isinstance(call, Look):
                last = (
                    self.answer(call, {"start": B.start})
                    if call.location == B.location
                    else self.fail(call, Unreachable("gone"), refused=True)
                )
        return last


@pytest.fixture
def driver() -> Driver:
    return Driver()


def drops(*servers: ServerStart, run: int = 1) -> list[DriverCall]:
    return [Drop(each.location, "d", f"g0{run}") for each in servers]


def renewals(*servers: ServerStart) -> list[DriverCall]:
    return [Renew(each.location, "d", "g01", each.start) for each in servers]


# Before the job.


def test_servers_that_have_not_answered_lately_are_asked_first(driver: Driver) -> None:
    driver.now += 5.0
    looks = driver.plan()
    assert looks == [Look(A.location, 1), Look(B.location, 1)]
    assert driver.answer(looks[0], {"start": A.start}) == []
    assert driver.answer(looks[0], {"start": A.start}) == [], "twice is fine"
    assert driver.answer(looks[1], {"start": B.start}) == [RunJob(1, 1, {"d": "g01"}, ALL)]


def test_a_server_that_is_silent_is_left_out_and_not_asked_for_a_while(driver: Driver) -> None:
    driver.now += 5.0
    first, second = driver.plan()
    driver.fail(first, TimedOut("slow"))
    assert driver.answer(second, {"start": B.start}) == [RunJob(1, 1, {"d": "g01"}, (B.location,))]
    driver.now += 6.0
    assert driver.plan("e") == [Look(B.location, 2)]
    driver.now += 6.0
    assert driver.plan("f") == [Look(A.location, 3), Look(B.location, 3)]
    assert driver.table.presence(A.location) is Presence.SILENT


def test_where_no_server_answers_all_are_asked_for_longer(driver: Driver) -> None:
    driver.now += 5.0
    looks = driver.plan()
    driver.fail(looks[0], TimedOut("slow"))
    insisting = driver.fail(looks[1], Unreachable("gone"), refused=True)
    assert insisting == [Look(each, 1, Patience.RESTART) for each in ALL]
    driver.fail(insisting[0], TimedOut("slow"))
    assert driver.answer(insisting[1], {"start": "later"}) == [RunJob(1, 1, {"d": "g01"}, (B.location,))]
    assert driver.table.presence(A.location) is Presence.LOST


def test_where_no_server_answers_at_all_the_last_error_is_the_jobs(driver: Driver) -> None:
    driver.now += 5.0
    looks = driver.plan()
    error = TimedOut("the last one")
    driver.fail(looks[0], TimedOut("slow"))
    insisting = driver.fail(looks[1], TimedOut("slow"))
    driver.fail(insisting[0], TimedOut("slow"))
    assert driver.fail(insisting[1], error) == [Fail(1, error)]
    assert driver.machine.datasets == {}


def test_servers_that_are_lost_again_before_the_job_begins_are_an_error(driver: Driver) -> None:
    driver.now += 5.0
    calls = driver.plan()
    for _ in range(2):
        driver.answer(calls[0], {"start": A.start})
        driver.lose(A)
        driver.lose(B)
        assert isinstance(calls[1], Look)
        calls = driver.machine.answered(calls[1], {"start": B.start}, driver.now, driver.now - 1.0)
    (failed,) = calls
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, Unavailable)


def test_an_answer_that_is_none_of_a_server_that_is_away_is_an_error_at_once(driver: Driver) -> None:
    driver.now += 5.0
    looks = driver.plan()
    error = Unauthenticated("wrong token")
    assert driver.fail(looks[0], error) == [Fail(1, error)]
    assert driver.answer(looks[1], {"start": B.start}) == []


def test_a_name_is_written_once_and_the_other_job_goes_on(driver: Driver) -> None:
    job, other = driver.running(), Holder(HolderKind.RUN)
    with pytest.raises(Conflict, match="written already"):
        driver.plan(holder=other)
    assert driver.machine.abandon(["d"], other) == []
    assert driver.ended(job, A) == [
        Seal(A, "d", "g01", {0: "x"}, (ServerPortion(A.start, (A.location,), 5, 50),))
    ]


def test_no_job_is_planned_after_the_close(driver: Driver) -> None:
    driver.sealed(A)
    assert driver.machine.close() == drops(A)
    assert driver.machine.close() == []
    with pytest.raises(InvalidRequest, match="closed"):
        driver.plan("e")


# Sealing.


def test_each_server_is_sealed_with_its_attempts_and_the_list_of_all(driver: Driver) -> None:
    portions = (
        ServerPortion(A.start, (A.location,), 10, 100),
        ServerPortion(B.start, (B.location,), 5, 50),
    )
    assert driver.written(A, B, A) == [
        Seal(A, "d", "g01", {0: "x", 2: "x"}, portions),
        Seal(B, "d", "g01", {1: "x"}, portions),
    ]
    assert driver.machine.state("d") is HeldState.SEALING


def test_answers_are_summed(driver: Driver) -> None:
    driver.sealed(A, B)
    totals = driver.machine.totals("d")
    assert (totals.rows, totals.frames) == (2, 2)
    assert totals.sizes().tolist() == [0, 20, 0, 0]
    assert [each.server for each in driver.machine.portions("d")] == [A, B]
    assert driver.machine.datasets == {"d": "g01"}


def test_two_reports_of_one_producer_are_an_error(driver: Driver) -> None:
    job = driver.running()
    reports = [Report("d", 0, attempt, A, (A.location,)) for attempt in "xy"]
    *dropped, failed = driver.machine.ended(job, reports, driver.now)
    assert {*dropped} == {*drops(A, B)}
    assert isinstance(failed, Fail)
    assert "producer 0 was reported twice" in str(failed.error)


def test_a_job_without_tasks_is_sealed_at_once_without_a_server(driver: Driver) -> None:
    assert driver.written() == []
    assert driver.machine.state("d") is HeldState.SEALED
    assert driver.machine.portions("d") == []


def test_a_seal_that_is_refused_for_another_reason_is_an_error(driver: Driver) -> None:
    first, second = driver.written(A, B)
    error = Conflict("attempt 'x' has not committed")
    assert driver.fail(first, error) == [*drops(A, B), Fail(1, error)]
    assert driver.answer(second) == []
    assert driver.machine.datasets == {}


def test_what_was_written_of_a_released_dataset_is_dropped(driver: Driver) -> None:
    job = driver.running()
    assert driver.machine.release("d") == drops(A, B)
    *dropped, failed = driver.ended(job, B)
    assert dropped == drops(B)
    assert isinstance(failed, Fail)
    assert "was released while its job ran" in str(failed.error)


def test_a_job_of_which_one_dataset_is_released_while_it_seals_is_an_error(driver: Driver) -> None:
    seals = driver.ended(driver.running("d", "e"), A)
    driver.machine.release("e")
    assert driver.answer(seals[1]) == []
    *dropped, failed = driver.answer(seals[0])
    assert dropped == drops(A)
    assert isinstance(failed, Fail)


def test_a_job_that_fails_after_its_release_is_not_run_again(driver: Driver) -> None:
    job = driver.running()
    driver.machine.release("d")
    driver.lose(A)
    error = ValueError("no dataset d")
    assert driver.machine.run_failed(job, error, driver.now) == [Fail(1, error)]


# Losing while a job writes.


def test_a_report_of_a_server_that_was_lost_meanwhile_runs_the_job_again_elsewhere(driver: Driver) -> None:
    job = driver.running()
    driver.lose(A)
    calls = driver.ended(job, A, B)
    assert calls[:1] == drops(B)
    assert driver.again(calls) == RunJob(1, 2, {"d": "g02"}, (B.location,))


def test_a_job_that_fails_asks_where_it_may_have_written_and_what_it_reads(driver: Driver) -> None:
    driver.sealed(A, names=["source"])
    job = driver.running(reads=["source", "source", "released"])
    calls = driver.machine.run_failed(job, ValueError("put failed"), driver.now)
    assert calls == [*drops(A, B), *(Look(each, 2, Patience.ANSWER) for each in ALL)]


def test_a_job_that_fails_after_a_loss_runs_again_and_one_without_is_an_error(driver: Driver) -> None:
    job = driver.running()
    again = driver.again(driver.machine.run_failed(job, ValueError("put failed"), driver.now))
    assert (again.run, again.locations) == (2, (B.location,))
    error = ValueError("the function's")
    calls = driver.machine.run_failed(again, error, driver.now)
    assert driver.looked(calls)[-1] == Fail(1, error)


def test_the_error_of_a_run_is_not_that_of_the_next_one(driver: Driver) -> None:
    job = driver.again(driver.machine.run_failed(driver.running(), ValueError("put failed"), driver.now))
    (seal,) = driver.ended(job, B)
    assert driver.again(driver.fail(seal, NotFound("no d"))).run == 3


def test_a_job_that_has_insisted_insists_again_for_its_next_run(driver: Driver) -> None:
    driver.now += 5.0
    calls = driver.plan()
    for run in (1, 2):
        for call in calls[:-1]:
            driver.fail(call, TimedOut("slow"))
        insisting = driver.fail(calls[-1], TimedOut("slow"))
        assert insisting == [Look(each, 1, Patience.RESTART) for each in ALL]
        driver.answer(insisting[0], {"start": f"start {run}"})
        (job,) = driver.fail(insisting[1], TimedOut("slow"))
        assert isinstance(job, RunJob)
        assert job.run == run
        driver.now += 20.0
        driver.lose(ServerStart(A.location, f"start {run}"))
        driver.now += 20.0
        calls = driver.machine.run_failed(job, ValueError("put failed"), driver.now)


def test_a_run_that_is_made_again_has_nothing_before_it_begins(driver: Driver) -> None:
    driver.now += 5.0
    driver.table.answered(*A, driver.now)
    looks = driver.plan(offload="s3://bucket/x")
    (job,) = driver.looked(looks)
    assert isinstance(job, RunJob)
    first, second = driver.ended(job, B, A)
    driver.answer(first, STORED)
    driver.now += 5.0
    calls = driver.fail(second, NotFound("no d"))
    assert any(isinstance(each, Look) for each in calls)
    assert driver.machine.state("d") is HeldState.PLANNED
    assert driver.machine.renew() == []
    assert driver.machine.portions("d") == []
    assert driver.machine.release("d") == []


def test_the_users_mistake_is_an_error_at_once(driver: Driver) -> None:
    job, error = driver.running(), InvalidRequest("no such column")
    driver.lose(A)
    assert driver.machine.run_failed(job, error, driver.now, is_final=True) == [*drops(B), Fail(1, error)]


@pytest.mark.parametrize(
    "error", [Unreachable("gone"), TimedOut("slow"), NotFound("no dataset d"), ServerLost("another start")]
)
def test_a_server_that_cannot_seal_any_more_has_lost_its_portion(driver: Driver, error: Exception) -> None:
    first, second = driver.written(A, B)
    assert driver.fail(first, error) == []
    assert driver.table.is_lost(A) is not (type(error) is NotFound), "the dataset's lease may have ended"
    calls = driver.answer(second)
    assert drops(B)[0] in calls
    assert driver.again(calls).run == 2


def test_tasks_that_a_server_sent_to_another_one_fail_their_job_at_once(driver: Driver) -> None:
    (seal,) = driver.written(ServerStart(A.location, "another server's"))
    failed = driver.fail(seal, ServerLost("another start", server_start=A.start))[-1]
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, InvalidRequest)
    assert f"than {A.location}, which sends its clients there" in str(failed.error)


def test_tasks_that_wrote_to_a_start_which_has_ended_run_again(driver: Driver) -> None:
    (seal,) = driver.written(ServerStart(A.location, "between"))
    calls = driver.fail(seal, ServerLost("another start", server_start="later"))
    assert driver.again(calls).run == 2


def test_an_older_start_that_tasks_report_does_not_take_the_place_of_a_later_one(driver: Driver) -> None:
    job = driver.running()
    driver.now += 1.0
    driver.table.answered(A.location, "later", driver.now)
    (seal,) = driver.ended(job, ServerStart(A.location, "between"))
    assert driver.table.start(A.location) == "later"
    driver.fail(seal, ServerLost("another start"))
    assert driver.table.start(A.location) == "later"


def test_a_seal_says_which_start_has_answered(driver: Driver) -> None:
    job = driver.running()
    driver.now += 1.0
    driver.table.answered(A.location, None, driver.now)
    later = ServerStart(A.location, "later")
    (seal,) = driver.ended(job, later)
    driver.answer(seal)
    assert driver.table.start(A.location) == "later"
    assert driver.table.is_lost(A)


def test_late_answers_of_an_earlier_run_change_nothing(driver: Driver) -> None:
    first, second = driver.written(A, B)
    driver.fail(first, NotFound("no d"))
    calls = driver.answer(second)
    (seal,) = driver.ended(driver.again(calls), B)
    assert driver.answer(second) == []
    assert driver.fail(second, NotFound("no d")) == []
    assert driver.fail(Renew(B.location, "d", "g01", B.start), NotFound("no d")) == []
    assert driver.machine.state("d") is HeldState.SEALING
    driver.answer(seal)
    assert driver.machine.state("d") is HeldState.SEALED
    assert [each.detail["run"] for each in driver.machine.losses("d")] == [1]


def test_the_third_loss_is_an_error_that_names_server_start_and_dataset(driver: Driver) -> None:
    job = driver.running()
    for run in (2, 3):
        driver.lose(B)
        driver.table.answered(*B, driver.now)
        job = driver.again(driver.ended(job, B))
        assert job.run == run
    driver.lose(B)
    driver.table.answered(*B, driver.now)
    failed = driver.ended(job, B)[-1]
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, ServerLost)
    assert failed.error.detail == {"server": B.location, "start": B.start, "dataset": "d", "run": 3}
    assert B.location in str(failed.error)


def test_a_job_whose_source_is_lost_fails_at_once(driver: Driver) -> None:
    driver.sealed(A, names=["source"])
    job = driver.running(reads=["source"])
    error = ValueError("a task could not read")
    calls = driver.machine.run_failed(job, error, driver.now)
    assert driver.looked(calls)[-1] == Fail(2, error)
    assert driver.machine.state("source") is HeldState.LOST
    failed = driver.plan("e", reads=["source"])[-1]
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, ServerLost)
    assert failed.error.detail["dataset"] == "source"


def test_a_source_that_objects_have_needs_no_server(driver: Driver) -> None:
    driver.sealed(A, names=["source"], answer=STORED, offload="s3://bucket/x")
    driver.now += 5.0
    assert driver.plan(reads=["source"]) == [Look(A.location, 2), Look(B.location, 2)]


def test_servers_that_tasks_start_are_learnt_from_reports_and_not_asked_before() -> None:
    driver = Driver(())
    job = driver.running()
    assert job.locations == ()
    (seal,) = driver.ended(job, A)
    assert driver.table.locations == (A.location,)
    driver.answer(seal)
    other = driver.running("e")
    assert driver.machine.run_failed(other, ValueError("put failed"), driver.now) == [
        Drop(A.location, "e", "g01"),
        Look(A.location, 2, Patience.ANSWER),
    ]


def test_what_failed_jobs_have_left_on_servers_that_no_report_named_is_for_the_next_tasks_to_drop() -> None:
    driver = Driver(())
    (fail,) = driver.machine.run_failed(driver.running("failed"), ValueError("of the user"), driver.now)
    assert isinstance(fail, Fail)
    given_up = driver.running("given up")
    assert given_up.left == (("failed", "g01"),)
    assert driver.machine.abandon(["given up"], driver.holder) == []
    assert driver.running("e").left == (("failed", "g01"), ("given up", "g01"))


def test_what_a_server_that_tasks_have_started_did_not_drop_is_for_the_next_tasks_to_drop() -> None:
    driver = Driver(())
    driver.sealed(A, B)
    silent, answering = driver.machine.release("d")
    driver.fail(silent, TimedOut("no answer"))
    driver.answer(answering)
    (job,) = driver.machine.plan({"e": PlannedDataset(4)}, TOKEN, driver.holder, driver.now)
    assert isinstance(job, RunJob)
    assert job.left == (("d", "g01"),)


def test_what_another_attempt_has_committed_where_none_was_accepted_is_dropped_with_the_dataset() -> None:
    driver = Driver(())
    driver.sealed(A, B)
    driver.machine.release("d")
    (job,) = driver.machine.plan({"e": PlannedDataset(4)}, TOKEN, driver.holder, driver.now)
    assert isinstance(job, RunJob)
    for call in driver.ended(job, A):
        driver.answer(call)
    assert driver.machine.release("e") == [Drop(each.location, "e", "g01") for each in (A, B)]


def test_tasks_that_choose_from_servers_that_the_driver_knows_have_nothing_to_drop(driver: Driver) -> None:
    driver.machine.run_failed(driver.running("failed"), ValueError("of the user"), driver.now, is_final=True)
    assert driver.running("e").left == ()


# Losing what is sealed.


@pytest.mark.parametrize("when", ["sealing", "sealed"])
def test_a_portion_that_an_object_has_outlives_its_server(driver: Driver, when: str) -> None:
    first, second = driver.written(A, B, offload="s3://bucket/x")
    driver.answer(first, STORED)
    if when == "sealed":
        driver.answer(second)
    driver.lose(A)
    if when == "sealing":
        driver.answer(second)
    assert driver.machine.state("d") is HeldState.SEALED
    assert driver.machine.totals("d").rows == 2
    driver.lose(B)
    assert driver.machine.state("d") is HeldState.LOST, "what no object has is lost"


def test_an_object_that_is_gone_is_lost_with_its_server(driver: Driver) -> None:
    driver.sealed(A, answer=STORED, offload="s3://bucket/x")
    driver.lose(A)
    (find,) = driver.machine.check(["d"])
    assert find == FindObject(OBJECT, "d", "g01", A.start)
    driver.answer(find, {})
    assert driver.machine.state("d") is HeldState.SEALED
    driver.fail(find, FileNotFoundError())
    assert driver.machine.state("d") is HeldState.LOST


def test_an_object_that_is_gone_is_one_portions(driver: Driver) -> None:
    first, second = driver.written(A, B, offload="s3://bucket/x")
    driver.answer(first, STORED)
    other = OBJECT.replace("a.arrows", "b.arrows")
    driver.answer(second, ANSWER | {"read_locations": [other]})
    driver.fail(FindObject(OBJECT, "d", "g01", A.start), FileNotFoundError())
    assert [each.stored for each in driver.machine.portions("d")] == [None, other]
    driver.lose(B)
    assert driver.machine.state("d") is HeldState.SEALED


def test_a_server_that_is_lost_with_what_an_object_has_is_asked_to_keep_that(driver: Driver) -> None:
    driver.sealed(A, B, answer=STORED, offload="s3://bucket/x")
    driver.fail(Renew(A.location, "d", "g01", A.start, Patience.ANSWER), TimedOut("slow"))
    assert driver.machine.portions("d")[0].is_lost
    assert driver.machine.renew() == renewals(B, A)


def test_a_check_asks_each_server_for_as_long_as_a_job_may(driver: Driver) -> None:
    driver.sealed(A, B)
    calls = driver.machine.check(["d", "d", "released"])
    assert calls == [Renew(each.location, "d", "g01", each.start, Patience.ANSWER) for each in (A, B)]
    driver.answer(calls[0], {})
    assert driver.machine.state("d") is HeldState.SEALED
    driver.fail(calls[1], TimedOut("slow"))
    assert driver.machine.state("d") is HeldState.LOST
    assert driver.table.presence(B.location) is Presence.LOST


def test_nothing_is_checked_of_a_dataset_that_is_not_sealed(driver: Driver) -> None:
    driver.written(A)
    assert driver.machine.check(["d"]) == []


@pytest.mark.parametrize("error", [NotFound("no d"), StaleTicket("another generation")])
def test_a_lease_that_has_ended_is_a_loss_of_that_dataset_and_not_of_the_server(
    driver: Driver, error: NotFound
) -> None:
    driver.sealed(A, names=["d", "e"])
    driver.fail(Renew(A.location, "d", "g01", A.start), error)
    assert driver.machine.state("d") is HeldState.LOST
    assert driver.machine.state("e") is HeldState.SEALED
    assert driver.table.presence(A.location) is Presence.ANSWERING


def test_a_renewal_that_was_made_before_the_first_put_loses_nothing(driver: Driver) -> None:
    job = driver.running()
    renewal = driver.machine.renew()[0]
    assert renewal == Renew(A.location, "d", "g01")
    (seal,) = driver.ended(job, A)
    driver.fail(renewal, NotFound("no d"))
    driver.answer(seal)
    driver.fail(renewal, NotFound("no d"))
    assert driver.machine.state("d") is HeldState.SEALED


def test_a_failure_that_no_server_has_answered_says_nothing_of_it(driver: Driver) -> None:
    driver.sealed(A)
    renewal = driver.machine.renew()[0]
    driver.fail(renewal, TimedOut("slow"))
    driver.fail(renewal, RuntimeError("can't start new thread"))
    assert driver.machine.state("d") is HeldState.SEALED
    assert driver.table.presence(A.location) is Presence.SILENT


@pytest.mark.parametrize("patience", Patience)
def test_a_failure_of_a_call_that_was_made_before_an_answer_changes_nothing(
    driver: Driver, patience: Patience
) -> None:
    driver.sealed(A)
    look = Look(A.location, 9, patience)
    driver.machine.failed(look, TimedOut("slow"), driver.now + 60.0, driver.now - 1.0)
    assert driver.machine.state("d") is HeldState.SEALED
    assert driver.table.presence(A.location) is Presence.ANSWERING


@pytest.mark.parametrize(
    ("call", "is_lost"),
    [
        (Look(A.location, 9), False),
        (Look(A.location, 9, Patience.ANSWER), True),
        (Look(A.location, 9, Patience.RESTART), True),
        (Renew(A.location, "another", "g01"), False),
        (Renew(A.location, "another", "g01", "x", Patience.ANSWER), True),
        (Drop(A.location, "another", "g01"), False),
        (Seal(A, "another", "g01", {}, ()), True),
        (FindObject(OBJECT, "another", "g01", "x"), False),
    ],
)
def test_silence_past_the_deadline_of_a_job_loses_a_server(
    driver: Driver, call: DriverCall, *, is_lost: bool
) -> None:
    driver.sealed(A)
    driver.fail(call, TimedOut("slow"))
    assert driver.machine.state("d") is (HeldState.LOST if is_lost else HeldState.SEALED)


# Holding.


def test_what_only_its_run_holds_is_dropped_with_the_run(driver: Driver) -> None:
    driver.sealed(A, B)
    assert driver.machine.holds("d") == {HolderKind.RUN}
    assert driver.machine.kept() == set()
    assert driver.machine.end_hold(driver.holder) == drops(A, B)
    assert driver.machine.end_hold(driver.holder) == []
    assert driver.machine.state("d") is HeldState.RELEASED
    assert driver.machine.renew() == []


def test_what_something_else_holds_stays_until_the_last_one_ends(driver: Driver) -> None:
    driver.sealed(A, names=["d", "e"])
    frame, reader = Holder(HolderKind.FRAME), Holder(HolderKind.READER)
    driver.machine.hold("d", frame)
    driver.machine.hold("d", reader)
    assert driver.machine.end_hold(driver.holder, ["d", "released"]) == []
    assert driver.machine.holds("e") == {HolderKind.RUN}
    assert driver.machine.kept() == {"d"}
    assert driver.machine.end_hold(frame) == []
    assert driver.machine.end_hold(reader) == drops(A)
    assert driver.machine.datasets == {"e": "g01"}


def test_a_released_dataset_is_not_held_again(driver: Driver) -> None:
    driver.sealed(A)
    driver.machine.release("d")
    driver.machine.hold("d", Holder(HolderKind.FRAME), Scope())
    driver.machine.hand_out("d", driver.holder)
    assert driver.machine.holds("d") == set()
    assert not driver.machine.may_run_again("d", driver.holder)
    assert driver.machine.release("d") == []
    looks = (driver.machine.generation, driver.machine.portions, driver.machine.totals, driver.machine.losses)
    for look in looks:
        with pytest.raises(InvalidRequest, match="d was released"):
            look("d")


def test_a_scope_releases_what_was_made_in_it_whatever_holds_it(driver: Driver) -> None:
    driver.sealed(A, names=["d", "e"])
    outer, inner = Scope(), Scope()
    driver.machine.hold("d", Holder(HolderKind.FRAME), outer)
    driver.machine.hold("d", Holder(HolderKind.FRAME), inner)
    driver.machine.hold("e", Holder(HolderKind.RUN), inner)
    assert driver.machine.end_scope(inner) == [], "it was made in the outer one, or only runs hold it"
    assert driver.machine.end_scope(outer) == drops(A)
    assert driver.machine.end_scope(outer) == []


def test_releasing_frames_leaves_what_is_persisted(driver: Driver) -> None:
    driver.sealed(A, names=["d", "e"])
    kept, frame = Holder(HolderKind.PERSISTED), Holder(HolderKind.FRAME)
    for name in ("d", "e"):
        driver.machine.hold(name, frame)
    driver.machine.hold("e", kept)
    driver.machine.end_hold(driver.holder)
    assert driver.machine.end_frames(["d", "e", "released"]) == drops(A)
    assert driver.machine.holds("e") == {HolderKind.PERSISTED}
    assert driver.machine.end_hold(kept) == [Drop(A.location, "e", "g01")]


def test_a_lost_dataset_may_run_again_for_those_who_got_no_row(driver: Driver) -> None:
    driver.sealed(A, B)
    reader, other = Holder(HolderKind.READER), Holder(HolderKind.READER)
    for holder in (reader, other):
        driver.machine.hold("d", holder)
    assert not driver.machine.may_run_again("d", reader)
    driver.machine.hand_out("d", reader)
    driver.machine.hand_out("d", reader)
    assert driver.machine.state("d") is HeldState.HANDED_OUT
    for server in (A, B):
        driver.lose(server)
        assert driver.machine.state("d") is HeldState.LOST
    assert not driver.machine.may_run_again("d", reader)
    assert driver.machine.may_run_again("d", other)
    assert not driver.machine.may_run_again("d", Holder(HolderKind.READER))
    driver.machine.hold("d", reader)
    assert not driver.machine.may_run_again("d", reader), "it has rows all the same"
    driver.machine.hand_out("d", other)
    assert driver.machine.state("d") is HeldState.LOST
    assert not driver.machine.may_run_again("d", other)
    assert driver.machine.release("d") == []


def test_rows_that_were_handed_out_to_none_that_holds_it_change_no_holder(driver: Driver) -> None:
    driver.sealed(A)
    driver.machine.hand_out("d", Holder(HolderKind.READER))
    assert driver.machine.holds("d") == {HolderKind.RUN}


def test_a_dataset_that_is_not_sealed_is_not_handed_out(driver: Driver) -> None:
    driver.now += 5.0
    driver.plan()
    with pytest.raises(Conflict, match="planned: it cannot hand out"):
        driver.machine.hand_out("d", driver.holder)
    driver.now -= 5.0
    job = driver.running("e")
    with pytest.raises(Conflict, match="being written: it cannot hand out"):
        driver.machine.hand_out("e", driver.holder)
    driver.ended(job, A)
    with pytest.raises(Conflict, match="being sealed: it cannot hand out"):
        driver.machine.hand_out("e", driver.holder)


# Releasing.


def test_a_dataset_is_dropped_where_it_may_be_in_each_state(driver: Driver) -> None:
    driver.now += 5.0
    driver.plan(offload="s3://bucket/x")
    assert driver.machine.renew() == []
    assert driver.machine.release("d") == []
    driver.now -= 5.0
    removal = RemoveObjects("s3://bucket/x", "d", "g01")
    job = driver.running(offload="s3://bucket/x")
    assert driver.machine.renew() == [Renew(each, "d", "g01") for each in ALL]
    assert driver.machine.release("d") == [*drops(A, B), removal]
    del job
    driver.written(A, offload="s3://bucket/x")
    assert driver.machine.renew() == renewals(A)
    assert driver.machine.release("d") == [*drops(A), removal]
    driver.sealed(A, B, offload="s3://bucket/x")
    driver.lose(A)
    assert driver.machine.release("d") == [*drops(B), removal]


def test_a_server_that_the_job_did_not_choose_from_has_no_part(driver: Driver) -> None:
    driver.now += 5.0
    first, second = driver.plan()
    driver.fail(first, TimedOut("slow"))
    driver.answer(second, {"start": B.start})
    assert driver.machine.renew() == [Renew(B.location, "d", "g01")]
    assert driver.machine.release("d") == drops(B)


def test_a_server_that_is_lost_is_not_asked_and_one_that_is_back_is(driver: Driver) -> None:
    driver.running()
    driver.lose(A)
    assert driver.machine.renew() == [Renew(B.location, "d", "g01")]
    assert driver.machine.release("d") == drops(B)
    driver.table.answered(*A, driver.now)
    driver.sealed(A, names=["e"])
    driver.lose(A)
    driver.table.answered(*A, driver.now)
    assert driver.machine.release("e") == [Drop(A.location, "e", "g01")]


def test_a_job_that_is_given_up_is_dropped_and_its_late_ends_change_nothing(driver: Driver) -> None:
    first, second = driver.written(A, B)
    assert driver.machine.abandon(iter(["d"]), driver.holder) == drops(A, B)
    assert driver.answer(first) == []
    assert driver.fail(second, Conflict("not committed")) == []
    assert driver.machine.abandon(["d"], driver.holder) == []
    assert driver.machine.datasets == {}


def test_a_job_whose_dataset_is_released_before_it_begins_is_an_error(driver: Driver) -> None:
    driver.now += 5.0
    first, second = driver.plan()
    driver.machine.close()
    driver.answer(first, {"start": A.start})
    (failed,) = driver.answer(second, {"start": B.start})
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, InvalidRequest)
