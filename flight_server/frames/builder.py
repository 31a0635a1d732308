"""FrameBuilder: makes frames of one producer's messages, each with the dictionaries in force.

Guarantee: a frame refers to exactly the dictionary messages that its producer sent before it and did not replace.

The builder holds the memory of its producer's decoder: the payloads of the dictionaries in force and of those not yet
decoded, also when the messages have left RAM, and the reservations of the decoder's own copies.
"""

from __future__ import annotations

from typing import NamedTuple

from flight_server.memory import DICTIONARY_BYTES, FRAME_BYTES, Metadata, Reservation
from flight_server.protocol import MessageKind
from flight_server.protocol.checksums import crc32c

from .decoder import Accepted
from .dictionary_rooms import DictionaryRooms
from .message import NO_DICTIONARIES, DictionaryMessage, DictionaryState, Frame, Payload

DICTIONARIES_IN_A_FEW = 8
DICTIONARY_ENTRY_BYTES = 96
"""Of each dictionary in a larger state: ``DICTIONARY_BYTES`` counts only the one that came last."""


class Checked(NamedTuple):
    """A message that a decoder has accepted, or an encoder has made."""

    message: bytes
    accepted: Accepted

    @property
    def kept_bytes(self) -> int:
        """The bytes to reserve before it is added."""
        return len(self.message) + self.accepted.copied_bytes + FRAME_BYTES


class FrameBuilder:
    """The dictionaries in force of one producer. ``dataset`` and ``partition`` (None for several) are for errors."""

    def __init__(self, metadata: Metadata, dataset: str, partition: int | None = None) -> None:
        self._metadata = metadata
        self._dataset = dataset
        self._partition = partition
        self._sequence = 0
        self._state: DictionaryState = NO_DICTIONARIES
        self._held = DictionaryRooms[tuple[Payload, Reservation]]()

    def add(self, checked: Checked, reservation: Reservation) -> Frame | None:
        """The frame of a record batch; None for a dictionary, to which the next frames refer.

        Args:
            reservation: of ``checked.kept_bytes``; the message owns it from now on.

        Raises:
            OutOfBudget: ``metadata`` has no room for another dictionary, or for a state of many.
        """
        self._sequence += 1
        accepted = checked.accepted
        if accepted.kind is MessageKind.DICTIONARY:
            self._replace(checked, reservation)
            return None
        self._held.decoded()
        state = self._state
        if state is not NO_DICTIONARIES and state.room is None and len(state) > DICTIONARIES_IN_A_FEW:
            state.room = self._metadata.reserve(
                len(state) * DICTIONARY_ENTRY_BYTES,
                f"a batch with {len(state)} dictionaries",
                dataset=self._dataset,
                partition=self._partition,
            )
        return Frame(
            rows=accepted.rows,
            size_bytes=len(checked.message),
            crc32c=accepted.crc32c,
            metadata_crc32c=crc32c(accepted.metadata) if accepted.metadata else 0,
            payload=Payload(checked.message, reservation),
            dictionaries=state,
        )

    def _replace(self, checked: Checked, reservation: Reservation) -> None:
        accepted = checked.accepted
        room = self._metadata.reserve(
            DICTIONARY_BYTES, "another dictionary", dataset=self._dataset, partition=self._partition
        )
        copies = reservation.split(accepted.copied_bytes)
        payload = Payload(checked.message, reservation)
        self._held.add(accepted, (payload, copies))
        message = DictionaryMessage(
            size_bytes=len(checked.message),
            crc32c=accepted.crc32c,
            metadata_crc32c=crc32c(accepted.metadata),
            payload=payload,
            sequence=self._sequence,
            room=room,
        )
        self._state = self._state.replaced(accepted.dictionary_id, message, delta=accepted.dictionary_delta)
