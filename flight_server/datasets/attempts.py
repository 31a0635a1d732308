"""Attempts: the writes of a shuffle's producers before the seal.

Guarantee: a sealed shuffle holds exactly the rows of the accepted attempts, each attempt whole.

The states, and the verbs that change them, stand in ``_AFTER``. An error is a ``Conflict``, raised by the verb's
method; a producer whose attempt was discarded gets it at its next frame. A seal hands the frames of the accepted
attempts over to their partitions. If it fails, the attempts take them back; when it has succeeded, all attempts are
forgotten, and the other ones discarded.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from flight_server.concurrency import FEW, at_once, later, transitions
from flight_server.frames import Frame, FrameTable
from flight_server.memory import ATTEMPT_BYTES, Metadata, Reservation
from flight_server.protocol import AlreadyExists, Commit, Conflict, InvalidRequest

from .partition import Partition

HANDED_AT_ONCE = 512
"""An accepted attempt releases so many frames at once, after its partitions have taken them."""


class AttemptState(StrEnum):
    """See ``_AFTER``."""

    WRITING = "writing"
    COMMITTED = "committed"
    HANDED_OVER = "handed over"
    DISCARDED = "discarded"


_AFTER = transitions(
    AttemptState,
    """
    state          publish    commit       hand over      take back    discard
    WRITING        WRITING    COMMITTED    error          error        DISCARDED
    COMMITTED      error      COMMITTED    HANDED_OVER    COMMITTED    DISCARDED
    HANDED_OVER    error      error        error          COMMITTED    DISCARDED
    DISCARDED      error      error        error          error        DISCARDED
    """,
)


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of one producer: frames for any partitions, in order of arrival."""

    dataset: str
    producer: int
    attempt: str
    _metadata: Metadata
    state: AttemptState = field(default=AttemptState.WRITING, init=False)
    rows: int = field(default=0, init=False)
    total_bytes: int = field(default=0, init=False)
    why_discarded: str = field(default="its put ended without a commit", init=False)
    _room: Reservation = field(init=False)
    frames: FrameTable = field(init=False)
    # Of each frame of the table.
    _partitions: array[int] = field(default_factory=partial(array, "I"), init=False)

    def __post_init__(self) -> None:
        what = f"producer {self.producer} attempt {self.attempt}"
        self._room = self._metadata.reserve(ATTEMPT_BYTES, what, dataset=self.dataset, producer=self.producer)
        self.frames = FrameTable(self._metadata, self.dataset)

    def __str__(self) -> str:
        return f"dataset {self.dataset!r} producer {self.producer} attempt {self.attempt}"

    @property
    def is_open(self) -> bool:
        """Whether its producer may send more."""
        return self.state is AttemptState.WRITING

    @property
    def frame_count(self) -> int:
        return len(self._partitions)

    @property
    def partitions(self) -> set[int]:
        return set(self._partitions)

    def partition_bytes(self) -> Generator[None, None, Counter[int]]:
        """The bytes of its frames for each partition, in steps."""
        sizes: Counter[int] = Counter()
        for number, (partition, size_bytes) in enumerate(
            zip(self._partitions, self.frames.sizes(), strict=True)
        ):
            sizes[partition] += size_bytes
            if number % HANDED_AT_ONCE == 0:
                yield
        return sizes

    def publish(self, partition: int, frame: Frame) -> None:
        """Keep a frame for ``partition``. Raises OutOfBudget if ``metadata`` has no room for its record."""
        self._check_step("publish")
        self.frames.append(frame, frame.size_bytes)
        self._partitions.append(partition)
        self.rows += frame.rows
        self.total_bytes += frame.size_bytes

    def commit(self, totals: Commit) -> None:
        """The producer has sent all. Twice with the same totals is fine. Raises InvalidRequest: the totals differ from
        what arrived; the attempt is discarded.
        """
        self._check_step("commit")
        if totals != Commit(self.rows, self.frame_count):
            arrived = f"{self.rows} rows in {self.frame_count} frames"
            self.discard()
            raise InvalidRequest(
                f"{self} commits {totals.rows} rows in {totals.frames} frames, but {arrived} arrived; "
                "nothing of it was kept, write it again",
                dataset=self.dataset,
                producer=self.producer,
            )
        self.state = self._check_step("commit")

    def discard(self) -> None:
        """Release all frames. Twice is fine."""
        self.end()
        self.release()

    def end(self) -> None:
        """Discard it; the caller releases its frames. Twice is fine."""
        self.state = self._check_step("discard")

    def release(self) -> None:
        """Release the frames of a discarded attempt. Twice is fine."""
        self.frames.release(len(self.frames))
        self._partitions = array("I")

    def hand_over(self, partition: Callable[[int], Partition]) -> Generator[None, None, None]:
        """Give each frame to its partition, in order, and release all, in steps. After each step a frame is in one of
        both. Raises Conflict: the attempt was discarded meanwhile.
        """
        table = self.frames
        for index, place in enumerate(self._partitions):
            if index % HANDED_AT_ONCE == 0:
                table.release(index)
                yield
                self._check_step("hand over")
            partition(place).adopt(table, index)
        self.state = self._check_step("hand over")
        table.release(len(table))

    def take_back(self, partition: Callable[[int], Partition]) -> Generator[None, None, None]:
        """Undo :meth:`hand_over`, in the same order of attempts, in steps. Raises as it does."""
        self.frames = table = FrameTable(self._metadata, self.dataset)
        for index, place in enumerate(self._partitions):
            if index % HANDED_AT_ONCE == 0:
                yield
                self._check_step("take back")
            partition(place).give_back(table)
        self.state = self._check_step("take back")

    def _check_step(self, verb: str) -> AttemptState:
        after = _AFTER.get((self.state, verb))
        if after is not None:
            return after
        if self.state is AttemptState.DISCARDED:
            why = f"was discarded: {self.why_discarded}; stop this task"
        else:
            why = f"is {self.state}: it cannot {verb} now"
        raise Conflict(f"{self} {why}", dataset=self.dataset, producer=self.producer)

    def victims(self) -> Iterator[Frame]:
        """The frames in RAM, oldest first. No reader can ask for them yet."""
        return self.frames.in_ram(0, len(self.frames))


@dataclass(slots=True, eq=False)
class Attempts:
    """All attempts of one dataset."""

    dataset: str
    _metadata: Metadata = field(default_factory=Metadata)
    _by_key: dict[tuple[int, str], Attempt] = field(default_factory=dict, init=False)
    _first_commit: dict[int, str] = field(default_factory=dict, init=False)
    # The accepted attempt of each producer; None while no seal has begun, or none since one that failed.
    accepted: dict[int, str] | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def committed_producers(self) -> int:
        return len(self._first_commit)

    def begin(self, producer: int, attempt: str) -> Attempt:
        """Add an attempt. Raises AlreadyExists: the same attempt is being written or has committed; OutOfBudget:
        ``metadata`` has no room for it.
        """
        known = self._by_key.get((producer, attempt))
        if known is not None and known.state is not AttemptState.DISCARDED:
            raise AlreadyExists(
                f"{known} is already {known.state}: every try needs an attempt id of its own "
                "(in Spark: taskAttemptId)",
                dataset=self.dataset,
                producer=producer,
            )
        started = Attempt(self.dataset, producer, attempt, self._metadata)
        self._by_key[producer, attempt] = started
        return started

    def committed(self, attempt: Attempt) -> None:
        self._first_commit.setdefault(attempt.producer, attempt.attempt)

    def chosen(self, attempts: dict[int, str] | None) -> list[Attempt] | None:
        """The attempts to accept, in the order of their producers; None if they were accepted before.

        Args:
            attempts: the attempt of each producer; None for those accepted before, or the first committed one of each.

        Raises:
            Conflict: an attempt has not committed, or others were accepted before.
        """
        chosen = dict(self._first_commit) if attempts is None else attempts
        if self.accepted is not None:
            if attempts is not None and attempts != self.accepted:
                raise Conflict.about(
                    self.dataset, "was sealed with other attempts; it cannot be sealed again"
                )
            return None
        for producer, attempt in chosen.items():
            known = self._by_key.get((producer, attempt))
            if known is None or known.state is not AttemptState.COMMITTED:
                state = "unknown here" if known is None else known.state
                raise Conflict.about(
                    self.dataset,
                    f"cannot be sealed: producer {producer} attempt {attempt} is {state}, not committed; run that "
                    "task again",
                    producer=producer,
                )
        return [self._by_key[producer, chosen[producer]] for producer in sorted(chosen)]

    def accept(self, chosen: list[Attempt]) -> None:
        """Accept what :meth:`chosen` returned; :meth:`sealed` is to follow, or that the seal has failed."""
        self.accepted = {attempt.producer: attempt.attempt for attempt in chosen}

    def sealed(self) -> None:
        """Partitions have the frames of the accepted attempts: discard the other ones, and forget all."""
        _discard(
            [each for each in self if each.state is not AttemptState.HANDED_OVER],
            "the dataset was sealed with other attempts",
        )
        self._by_key.clear()

    def discard(self, attempt: Attempt) -> None:
        attempt.discard()
        if self._by_key.get((attempt.producer, attempt.attempt)) is attempt:
            del self._by_key[attempt.producer, attempt.attempt]
            if self._first_commit.get(attempt.producer) == attempt.attempt:
                del self._first_commit[attempt.producer]

    def discard_all(self, why: str) -> None:
        """The dataset is gone; ``why`` follows its name."""
        _discard(list(self), f"the dataset {why}")
        self._by_key.clear()


def _discard(attempts: list[Attempt], why: str) -> None:
    """Discard them now. Many frames are released in steps, soon."""
    for attempt in attempts:
        attempt.why_discarded = why
        attempt.end()
    if sum(attempt.frame_count for attempt in attempts) > FEW:
        later(_releasing(attempts))
    else:
        at_once(_releasing(attempts))


def _releasing(attempts: list[Attempt]) -> Generator[None, None, None]:
    for attempt in attempts:
        attempt.release()
        yield


def joined(attempts: list[Attempt], partition_bytes: int | None) -> Generator[None, None, dict[int, int]]:
    """The partition that takes the frames for each partition of these attempts, in steps.

    With ``partition_bytes`` neighbours go together while they have at most so many, and the result is numbered from 0;
    no reader may have asked for the partitions before.
    """
    sizes: Counter[int] = Counter()
    for attempt in attempts:
        if partition_bytes is None:
            sizes.update(dict.fromkeys(attempt.partitions, 0))
        else:
            sizes.update((yield from attempt.partition_bytes()))
        yield
    if partition_bytes is None:
        return {index: index for index in sizes}
    numbers: dict[int, int] = {}
    number, room = -1, 0
    for index in sorted(sizes):
        if number < 0 or sizes[index] > room:
            number, room = number + 1, partition_bytes
        room -= sizes[index]
        numbers[index] = number
        yield
    return numbers
