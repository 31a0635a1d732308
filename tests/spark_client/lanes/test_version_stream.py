"""Reads of changelogs on the bulk lane, against servers whose every byte is known."""

from __future__ import annotations

import pytest

from flight_server.protocol import Ticket, Versions
from flight_server.protocol.errors import Compacted, PartitionFailed, StaleTicket
from spark_client.connection import RemoteServer, Timeouts
from spark_client.lanes import BrokenStream, Closed, CutRead, ReadStream, VersionCursor
from tests.support.http_source import HEAD, HttpSource, chunk
from tests.support.versions import Marked, encoded, marked, opening, whole

pytestmark = pytest.mark.usefixtures("hasty")

SNAPSHOT = Versions()


def stream_of(server: RemoteServer, source: HttpSource, versions: Versions = SNAPSHOT) -> ReadStream:
    return ReadStream(
        server, VersionCursor(Ticket("d", versions=versions)), locations=[source.url], lane="bulk"
    )


def numbers_of(stream: ReadStream) -> list[int]:
    try:
        found: list[int] = []
        while (run := stream.read_burst()) is not None:
            for batch in run.batches:
                found += batch["n"].to_pylist()
        return found
    finally:
        stream.close()


def next_step(stream: ReadStream) -> tuple[int, list[int]]:
    step = stream.read_burst()
    assert step is not None
    return step.part, [number for batch in step.batches for number in batch["n"].to_pylist()]


def test_a_follower_gets_whole_steps_and_asks_for_what_comes_after_the_last_one(server: RemoteServer) -> None:
    answers = iter(
        [
            # The second step is cut.
            opening([marked([1], 5), marked([2], 5, last=True), marked([3], 6)], together=True),
            opening([]),
            opening([marked([3], 6), marked([4], 6, last=True), marked([], 8, last=True)]),
            opening([marked([9], 9, last=True)]),
        ]
    )
    with HttpSource(lambda *_: next(answers), closes=True) as source:
        stream = stream_of(server, source, Versions(after=4, follow=True))
        found = [next_step(stream) for _ in range(4)]
        stream.close()
        assert found == [(5, [1, 2]), (6, [3, 4]), (8, []), (9, [9])]
        asked = [target.partition("?")[2] for target, _ in source.requests]
        assert asked == [
            "after=4&follow=true",
            "generation=g1&after=5&follow=true",
            "generation=g1&after=5&follow=true",
            "generation=g1&after=8&follow=true",
        ]


def test_the_versions_are_asked_for_also_where_a_location_has_a_path_of_its_own(server: RemoteServer) -> None:
    with HttpSource(lambda *_: whole([marked([1], 9, last=True)])) as source:
        url = f"{source.url}/v1/datasets/d/partitions/0?generation=g1"
        ticket = Ticket("d", generation="g1", versions=Versions(as_of=9, after=3))
        stream = ReadStream(server, VersionCursor(ticket), locations=[url], lane="bulk")
        assert numbers_of(stream) == [1]
        assert source.requests[0][0] == "/v1/datasets/d/partitions/0?generation=g1&as_of=9&after=3"


@pytest.mark.parametrize(
    ("batches", "totals"),
    [
        ([marked([1], 7, last=True)], (2, None)),
        ([marked([1], 7, last=True)], (None, 0)),
        ([marked([1], 7), marked([2], 8, last=True)], (None, None)),
        ([marked([1], 7, last=True), marked([2], 8, last=True)], (None, None)),
        ([([1], None)], (None, None)),
        ([([1], {"version": "seven"})], (None, None)),
        ([marked([1], 8, last=True)], (None, None)),
    ],
    ids=["rows", "frames", "two versions", "two steps", "no mark", "bad mark", "another version"],
)
def test_what_disagrees_with_the_server_or_with_itself_is_an_error(
    server: RemoteServer, batches: list[Marked], totals: tuple[int | None, int | None]
) -> None:
    with HttpSource(lambda *_: whole(batches, *totals)) as source:
        with pytest.raises(PartitionFailed):
            numbers_of(stream_of(server, source, Versions(as_of=7)))
        assert len(source.requests) == 1


@pytest.mark.parametrize(
    ("batches", "totals"),
    [([marked([1], 7)], (None, None)), ([marked([1], 7, last=True)], (None, 2))],
    ids=["no last batch", "fewer frames than the server counts"],
)
def test_a_snapshot_that_ends_early_is_an_error_once_a_batch_was_returned(
    server: RemoteServer, batches: list[Marked], totals: tuple[int | None, int | None]
) -> None:
    with HttpSource(lambda *_: whole(batches, *totals)) as source:
        with pytest.raises(CutRead, match="read it again"):
            numbers_of(stream_of(server, source))
        assert len(source.requests) == 1


def test_a_snapshot_that_breaks_before_its_first_batch_begins_again(server: RemoteServer) -> None:
    answers = iter([[HEAD], opening([]), whole([marked([1], 7, last=True)])])
    with HttpSource(lambda *_: next(answers), closes=True) as source:
        assert numbers_of(stream_of(server, source)) == [1]
        assert len(source.requests) == 3


def test_a_snapshot_without_a_batch_is_an_error(server: RemoteServer) -> None:
    with (
        HttpSource(lambda *_: whole([])) as source,
        pytest.raises(BrokenStream, match="before its last batch"),
    ):
        numbers_of(stream_of(server, source))


def test_a_follower_does_not_go_on_in_another_generation(server: RemoteServer) -> None:
    answers = iter([opening([marked([1], 5, last=True)]), opening([marked([2], 6, last=True)], "g2")])
    with HttpSource(lambda *_: next(answers), closes=True) as source:
        stream = stream_of(server, source, Versions(after=4, follow=True))
        assert next_step(stream) == (5, [1])
        with pytest.raises(StaleTicket, match="went away after"):
            next_step(stream)
        stream.close()


def test_a_follower_that_is_too_late_gets_the_servers_own_error(server: RemoteServer) -> None:
    body = Compacted("version 5 is gone: take a snapshot", since=9, upper=12).to_json().encode()
    refusal = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    answers = iter([opening([marked([1], 5, last=True)]), [refusal + body]])
    with HttpSource(lambda *_: next(answers), closes=True) as source:
        stream = stream_of(server, source, Versions(after=4, follow=True))
        assert next_step(stream) == (5, [1])
        with pytest.raises(Compacted, match="take a snapshot") as caught:
            next_step(stream)
        assert caught.value.detail["since"] == 9
        stream.close()


def test_a_follower_gives_up_after_its_tries_in_a_row(server: RemoteServer) -> None:
    with HttpSource(lambda *_: opening([marked([1], 5)]), closes=True) as source:
        stream = stream_of(server, source, Versions(after=4, follow=True))
        with pytest.raises(BrokenStream, match="could not be read beyond version 4"):
            next_step(stream)
        stream.close()
        assert len(source.requests) == server.timeouts.tries + 1


@pytest.mark.parametrize("version", [3, 4])
def test_a_step_that_was_there_before_is_an_error(server: RemoteServer, version: int) -> None:
    with HttpSource(lambda *_: opening([marked([1], version, last=True)])) as source:
        stream = stream_of(server, source, Versions(after=4, follow=True))
        with pytest.raises(PartitionFailed, match="no place"):
            next_step(stream)
        stream.close()


def test_silence_is_no_failure_of_a_follower(server: RemoteServer) -> None:
    silent = RemoteServer(server.location, timeouts=Timeouts(stall_seconds=0.01, tries=0))
    step = opening([marked([1], 5, last=True)])
    # In one piece: a pause in it would be a further silence.
    answers = iter([step[:2]] * 3 + [[b"".join(step)]])
    with HttpSource(lambda *_: next(answers)) as source:
        stream = stream_of(silent, source, Versions(after=4, follow=True))
        assert next_step(stream) == (5, [1])
        assert stream.resumes == 3
        stream.close()
    silent.close()


def test_silence_gives_a_follower_no_try_back(server: RemoteServer) -> None:
    """Of a network that breaks each second connection, and is silent in the others."""
    silent = RemoteServer(server.location, timeouts=Timeouts(stall_seconds=0.01, tries=2))
    schema = encoded([marked([1], 5, last=True)])[0]

    def answer(*_: object) -> list[bytes]:
        source.closes = len(source.requests) % 2 == 1
        return [HEAD, chunk(schema)]

    with HttpSource(answer) as source:
        stream = stream_of(silent, source, Versions(after=4, follow=True))
        with pytest.raises(BrokenStream, match="after 3 tries at"):
            next_step(stream)
        stream.close()
        assert len(source.requests) >= 5
    silent.close()


def test_cancelling_ends_a_follower_that_waits(server: RemoteServer) -> None:
    with HttpSource(lambda *_: opening([marked([1], 5, last=True)])) as source:
        stream = stream_of(server, source, Versions(after=4, follow=True))
        assert next_step(stream) == (5, [1])
        stream.cancel()
        with pytest.raises(Closed):
            next_step(stream)
        stream.close()
