"""Repetition: each pull of a partition must give the messages that earlier pulls gave.

Guarantee: a message is let through only if no earlier pull had another one in its place. So a reader that got its first
k frames from one pull, and the rest from another, has read one state of the source.

Dictionaries count, too: the same indices into another one are other rows. The CRC-32C of each message is kept, four
bytes. Comparing only at the end, or where an earlier pull broke off, is not enough: of three pulls the second may be
shorter than the first and different, and its readers resume in the third.
"""

from __future__ import annotations

from array import array

from .source import SourceChanged


class Repetition:
    """The messages of one partition."""

    def __init__(self) -> None:
        self._known = array("I")
        self._whole = False

    def begin(self) -> Repeated:
        return Repeated(self)


class Repeated:
    """One pull's place among the messages; an earlier pull may not have ended yet."""

    def __init__(self, repetition: Repetition) -> None:
        self._repetition = repetition
        self._place = 0

    def check(self, crc32c: int) -> None:
        """Check the pull's next message. Raises SourceChanged: another message was in its place, or the partition had
        ended before it.
        """
        known, whole = self._repetition._known, self._repetition._whole
        if self._place == len(known) and not whole:
            known.append(crc32c)
        elif self._place == len(known) or known[self._place] != crc32c:
            raise SourceChanged(f"its message {self._place} is not what it was when it was pulled before")
        self._place += 1

    def end(self) -> None:
        """The pull has ended. Raises SourceChanged: earlier pulls had more messages."""
        known = self._repetition._known
        if self._place < len(known):
            raise SourceChanged(
                f"it ends after {self._place} messages; it had {len(known)} when it was pulled before"
            )
        self._repetition._whole = True
