"""Source: the contract between ``pulls`` and the sources, ``files`` and ``relay``.

Guarantee: a source is one snapshot of what it pulls from, taken when it was opened. Every pull of a partition gives the
same messages, byte for byte, or fails; with :class:`SourceChanged` where a new snapshot would differ.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from flight_server.datasets import Totals
from flight_server.frames import Checked, SchemaMessage


class SourceChanged(Exception):
    """What the source was opened on is no longer there, or has changed."""


class Source(Protocol):
    """One snapshot; holds neither tasks nor open files between pulls."""

    schema: SchemaMessage

    @property
    def held_bytes(self) -> int:
        """What it holds beside the schema, about."""

    @property
    def partition_count(self) -> int: ...

    def describe(self, index: int) -> str:
        """Where partition ``index`` comes from, for errors and ``why``; without secrets."""

    def pull(self, index: int, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        """The partition's messages, in order, each when it is asked for. Cancelling is safe.

        Args:
            so_far: the totals of what this pull has published, to compare with the source's own.

        Raises:
            SourceChanged: see the class.
            FlightShuffleError: any other failure; its message does not name the dataset.
        """
