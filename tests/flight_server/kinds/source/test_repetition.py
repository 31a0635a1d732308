"""A partition that is produced again: a reader that resumes gets the rest of the same rows, or an error."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.concurrency.broadcast_queue import EndOfQueue, Subscription, WouldBlock
from flight_server.datasets.partition import Partition, PartitionState
from flight_server.frames.message import Frame
from flight_server.kinds.source.pulls import Repetition, SourceChanged
from flight_server.protocol.checksums import crc32c
from flight_server.protocol.errors import Conflict, SourceUnavailable
from tests.support.frames import frame
from tests.support.queues import take_one


def published(*texts: str) -> Partition:
    partition = Partition("d", 0)
    for text in texts:
        partition.publish(frame(text.encode()))
    return partition


def take(subscription: Subscription[Frame], at_most: int) -> tuple[list[str], bool]:
    """Up to so many frames that are there now, and whether the clean end came."""
    taken: list[str] = []
    while len(taken) < at_most:
        try:
            payload = take_one(subscription).payload
        except WouldBlock:
            return taken, False
        except EndOfQueue:
            return taken, True
        assert payload is not None
        taken.append(payload.data.decode())
    return taken, False


def checked(repetition: Repetition, messages: str, *, whole: bool = True) -> None:
    """One pull of these messages."""
    for place, message in enumerate(messages):
        repetition.check(place, crc32c(message.encode()))
    if whole:
        repetition.end(len(messages))


def test_readers_of_the_failed_one_keep_their_error_and_later_ones_get_the_new_frames() -> None:
    partition = published("a")
    before = partition.subscribe()
    partition.fail(SourceUnavailable("gone"))
    partition.reopen()
    partition.publish(frame(b"a"))
    with closing(before), pytest.raises(SourceUnavailable):
        take_one(before)
    with closing(partition.subscribe()) as subscription:
        assert take(subscription, 3) == (["a"], False)


def test_a_loss_that_is_told_late_does_not_reach_the_frames_that_have_come_since() -> None:
    partition = published("a")
    epoch = partition.epoch
    partition.corrupt(SourceUnavailable("another checksum"), epoch)
    partition.reopen()
    partition.publish(frame(b"a"))
    partition.corrupt(SourceUnavailable("another checksum"), epoch)  # a second reader of the same frame
    with closing(partition.subscribe()) as subscription:
        assert take(subscription, 3) == (["a"], False)


def test_two_pulls_that_overlap_are_compared_each_from_its_own_beginning() -> None:
    repetition = Repetition()
    repetition.check(0, 1)
    repetition.check(0, 1)
    repetition.check(1, 2)
    with pytest.raises(SourceChanged, match="message 1 "):
        repetition.check(1, 3)


def test_what_is_open_or_dropped_is_not_reopened() -> None:
    partition = published("a")
    with pytest.raises(Conflict, match="cannot reopen"):
        partition.reopen()
    partition.drop()
    with pytest.raises(Conflict, match="cannot reopen"):
        partition.reopen()


def test_an_earlier_end_and_a_longer_whole_are_refused() -> None:
    repetition = Repetition()
    checked(repetition, "abc", whole=False)
    with pytest.raises(SourceChanged, match="ends after 2 messages; it had 3"):
        checked(repetition, "ab")
    checked(repetition, "abc")
    with pytest.raises(SourceChanged, match="message 3"):
        checked(repetition, "abcd", whole=False)


@given(
    tries=st.lists(
        st.tuples(
            st.sampled_from(["abcd", "xbcd", "abxd", "ab", "abcde"]),  # what the source has
            st.integers(0, 5),  # it fails before this frame, if it has so many
            st.integers(0, 5),  # the reader takes at most so many frames in this try
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_reader_that_resumes_over_any_tries_ends_with_one_state_of_the_source_or_an_error(
    tries: list[tuple[str, int, int]],
) -> None:
    partition, repetition = Partition("d", 0), Repetition()
    had = ""
    for content, fails_before, patience in tries:
        if partition.state is not PartitionState.OPEN:
            partition.reopen()
        with closing(partition.subscribe(len(had))) as subscription:
            try:
                for number, text in enumerate(content):
                    if number == fails_before:
                        raise SourceUnavailable("gone")
                    repetition.check(number, crc32c(text.encode()))
                    partition.publish(frame(text.encode()))
                repetition.end(len(content))
                partition.seal()
            except (SourceChanged, SourceUnavailable):
                had += "".join(take(subscription, patience)[0])  # what was there before it failed
                partition.fail(SourceUnavailable("gone"))
                continue
            taken, ended = take(subscription, patience)
            had += "".join(taken)
            assert content.startswith(had)
            if ended:
                assert had == content
                return
