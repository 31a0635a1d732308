"""FrameBuilder: makes frames of one producer's messages, each with the dictionaries in force.

Guarantee: a frame refers to exactly the dictionary messages that its producer had sent before it and not replaced.

Who holds what
    The builder holds the bytes of the dictionaries in force, of those that a decoder has not read yet, and the
    reservations of the decoder's own copies: a decoder needs them all, also when the messages have left RAM.
"""

from __future__ import annotations

from dataclasses import dataclass

from flight_server.memory import DICTIONARY_BYTES, FRAME_BYTES, Metadata, Reservation
from flight_server.protocol import MessageKind
from flight_server.protocol.checksums import crc32c

from .decoder import Accepted
from .message import NO_DICTIONARIES, DictionaryMessage, DictionaryState, Frame, Payload


@dataclass(frozen=True, slots=True)
class Checked:
    """A whole message, and what its decoder or encoder says of it."""

    message: bytes
    accepted: Accepted

    @property
    def kept_bytes(self) -> int:
        """What is to be reserved for it before it is added."""
        return len(self.message) + self.accepted.copied_bytes + FRAME_BYTES


class FrameBuilder:
    """See the module's text.

    Args:
        metadata: where dictionaries are counted.
        dataset, partition: whose messages these are, for errors; partition None for several.
    """

    def __init__(self, metadata: Metadata, dataset: str, partition: int | None = None) -> None:
        self._metadata = metadata
        self._dataset = dataset
        self._partition = partition
        self._sequence = 0
        self._state: DictionaryState = NO_DICTIONARIES
        self._in_force: dict[int, list[Payload]] = {}
        self._copies: dict[int, list[Reservation]] = {}
        self._undecoded: list[Payload] = []

    def add(self, checked: Checked, reservation: Reservation) -> Frame | None:
        """The frame of a record batch; None for a dictionary, which the next frames refer to.

        Args:
            reservation: ``checked.kept_bytes``; it belongs to the message from now on.

        Raises:
            OutOfBudget: there is no room for another dictionary.
        """
        self._sequence += 1
        accepted = checked.accepted
        if accepted.kind is MessageKind.DICTIONARY:
            self._replace(checked, reservation)
            return None
        self._undecoded.clear()
        return Frame(
            rows=accepted.rows,
            size_bytes=len(checked.message),
            crc32c=accepted.crc32c,
            metadata_crc32c=crc32c(accepted.metadata),
            payload=Payload(checked.message, reservation),
            dictionaries=self._state,
        )

    def _replace(self, checked: Checked, reservation: Reservation) -> None:
        accepted = checked.accepted
        room = self._metadata.reserve(
            DICTIONARY_BYTES, "another dictionary", dataset=self._dataset, partition=self._partition
        )
        number = accepted.dictionary_id
        if not accepted.dictionary_delta:
            self._copies.pop(number, None)
            self._in_force.pop(number, None)
        if accepted.copied_bytes:
            self._copies.setdefault(number, []).append(reservation.split(accepted.copied_bytes))
        payload = Payload(checked.message, reservation)
        self._undecoded.append(payload)
        self._in_force.setdefault(number, []).append(payload)
        message = DictionaryMessage(
            payload,
            self._sequence,
            accepted.crc32c,
            metadata_crc32c=crc32c(accepted.metadata),
            room=room,
        )
        self._state = self._state.replaced(number, message, delta=accepted.dictionary_delta)
