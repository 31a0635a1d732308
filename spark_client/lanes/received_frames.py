"""The frames that a stream has received of its partition, compared with the request and the server's totals.

Guarantee: :meth:`ReceivedFrames.fault` finds every difference between the batches received and the server's totals that
the totals can show: frames that lack or are too many, other rows, another checksum, another range.

Totals
    Of a read to the partition's end the server sends those of the whole partition, so rows and checksum are compared if
    the read began at frame 0, over all connections. Of a read with ``until`` it sends those of the last connection's
    range (``transfer.frame_ranges``), so they are compared for that connection. The frames are counted in both.
"""

from __future__ import annotations

from collections.abc import Mapping

from flight_server.protocol import FROM_TRAILER, UNTIL_TRAILER
from flight_server.protocol.checksums import running_crc32c

from .lane import BatchBurst, ReadTotals


class ReceivedFrames:
    """The frames from ``start`` to before ``until``; None: to the partition's end."""

    def __init__(self, start: int, until: int | None) -> None:
        self.start = start
        self.until = until
        self.next_frame = start
        self.rows = 0
        self.asked_from = start
        self._rows_before = 0
        self._crc32c = 0 if start == 0 or until is not None else None  # None: not all checksums are known

    @property
    def count(self) -> int:
        return self.next_frame - self.start

    def ask(self) -> None:
        """A new connection begins, which asks for the next frame."""
        self.asked_from = self.next_frame
        if self.until is not None:
            self._rows_before, self._crc32c = self.rows, 0

    def add(self, burst: BatchBurst) -> None:
        self.next_frame += len(burst.batches)
        self.rows += sum([batch.num_rows for batch in burst.batches])
        if len(burst.checksums) != len(burst.batches):
            self._crc32c = None
        elif self._crc32c is not None:
            for checksum in burst.checksums:
                self._crc32c = running_crc32c(self._crc32c, checksum)

    @property
    def is_past(self) -> bool:
        """Whether frames came that were not asked for."""
        return self.until is not None and self.next_frame > self.until

    def is_short(self, totals: ReadTotals) -> bool:
        """Whether frames lack, which another connection may have."""
        return self.next_frame < self._end(totals)

    def fault(self, totals: ReadTotals, headers: Mapping[str, str]) -> str | None:
        """Why the frames, of which none lacks, differ from the request; None if they do not."""
        began, until = headers.get(FROM_TRAILER), headers.get(UNTIL_TRAILER)
        ranged = self.until is not None
        is_wrong = (
            self.next_frame > self._end(totals)
            or (ranged and (self.next_frame != self.until or until != str(self.until)))
            or ((ranged or self.start == 0) and self.rows - self._rows_before != totals.rows)
            or (self._crc32c is not None and totals.crc32c not in (None, self._crc32c))
            or (began is not None and began != str(self.asked_from))
        )
        if not is_wrong:
            return None
        asked = f"frame {self.asked_from}" + (f" to before {self.until}" if ranged else "")
        answered = f"frame {began}" + (f" to before {until}" if ranged else "")
        return (
            f"{self.rows - self._rows_before} rows up to frame {self.next_frame}, last asked from {asked}; the server "
            f"counts {totals.rows} rows in {totals.frames} frames, and says that it gave from {answered}; checksums "
            f"{_hex(self._crc32c)} and {_hex(totals.crc32c)}"
        )

    def _end(self, totals: ReadTotals) -> int:
        return totals.frames if self.until is None else self.asked_from + totals.frames


def _hex(checksum: int | None) -> str:
    return "unknown" if checksum is None else f"{checksum:08x}"
