"""Which datasets a driver renews, where others of its threads seal them meanwhile; the rest needs Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flight_server.protocol import NotFound
from spark_client.connection import RemoteServer
from spark_client.jobs.held_datasets import HeldDatasets
from spark_client.servers import ServerList

A, B = "grpc://a:1", "grpc://b:1"


class Answering(RemoteServer):
    """Two servers, whose answers a test gives."""

    answers: Mapping[str, Callable[[], None]]

    def at(self, location: str) -> Answering:
        found = Answering(location)
        found.answers = self.answers
        return found

    def action(self, *_: Any, **__: Any) -> Any:
        self.answers[self.location]()


def test_a_dataset_that_is_sealed_while_it_is_renewed_stays_renewed() -> None:
    server = Answering(A)
    held = HeldDatasets(server, ServerList(server, (A, B)), 3600.0)
    held.begin_spread("d", "g", None)

    def nothing() -> None:
        raise NotFound("no put has begun")

    def sealed_meanwhile() -> None:
        held.sealed_on("d", {"a": A})
        raise NotFound("no task has chosen it")

    server.answers = {A: nothing, B: sealed_meanwhile}
    held._keeper.renew_all()
    assert "d" in held._keeper.datasets()
    server.answers = {A: nothing, B: nothing}
    held._keeper.renew_all()
    assert "d" not in held._keeper.datasets()
    held.close()


def test_what_is_dropped_while_its_job_runs_is_not_held_again_when_the_job_ends() -> None:
    server = Answering(A)
    server.answers = dict.fromkeys((A, B), lambda: None)
    held = HeldDatasets(server, ServerList(server, (A, B)), 3600.0)
    held.begin_spread("d", "g", None)
    held.close()
    held.written_on("d", [A])
    held.sealed_on("d", {"a": A})
    assert not held._places
    assert not held._keeper.datasets()
