"""Source: the contract between ``pulls`` and the sources, ``files`` and ``relay``.

Guarantee: a source is one snapshot of its data, taken when it was opened. Every pull of a partition gives the same
messages, byte for byte, or fails; with :class:`SourceChanged` where a new snapshot would differ.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from flight_server.datasets import Totals
from flight_server.frames import Checked, SchemaMessage


class SourceChanged(Exception):
    """The data on which the source was opened is no longer there, or has changed."""


class Source(Protocol):
    """One snapshot; holds neither tasks nor open files between pulls."""

    schema: SchemaMessage

    @property
    def held_bytes(self) -> int:
        """About how much it holds beside the schema."""

    @property
    def partition_count(self) -> int: ...

    def describe(self, index: int) -> str:
        """The origin of partition ``index``, for errors and ``why``; without secrets."""

    def pull(self, index: int, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        """The partition's messages, in order, each when it is asked for. Cancelling is safe.

        Args:
            so_far: the totals of the frames that this pull has published, to compare with the source's own.

        Raises:
            SourceChanged: see the class.
            FlightShuffleError: any other failure; its message does not name the dataset.
        """
