"""What rooms above attach to a dataset, as far as the dataset knows it."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from flight_server.concurrency import Changes

from .transactions import Transactions


class Puller(Protocol):
    """The pulls of a dataset of kind ``source``; see ``sources.pulls``. It holds no reference to the dataset."""

    def want(self, dataset: Any, index: int) -> None:
        """A reader has come: start a pull if the partition needs one. Never waits."""

    def close(self) -> None:
        """Stop: the dataset was dropped."""

    def statistics(self) -> dict[str, Any]: ...


class Changelogged(Protocol):
    """What a dataset of kind ``changelog`` holds; see ``changelogs.changelog``."""

    @property
    def declared(self) -> Declared: ...

    transactions: Transactions
    since: int
    upper: int
    changes: Changes  # tells each new version

    @property
    def rows(self) -> int: ...

    @property
    def disk_bytes(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    def check_producer(self, schema: pa.Schema, *, deletes: bool = False) -> None:
        """Raise InvalidRequest if rows of this schema cannot be put into it, or keys of it deleted."""

    def close(self) -> None:
        """Take nothing more: the dataset was dropped, or the server stops. Files stay."""

    def statistics(self) -> dict[str, Any]: ...


class Declared(Protocol):
    """What a changelog was created with."""

    keep: dict[str, Any] | None
    delay_seconds: float
