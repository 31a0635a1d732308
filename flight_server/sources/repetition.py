"""Repetition: each pull of a partition must give the messages that earlier pulls gave.

Guarantee: a message is let through only if no earlier pull of the partition had another one in its place. So a reader
that was given the first k frames of one pull, and the rest of another, has read one state of the source, or gets an
error.

Every message counts, dictionaries too: the same indices into another dictionary are other rows. The CRC-32C of each
message that was let through is kept, four bytes. Comparing only at the end, or where an earlier pull broke off, is not
enough: of three pulls the second may be shorter than the first and different, and its readers resume in the third.
"""

from __future__ import annotations

from array import array

from .source import SourceChanged


class Repetition:
    """The messages of one partition. Pure state: no I/O, and nothing is awaited."""

    def __init__(self) -> None:
        self._known = array("I")
        self._whole = False

    def begin(self) -> Repeated:
        return Repeated(self)


class Repeated:
    """One pull's place among the messages. Each pull has its own, because an earlier one may not have ended yet."""

    def __init__(self, repetition: Repetition) -> None:
        self._repetition = repetition
        self._place = 0

    def check(self, crc32c: int) -> None:
        """Return if the pull's next message may be published.

        Raises:
            SourceChanged: another message was in its place, or the partition had ended before it.
        """
        known, whole = self._repetition._known, self._repetition._whole
        if self._place == len(known) and not whole:
            known.append(crc32c)
        elif self._place == len(known) or known[self._place] != crc32c:
            raise SourceChanged(f"its message {self._place} is not what it was when it was pulled before")
        self._place += 1

    def end(self) -> None:
        """The pull has ended: the partition is whole.

        Raises:
            SourceChanged: earlier pulls had more messages.
        """
        known = self._repetition._known
        if self._place < len(known):
            raise SourceChanged(
                f"it ends after {self._place} messages; it had {len(known)} when it was pulled before"
            )
        self._repetition._whole = True
