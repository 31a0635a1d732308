"""Message: a frame or a dictionary as its producer encoded it, and where its bytes are.

A frame is the message of one record batch. A message's bytes are in RAM (``payload``), on disk (``slice``), or both.
Size, checksums, and a frame's rows and dictionaries are known without the bytes. A :class:`Frame` object exists while
its bytes are in RAM or something refers to it (``table``).

Who holds what
    The message and each reader that is sending it refer to a :class:`Payload`. Spilling drops only the message's
    reference, so the bytes stay counted until a slow reader has sent them. A slice is a place in a segment
    (``storage.segments``) and keeps the segment's file.

Dictionaries
    Dictionary messages are not frames. All frames up to the next change share a :class:`DictionaryState`. Its messages
    leave RAM after all frames; their objects stay, because :func:`missing_messages` compares by identity. ``builder``
    holds the payloads that a decoder still uses.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from flight_server.memory import Reservation
from flight_server.protocol import BadFrame, CorruptFrame, locate
from flight_server.protocol.checksums import crc32c, message_crc32c
from flight_server.storage import SegmentSlice


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Payload:
    """Immutable bytes and the reservation that counts them. ``message``: of one that is not in RAM, kept because other
    readers find these bytes by its object.
    """

    data: bytes
    reservation: Reservation
    message: Message | None = None


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Message:
    """A stored frame or dictionary: its bytes in RAM, on disk, or both. ``size_bytes``: of the whole FlightData
    message. ``crc32c``, ``metadata_crc32c``: of its IPC message and of its app_metadata, see ``checksums``.
    """

    size_bytes: int
    crc32c: int
    metadata_crc32c: int = 0
    payload: Payload | None
    slice: SegmentSlice | None = None
    _shared: weakref.ref[Payload] | None = field(default=None, init=False)

    @property
    def resident(self) -> bool:
        """Whether the message itself holds its bytes in RAM."""
        return self.payload is not None

    @property
    def held_bytes(self) -> int:
        """The bytes that are released when the message leaves RAM."""
        return 0 if self.payload is None else self.payload.reservation.size_bytes

    def place(self, slice_: SegmentSlice) -> None:
        """The bytes are on disk, too."""
        self.slice = slice_

    def move_to(self, slice_: SegmentSlice) -> None:
        """The bytes are on disk there: drop the reference to those in RAM."""
        self.place(slice_)
        self.leave_ram()

    def leave_ram(self) -> None:
        """Drop the RAM copy of a message that is on disk."""
        assert self.slice is not None
        if self.payload is not None:
            # Readers that are sending it hold only the bytes.
            reservation = self.payload.reservation
            reservation.shrink(max(0, reservation.size_bytes - self.size_bytes))
            self.share(self.payload)
            self.payload = None

    def at_hand(self) -> Payload | None:
        """The bytes if the message, or a reader that has read them back, has them."""
        if self.payload is not None:
            return self.payload
        return self._shared() if self._shared is not None else None

    def share(self, payload: Payload) -> None:
        """Let other readers use the bytes that a reader has read back, while that reader holds them."""
        self._shared = weakref.ref(payload)
        payload.message = self

    def read_back(self) -> bytes:
        """The bytes from disk, checked. Blocks.

        If the checksums differ they are read once more, from the medium; bytes that are right then are not damaged.

        Raises:
            CorruptFrame: the checksums differ both times.
            DiskTrouble: the disk returns an error.
        """
        assert self.slice is not None
        for anew in (False, True):
            data = self.slice.read(anew=anew)
            if stored_checksums(data) == (self.crc32c, self.metadata_crc32c):
                return data
        raise CorruptFrame(
            f"data loss: a message of {self.size_bytes} bytes ({self.slice}) came back from disk as {len(data)} bytes "
            "with another checksum, twice; write the dataset again"
        )


@dataclass(slots=True, kw_only=True, eq=False)
class DictionaryMessage(Message):
    """One dictionary message. ``sequence``: its number among its producer's messages. ``room``: counts the object
    itself, see ``memory.accounts``.
    """

    sequence: int
    room: Reservation | None = None


class _Link(NamedTuple):
    """A dictionary message, linked to the messages that it adds to. States share links."""

    message: DictionaryMessage
    before: _Link | None


Links = dict[DictionaryMessage, _Link]


class DictionaryState:
    """The dictionaries in force: of each dictionary id the last replacement and the deltas after it.

    A delta costs one link, however many there were before.

    Args:
        by_id: the messages of each id. The same messages always precede a message.
        links: of states made before, to share.
    """

    __slots__ = ("_last", "room")

    def __init__(self, by_id: dict[int, tuple[DictionaryMessage, ...]], links: Links | None = None) -> None:
        links = {} if links is None else links
        self._last: dict[int, _Link] = {}
        self.room: Reservation | None = None  # what it takes beyond its messages' own, see ``builder``
        for number, messages in by_id.items():
            link: _Link | None = None
            for message in messages:
                link = links.setdefault(message, _Link(message, link))
            if link is not None:
                self._last[number] = link

    def __len__(self) -> int:
        return len(self._last)

    @property
    def by_id(self) -> dict[int, tuple[DictionaryMessage, ...]]:
        """The messages of each id, made at each call."""
        return {number: tuple(reversed(list(_after(link, None)))) for number, link in self._last.items()}

    def replaced(self, dictionary_id: int, message: DictionaryMessage, *, delta: bool) -> DictionaryState:
        state = DictionaryState({})
        before = self._last.get(dictionary_id) if delta else None
        state._last = {**self._last, dictionary_id: _Link(message, before)}
        return state


NO_DICTIONARIES = DictionaryState({})


def _after(last: _Link, known: DictionaryMessage | None) -> Iterator[DictionaryMessage]:
    """The messages from the link's back to before ``known``, the last one first."""
    link: _Link | None = last
    while link is not None and link.message is not known:
        yield link.message
        link = link.before


def missing_messages(sent: DictionaryState, needed: DictionaryState) -> list[DictionaryMessage]:
    """The messages that a reader that was sent ``sent`` needs before a batch that needs ``needed``.

    Deltas are enough if the reader's messages are a prefix of the needed ones; otherwise all are sent again. They are
    in the producer's order: a nested dictionary's values refer to dictionaries sent before.
    """
    if sent is needed:
        return []
    missing: list[DictionaryMessage] = []
    for dictionary_id, last in needed._last.items():
        had = sent._last.get(dictionary_id)
        missing.extend(_after(last, None if had is None else had.message))
    missing.sort(key=lambda message: message.sequence)
    return missing


def messages_of(states: Iterable[DictionaryState]) -> Iterator[DictionaryMessage]:
    """The messages that the states need, each once; those of one dictionary in their order."""
    seen: set[DictionaryMessage] = set()
    for state in states:
        for last in state._last.values():
            # The same messages always precede a message.
            unseen = list(takewhile(lambda message: message not in seen, _after(last, None)))
            seen.update(unseen)
            yield from reversed(unseen)


@dataclass(slots=True, kw_only=True, eq=False)
class Frame(Message):
    """A record batch. ``dictionaries``: those in force when it was sent. ``home``: the ``FrameTable`` that holds it, in
    which ``index`` is its number.
    """

    rows: int
    dictionaries: DictionaryState = NO_DICTIONARIES
    home: weakref.ref[Any] | None = field(default=None, init=False)
    index: int = field(default=0, init=False)

    def place(self, slice_: SegmentSlice) -> None:
        Message.place(self, slice_)
        home = self.home() if self.home is not None else None
        if home is not None:
            home.placed(self.index, slice_)

    def leave_ram(self) -> None:
        was_resident = self.resident
        Message.leave_ram(self)
        home = self.home() if self.home is not None else None
        if was_resident and home is not None:
            home.left(self.index, self)


def stored_checksums(message: bytes) -> tuple[int, int]:
    """CRC-32C of a stored message's IPC message and of its app_metadata.

    Bytes that are no FlightData message are covered as a whole, and do not match.
    """
    try:
        parts = locate(message)
    except BadFrame:
        return crc32c(message), 0
    return message_crc32c(parts.header, parts.body), crc32c(parts.metadata)
