"""One changelog: put, delete, read, follow and hold its versions.

Guarantee: all calls are about one generation, the one that :meth:`Changelog.declare` or :meth:`Changelog.find` found.
When the changelog was dropped, or its name was created again, they raise ``StaleTicket`` or ``NotFound``, because the
new one's versions begin at 1 again.

A put is one version, whole or not at all. A put that breaks before its commit was sent has committed nothing, and is
sent again, as often as ``Timeouts.tries`` says; so is a put with a ``transaction`` that breaks later, because the
server commits it once. Other puts that break there raise ``Unavailable``, and may have been committed or not. An
iterator, which gives its rows once, is not sent again.

Errors are those of ``flight_server.protocol.errors``. The object pickles into tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from flight_server.protocol import (
    DatasetRequest,
    Draining,
    InvalidRequest,
    PutCommand,
    StaleTicket,
    Transaction,
    Unavailable,
    Versions,
)
from spark_client.connection import RemoteServer, about, drop, retrying, short_traces
from spark_client.lanes import Batch, PutStream, as_reader
from spark_client.merge import DatasetRef

from .declared_rules import declaration
from .gathered_puts import LINGER_SECONDS, GatheredKind, GatheringWriter, KeptStream
from .put_rows import PutRows
from .version_follower import Follower
from .version_holds import HeldVersion, NamedHold, VersionHold
from .version_reads import (
    Deltas,
    Snapshot,
    VersionBatches,
    fetch,
)

_REPEATABLE = (pa.Table, pa.RecordBatch, list, tuple)


@short_traces
class Changelog:
    """A handle; it holds no connection and needs no close. ``key``: the columns of its rule's key."""

    def __init__(self, ref: DatasetRef, schema: pa.Schema, key: tuple[str, ...] = ()) -> None:
        self.ref = ref
        self.schema = schema
        self.key = key
        self._rows = PutRows(ref.dataset, schema, key)

    @classmethod
    def find(cls, server: RemoteServer, name: str) -> Changelog:
        """The changelog of that name.

        Raises:
            NotFound: there is no dataset of that name.
            InvalidRequest: it is no changelog.
        """
        ref = DatasetRef.find(server, name)
        schema = server.schema(name)
        keep = cls(ref, schema).statistics()["keep"] or {}
        return cls(ref, schema, tuple(keep.get("key", ())))

    @classmethod
    def declare(
        cls, server: RemoteServer, name: str, schema: pa.Schema | None = None, **declared: Any
    ) -> Changelog:
        """As ``ShuffleClient.changelog``, with the arguments of :func:`declaration`."""
        if schema is None and all(value is None for value in declared.values()):
            return cls.find(server, name)
        if schema is None:
            with about(name, server.location):
                schema = server.schema(name)
        server.action("create", declaration(name, schema, **declared).encode())
        return cls.find(server, name)

    @property
    def name(self) -> str:
        return self.ref.dataset

    def __repr__(self) -> str:
        return f"<Changelog {self.name!r} at {self.ref.server.location}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Changelog, (self.ref, self.schema, self.key))

    # Writing.

    def put(
        self,
        data: Any,
        *,
        transaction: tuple[str, int] | Transaction | None = None,
    ) -> int:
        """Commit the rows as one version; its number. Followers have it when they read it, snapshots at once.

        Args:
            data: as for ``ShuffleClient.put``, with the changelog's columns in any order, and optionally ``_diff``: how
                often a row is asserted (above zero) or retracted (below zero).
            transaction: an id and a number that rises with each put of this id: a repeated put is not committed again,
                and returns the version that the first one made.

        Raises:
            InvalidRequest: the rows do not fit the schema.
            Conflict: the number is below the last one of its id and was not committed, or that may have been forgotten.
            FlightShuffleError: the put failed.
        """
        return self._put_once(data, self._rows.in_schema, transaction)

    def retract(
        self,
        data: Any,
        *,
        transaction: tuple[str, int] | Transaction | None = None,
    ) -> int:
        """As :meth:`put`, with ``_diff`` -1 where the rows have none, else of the other sign. A row retracted before it
        was asserted is cancelled when the assertion comes.
        """
        return self._put_once(data, self._rows.retracted, transaction)

    def delete(
        self,
        keys: Any,
        *,
        transaction: tuple[str, int] | Transaction | None = None,
    ) -> int:
        """Delete all rows of these keys that were put before, as one version; its number. A key without rows is fine.
        Retractions of these keys that wait for their rows go, too. Later puts count anew.

        Args:
            keys: as ``data`` of :meth:`put`, with the columns of :attr:`key` and no other; or a list of dicts of these.
            transaction: as for :meth:`put`.

        Raises:
            InvalidRequest: the columns are not those of the key, or the changelog's rule has no key.
            FlightShuffleError: the delete failed.
        """
        data = self._rows.listed_keys(keys)
        return self._put_once(data, self._rows.keys, transaction, delete=True)

    def writer(self, *, linger_seconds: float = LINGER_SECONDS) -> GatheringWriter:
        """Gathers small puts and deletes, see ``gathered_puts``. Close it, or use it as a context manager."""
        kept = KeptStream(lambda schema: self._stream(schema, None, delete=False))

        def put(batches: list[Batch]) -> int:
            return self._put(self._rows.joined(batches), lambda rows: rows, None, kept.lent, last=False)

        return GatheringWriter(
            GatheredKind(self._rows.batches, put),
            GatheredKind(
                lambda keys: [self._rows.keys(each) for each in as_reader(self._rows.listed_keys(keys))],
                lambda batches: self.delete(self._rows.joined(batches)),
            ),
            kept.end,
            linger_seconds=linger_seconds,
        )

    def _put_once(
        self,
        data: Any,
        rows_of: Callable[[Any], Any],
        transaction: tuple[str, int] | Transaction | None,
        *,
        delete: bool = False,
    ) -> int:
        if transaction is not None and not isinstance(transaction, Transaction):
            transaction = Transaction(*transaction)
        return self._put(
            data,
            rows_of,
            transaction,
            lambda schema: self._stream(schema, transaction, delete=delete),
            last=True,
        )

    def _put(
        self,
        data: Any,
        rows_of: Callable[[Any], Any],
        transaction: Transaction | None,
        stream_of: Callable[[pa.Schema], AbstractContextManager[PutStream]],
        *,
        last: bool,
    ) -> int:
        # Rows that come as they are made are sent so: the server ends a put that is silent for long.
        repeatable = at_hand = isinstance(data, _REPEATABLE)

        def put() -> int:
            nonlocal repeatable
            reader = as_reader(data)
            committing = False
            try:
                with stream_of(rows_of(reader.schema.empty_table()).schema) as stream:
                    for batch in reader:
                        stream.write(rows_of(batch), hold=at_hand)
                    committing = True
                    return int(stream.commit(last=last)["version"])
            except Unavailable as error:
                # A server that drains has begun nothing.
                if committing and transaction is None and not isinstance(error, Draining):
                    repeatable = False
                raise

        return retrying(self.ref.server.timeouts, put, (Unavailable,), again=lambda: repeatable)

    def _stream(self, schema: pa.Schema, transaction: Transaction | None, *, delete: bool) -> PutStream:
        # With an attempt the server requires a commit, so a put that ends early commits nothing.
        attempt = uuid.uuid4().hex
        command = PutCommand(
            self.name,
            producer=0,
            attempt=attempt,
            generation=self.ref.generation,
            transaction=transaction,
            delete=delete,
        )
        return PutStream(self.ref.server, command, schema, once=True)

    # Reading.

    def snapshot(self, as_of: int | None = None) -> Snapshot:
        """The rows that the rule keeps at ``as_of``, or at the newest version, as one table.

        Raises:
            Compacted: ``as_of`` is before :attr:`since`.
            InvalidRequest: it is after :attr:`upper`.
            StaleTicket: the changelog was dropped.
        """
        return Snapshot(*fetch(self.ref, Versions(as_of)))

    def deltas(self, after: int, as_of: int | None = None) -> Deltas:
        """The changes of the kept rows after version ``after`` up to ``as_of``, or to the newest. Raises as
        :meth:`snapshot`.
        """
        return Deltas(*fetch(self.ref, Versions(as_of, after)))

    def read(self, *, as_of: int | None = None, after: int | None = None) -> VersionBatches:
        """The batches of a snapshot, or with ``after`` of deltas, for more rows than one table should have.

        The iterator raises as :meth:`snapshot`, and ``CutRead`` if the connection broke between two batches.
        """
        return VersionBatches(self.ref, Versions(as_of, after))

    def follow(self, after: int | None = None) -> Follower:
        """The changes after version ``after``, as they come; None begins with the newest snapshot as the first change.

        An iterator without an end of its own, and an async one; see ``version_follower``.
        """
        return Follower(self.ref, after)

    def hold(self, version: int | None = None, *, lease_seconds: float = 60.0) -> VersionHold:
        """Keep the versions from ``version`` on readable, or from the newest, until it is closed; see
        ``version_holds``.
        """
        return VersionHold(self.ref, version, lease_seconds=lease_seconds)

    def holds(self) -> list[HeldVersion]:
        """The holds of all clients, the oldest version first: compaction goes up to that. Of more than 100 those with
        the oldest versions; ``statistics`` has the number as ``hold_count``. Raises as :meth:`statistics`.

        Open followers hold, too, and are no part of it: ``statistics`` has their number.
        """
        holds = [
            HeldVersion(
                each["hold"],
                each["version"],
                each.get("owner"),
                each.get("held_seconds", 0.0),
                each["lease_left_seconds"],
            )
            for each in self.statistics()["holds"]
        ]
        return sorted(holds, key=lambda hold: hold.version)

    def release(self, hold: HeldVersion | VersionHold | str) -> None:
        """End a hold of any client. Its reader gets ``Compacted`` once the changelog was compacted further; a query
        that still runs may take the hold again before that.

        Args:
            hold: one of :meth:`holds`, or its name.

        Raises:
            NotFound: there is no such hold, or it has ended.
        """
        NamedHold(self.ref, hold if isinstance(hold, str) else hold.name).release()

    # About it.

    @property
    def since(self) -> int:
        """The oldest version that can still be asked for, by a call to the server."""
        return int(self.statistics()["since"])

    @property
    def upper(self) -> int:
        """The newest version, 0 before the first put, by a call to the server."""
        return int(self.statistics()["upper"])

    def statistics(self) -> dict[str, Any]:
        """The server's statistics: versions, keys, rows, runs, bytes, holds, followers.

        Raises:
            NotFound: it was dropped; StaleTicket if its name was created again.
            InvalidRequest: the dataset is no changelog.
        """
        with about(self.name, self.ref.server.location):
            answer = self.ref.server.action("statistics", DatasetRequest(self.name).encode())
        facts = answer["datasets"][self.name]
        if facts["generation"] != self.ref.generation:
            raise StaleTicket(
                f"changelog {self.name!r} was dropped and created again: open it again, its versions begin at 1",
                dataset=self.name,
                generation=self.ref.generation,
            )
        if not isinstance(numbers := facts.get("changelog"), dict):
            raise InvalidRequest(f"dataset {self.name!r} is no changelog", dataset=self.name)
        return numbers

    def drop(self) -> None:
        """Drop it; its readers get an error. Raises NotFound if it was dropped before."""
        with about(self.name, self.ref.server.location):
            drop(self.ref.server, self.name, self.ref.generation)
