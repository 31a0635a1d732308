"""What the driver knows of each server, event by event."""

from __future__ import annotations

import pytest

from spark_client.servers import ServerStart
from spark_client.servers.server_table import Presence, ServerTable

A, B = "grpc://a:1", "grpc://b:1"
A1, A2, B1 = ServerStart(A, "a1"), ServerStart(A, "a2"), ServerStart(B, "b1")


@pytest.fixture
def table() -> ServerTable:
    """Of two servers that are given, and have answered at second 0."""
    listed = ServerTable((A, B))
    for server in (A1, B1):
        assert listed.answered(*server, 0.0) == []
    return listed


@pytest.fixture
def learnt() -> ServerTable:
    """Of one that a task has started."""
    learnt = ServerTable()
    assert learnt.learn(A1, 0.0) == []
    return learnt


def looks(table: ServerTable, location: str = A) -> tuple[Presence, str | None]:
    return table.presence(location), table.start(location)


def test_a_server_is_unknown_until_it_is_asked() -> None:
    table = ServerTable((A,))
    assert table.locations == (A,)
    assert looks(table) == (Presence.UNKNOWN, None)
    assert not table.is_fresh(A, 0.0)
    assert not table.is_quiet(A, 0.0)
    assert table.answering([A]) == ()
    assert looks(table, "grpc://elsewhere:1") == (Presence.UNKNOWN, None)


def test_a_server_that_answers_is_fresh_for_a_while(table: ServerTable) -> None:
    assert looks(table) == (Presence.ANSWERING, "a1")
    assert table.is_fresh(A, 4.9)
    assert not table.is_fresh(A, 5.0)
    assert not table.is_fresh("grpc://elsewhere:1", 0.0)
    assert not table.is_quiet(A, 0.0)
    assert table.answering([B, "grpc://elsewhere:1", A]) == (B, A)


def test_several_locations_of_one_server_are_one_server(table: ServerTable) -> None:
    table.answered(B, "a1", 1.0)
    assert table.answering([A, B]) == (A,)
    assert table.answering([B, A]) == (B,)


def test_servers_whose_starts_are_not_known_are_several() -> None:
    table = ServerTable((A, B))
    for location in (A, B):
        table.answered(location, None, 0.0)
    assert table.answering([A, B]) == (A, B)


def test_a_silent_server_is_quiet_for_a_while_and_nothing_is_forgotten(table: ServerTable) -> None:
    table.silent(A, 20.0)
    assert looks(table) == (Presence.SILENT, "a1")
    assert table.is_quiet(A, 29.9)
    assert not table.is_quiet(A, 30.0)
    assert not table.is_fresh(A, 20.0)
    assert table.answering([A, B]) == (B,)
    table.silent(A, 30.0)
    assert looks(table) == (Presence.SILENT, "a1")
    assert table.is_quiet(A, 39.9)
    assert table.answered(A, "a1", 40.0) == []
    assert looks(table) == (Presence.ANSWERING, "a1")
    assert table.losses == 0


@pytest.mark.parametrize("before", ["answering", "silent"])
@pytest.mark.parametrize("loss", ["refused", "unanswered", "restarted"])
def test_a_loss_is_of_one_start_and_counts_once(table: ServerTable, before: str, loss: str) -> None:
    if before == "silent":
        table.silent(A, 1.0)
    for lost in ([A1], []):
        match loss:
            case "refused":
                assert table.refused(A, 2.0) == lost
            case "unanswered":
                assert table.unanswered(A, 2.0) == lost
            case "restarted":
                assert table.restarted(A1, 2.0) == lost
    is_open = loss == "restarted"
    assert looks(table) == ((Presence.UNKNOWN, None) if is_open else (Presence.LOST, "a1"))
    assert table.is_quiet(A, 11.9) is not is_open
    assert (table.losses, table.lost_since(0), table.lost_since(1)) == (1, [A1], [])
    assert table.is_lost(A1)
    assert not table.is_lost(A1, 1)
    assert not table.is_lost(A2)
    assert table.locations == (A, B), "it stays in the list"
    table.silent(A, 3.0)
    assert table.presence(A) is (Presence.SILENT if is_open else Presence.LOST)
    assert table.answered(A, "a2", 4.0) == []
    assert looks(table) == (Presence.ANSWERING, "a2")


def test_a_lost_server_in_whose_place_another_start_answers_is_asked_anew(table: ServerTable) -> None:
    table.unanswered(A, 1.0)
    assert table.restarted(A1, 2.0) == []
    assert looks(table) == (Presence.UNKNOWN, None)


def test_a_server_that_was_never_heard_of_is_lost_without_a_start() -> None:
    table = ServerTable((A, B))
    assert table.refused(A, 1.0) == table.unanswered(B, 1.0) == []
    assert table.presence(A) is table.presence(B) is Presence.LOST
    assert table.losses == 0


def test_a_server_that_is_not_in_the_list_changes_nothing(table: ServerTable) -> None:
    elsewhere = ServerStart("grpc://elsewhere:1", "e1")
    table.silent(elsewhere.location, 1.0)
    assert table.refused(elsewhere.location, 1.0) == []
    assert table.unanswered(elsewhere.location, 1.0) == []
    assert table.restarted(elsewhere, 1.0) == []
    assert table.answered(*elsewhere, 1.0) == []
    assert table.locations == (A, B)


def test_a_start_that_comes_back_may_be_lost_again(table: ServerTable) -> None:
    table.unanswered(A, 1.0)
    table.unanswered(B, 2.0)
    assert table.answered(A, "a1", 3.0) == []
    assert table.unanswered(A, 4.0) == [A1]
    assert table.lost_since(0) == [B1, A1], "in the order of their losses"
    assert table.is_lost(A1, 2)
    assert not table.is_lost(B1, 2)


def test_an_answer_of_a_lost_server_that_does_not_say_its_start_may_be_another_ones(
    table: ServerTable,
) -> None:
    table.refused(A, 1.0)
    assert table.answered(A, None, 2.0) == []
    assert looks(table) == (Presence.ANSWERING, None)
    assert table.answered(A, "a2", 3.0) == []
    assert table.losses == 1, "one loss counts once"


# Late news: the server is heard of at second 10, and the call was made before.


@pytest.mark.parametrize("asked_seconds", [9.9, 10.0])
def test_a_call_that_was_made_before_an_answer_says_nothing_of_now(
    table: ServerTable, asked_seconds: float
) -> None:
    is_late = asked_seconds < 10.0
    for end in ("answered", "silent", "unanswered"):
        table.answered(A, "a1", 10.0)
        before = table.losses
        match end:
            case "answered":
                table.answered(A, "a2", 20.0, asked_seconds)
            case "silent":
                table.silent(A, 20.0, asked_seconds)
            case "unanswered":
                table.unanswered(A, 20.0, asked_seconds)
        changed = looks(table) != (Presence.ANSWERING, "a1")
        assert changed is not is_late
        assert table.losses == before + (not is_late and end != "silent")
        if not is_late:
            return


def test_a_call_that_was_made_before_a_refusal_says_nothing_of_a_start_that_is_lost(
    table: ServerTable,
) -> None:
    table.refused(A, 10.0)
    table.answered(A, "a1", 20.0, 9.0)
    table.answered(A, None, 20.0, 9.0)
    assert looks(table) == (Presence.LOST, "a1")
    table.answered(A, "a2", 20.0, 9.0)
    assert looks(table) == (Presence.ANSWERING, "a2"), "but it may say of a new one"


def test_a_call_that_was_made_before_a_restart_may_say_the_new_start(table: ServerTable) -> None:
    table.restarted(A1, 10.0)
    table.answered(A, "a1", 20.0, 9.0)
    assert looks(table) == (Presence.UNKNOWN, None)
    table.answered(A, "a2", 20.0, 9.0)
    assert looks(table) == (Presence.ANSWERING, "a2")


# Servers that tasks start.


def test_a_server_that_was_learnt_leaves_the_list_when_it_refuses(learnt: ServerTable) -> None:
    assert learnt.refused(A, 1.0) == [A1]
    assert learnt.locations == ()
    assert learnt.is_lost(A1)
    assert learnt.presence(A) is Presence.UNKNOWN


def test_another_server_at_a_port_that_is_used_again_is_not_one_of_the_list(learnt: ServerTable) -> None:
    assert learnt.answered(*A2, 1.0) == [A1]
    assert learnt.locations == ()
    assert learnt.answered(*A2, 2.0) == []
    assert learnt.locations == ()
    learnt.learn(A2, 3.0)
    assert learnt.restarted(A2, 4.0) == [A2]
    assert learnt.locations == ()


def test_the_drivers_own_server_is_in_the_list_before_it_answers(learnt: ServerTable) -> None:
    learnt.add([B, A])
    assert learnt.locations == (A, B)
    assert looks(learnt) == (Presence.ANSWERING, "a1")
    learnt.answered(*B1, 1.0)
    assert looks(learnt, B) == (Presence.ANSWERING, "b1")


def test_servers_that_were_learnt_end_together_and_those_that_are_given_go_on(
    learnt: ServerTable, table: ServerTable
) -> None:
    learnt.forget_all()
    table.forget_all()
    assert (learnt.locations, table.locations) == ((), (A, B))
