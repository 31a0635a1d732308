"""Frame: one record batch as its producer encoded it, and where its bytes are now.

A frame's bytes are in RAM (``payload``), on disk (``slice``), or both. What never changes is known
without them: rows, size, checksums, and the dictionaries that a reader needs before it. A :class:`Frame` is an
object for as long as its bytes are in RAM or something refers to it; see ``frame_table``.

Who holds what
    A :class:`Payload` is bytes with their reservation; it lives while anybody refers to it: the frame,
    and each reader that is just sending it. Spilling drops only the frame's reference, so a frame that
    is on its way to a slow reader stays counted until that reader has it.
    A slice is a place in a segment (see ``spill``) and keeps that segment's file alive.

Dictionaries
    Dictionary messages are no frames. A :class:`DictionaryState` is the tuple of messages that
    were in force when a batch was sent; it is shared by all frames up to the next change, and its
    messages carry their reservation like any payload. They stay in RAM: each reader needs them
    again, and what a reader has been sent is compared by identity in :func:`missing_messages`.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from .checksums import crc32c, message_crc32c
from .errors import BadFrame, CorruptFrame
from .memory import Reservation
from .spill import SegmentSlice
from .wire import locate


class Payload:
    """Immutable bytes and the reservation that counts them."""

    __slots__ = ("__weakref__", "_frame", "data", "reservation")

    def __init__(self, data: bytes, reservation: Reservation) -> None:
        self.data = data
        self.reservation = reservation
        self._frame: Frame | None = None

    def keep(self, frame: Frame) -> None:
        """Keep the object of a frame that is not in RAM, so that other readers find these bytes by it."""
        self._frame = frame


class Home(Protocol):
    """What holds a frame, and is told when it moves; see ``frame_table``."""

    def placed(self, index: int, slice_: SegmentSlice) -> None:
        """The bytes of its frame ``index`` are on disk there, too."""

    def left(self, index: int, frame: Frame) -> None:
        """Its frame ``index`` has left RAM."""


class Message(Protocol):
    """What is sent as it is stored: a frame or a dictionary."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def crc32c(self) -> int: ...

    def at_hand(self) -> Payload | None:
        """The bytes if anything has them in RAM."""

    def share(self, payload: Payload) -> None:
        """Let other readers use what one has read back, for as long as that one uses it."""

    def read_back(self) -> bytes:
        """The bytes from disk, checked. Blocks.

        Raises:
            CorruptFrame: they cannot be read, or are not those that were written.
        """


class DictionaryMessage:
    """One dictionary message.

    Args:
        sequence: its place among its producer's messages.
        crc32c: of its IPC message, see ``checksums``.
    """

    __slots__ = ("crc32c", "payload", "sequence")

    def __init__(self, payload: Payload, sequence: int, crc32c: int) -> None:
        self.payload = payload
        self.sequence = sequence
        self.crc32c = crc32c

    @property
    def size_bytes(self) -> int:
        return len(self.payload.data)

    def at_hand(self) -> Payload:
        """The bytes, which are always in RAM."""
        return self.payload

    def share(self, payload: Payload) -> None:
        """Do nothing: the bytes never come from disk."""

    def read_back(self) -> bytes:
        """The bytes."""
        return self.payload.data


class DictionaryState:
    """The dictionaries in force: for each dictionary id its replacement and the deltas after it."""

    __slots__ = ("by_id",)

    def __init__(self, by_id: dict[int, tuple[DictionaryMessage, ...]]) -> None:
        self.by_id = by_id

    def replaced(self, dictionary_id: int, message: DictionaryMessage, *, delta: bool) -> DictionaryState:
        """The state after one more message."""
        before = self.by_id.get(dictionary_id, ()) if delta else ()
        return DictionaryState({**self.by_id, dictionary_id: (*before, message)})


NO_DICTIONARIES = DictionaryState({})


def missing_messages(sent: DictionaryState, wanted: DictionaryState) -> list[DictionaryMessage]:
    """What a reader that was sent ``sent`` needs before a batch that needs ``wanted``.

    A delta is enough where the reader's messages are a prefix of the wanted ones; otherwise the
    replacement and all deltas are sent again. The producer's order is kept, because the values of a
    nested dictionary refer to dictionaries sent before.
    """
    if sent is wanted:
        return []
    missing: list[DictionaryMessage] = []
    for dictionary_id, messages in wanted.by_id.items():
        had = sent.by_id.get(dictionary_id, ())
        known = 0
        while known < min(len(had), len(messages)) and had[known] is messages[known]:
            known += 1
        missing.extend(messages[known:] if known == len(had) else messages)
    missing.sort(key=lambda message: message.sequence)
    return missing


class Frame:
    """See the module's text.

    Args:
        rows: of the record batch.
        size_bytes: of the whole FlightData message.
        crc32c: of its IPC message, see ``checksums``.
        metadata_crc32c: of its app_metadata, which the other one does not cover.
    """

    __slots__ = (
        "__weakref__",
        "_shared",
        "crc32c",
        "dictionaries",
        "home",
        "index",
        "metadata_crc32c",
        "payload",
        "rows",
        "size_bytes",
        "slice",
    )

    def __init__(
        self,
        *,
        rows: int,
        size_bytes: int,
        crc32c: int,
        metadata_crc32c: int = 0,
        payload: Payload | None,
        dictionaries: DictionaryState = NO_DICTIONARIES,
        slice_: SegmentSlice | None = None,
    ) -> None:
        self.rows = rows
        self.size_bytes = size_bytes
        self.crc32c = crc32c
        self.metadata_crc32c = metadata_crc32c
        self.dictionaries = dictionaries
        self.payload = payload
        self.slice = slice_
        self._shared: weakref.ref[Payload] | None = None
        self.home: weakref.ref[Home] | None = None  # what holds it
        self.index = 0  # its number there

    @property
    def resident(self) -> bool:
        """True if the bytes are in RAM on the frame's own account."""
        return self.payload is not None

    @property
    def held_bytes(self) -> int:
        """What comes free when the frame leaves RAM."""
        return 0 if self.payload is None else self.payload.reservation.size_bytes

    def place(self, slice_: SegmentSlice) -> None:
        """The bytes are on disk, too."""
        self.slice = slice_
        home = self.home() if self.home is not None else None
        if home is not None:
            home.placed(self.index, slice_)

    def move_to(self, slice_: SegmentSlice) -> None:
        """The bytes are on disk now: drop those in RAM. Readers that send them still hold theirs."""
        self.place(slice_)
        self.leave_ram()

    def leave_ram(self) -> None:
        """Drop the RAM copy of a frame that is on disk already."""
        assert self.slice is not None
        if self.payload is not None:
            # Readers that send the bytes hold no more than the bytes.
            reservation = self.payload.reservation
            reservation.shrink(max(0, reservation.size_bytes - self.size_bytes))
            self.share(self.payload)
            self.payload = None
            home = self.home() if self.home is not None else None
            if home is not None:
                home.left(self.index, self)

    def at_hand(self) -> Payload | None:
        """The bytes if somebody has them in RAM: the frame, or a reader that has just read them back."""
        if self.payload is not None:
            return self.payload
        return self._shared() if self._shared is not None else None

    def share(self, payload: Payload) -> None:
        """Let other readers use what one has read back, for as long as that one uses it."""
        self._shared = weakref.ref(payload)
        payload.keep(self)

    def read_back(self) -> bytes:
        """The bytes from disk, checked. Blocks.

        Bytes that are not right are read once more, from the medium: what reads right then is no damage.

        Raises:
            CorruptFrame: they are not those that were written, also when they are read again.
            DiskTrouble: the disk does not give them now.
        """
        assert self.slice is not None
        for anew in (False, True):
            data = self.slice.read(anew=anew)
            if stored_checksums(data) == (self.crc32c, self.metadata_crc32c):
                return data
        raise CorruptFrame(
            f"data loss: a frame of {self.size_bytes} bytes ({self.slice}) came back from disk as {len(data)} bytes "
            "with another checksum, twice; write the dataset again"
        )


def stored_checksums(message: bytes) -> tuple[int, int]:
    """CRC-32C of a stored message's IPC message and of its app_metadata: all that a reader takes from it.

    Bytes that are no FlightData message are covered as a whole, so that damage is never taken for what it was.
    """
    try:
        parts = locate(message)
    except BadFrame:
        return crc32c(message), 0
    return message_crc32c(parts.header, parts.body), crc32c(parts.metadata)
