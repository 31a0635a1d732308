"""Calls of any Python program about a server's datasets: put, get, list, drop, ask about them.

Guarantee: ``get`` gives the whole dataset or an error; when ``put`` returns, its dataset is complete on the server.
Errors are those of ``flight_server.protocol.errors``, with the server's own sentence.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, TypeVar

import pyarrow as pa

from flight_server.memory import MemoryPool
from flight_server.protocol import (
    DatasetRequest,
    InvalidRequest,
    NotFound,
    PutCommand,
    Ticket,
    check_dataset_name,
)
from spark_client.arrow import html_table
from spark_client.connection import Compression, RemoteServer, about, check_mode, drop, short_traces
from spark_client.lanes import (
    PutStream,
    as_reader,
    partition_streams,
    put_async,
)
from spark_client.merge import AsyncMergedStream, DatasetRef, merge, merge_async
from spark_client.servers import ServerList

_Merged = TypeVar("_Merged")
_Row = TypeVar("_Row")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset as the server lists it; ``rows`` and ``size_bytes`` are -1 while it is written. Sorted by names."""

    name: str
    partitions: int
    rows: int
    size_bytes: int
    schema: pa.Schema

    def __lt__(self, other: DatasetInfo) -> bool:
        return self.name < other.name


class Listed(list[_Row]):
    """What the servers that answered have listed. ``gone``: the others, each with its ``location``, ``start`` if it is
    known, and the reason, as in ``servers`` of :meth:`DatasetCalls.statistics`.
    """

    def __init__(self, rows: Iterable[_Row], gone: Sequence[dict[str, Any]]) -> None:
        super().__init__(rows)
        self.gone = [*gone]

    def __repr__(self) -> str:
        return f"{super().__repr__()}{self._missing()}"

    def _repr_html_(self) -> str:
        rows = [vars(each) if isinstance(each, DatasetInfo) else each for each in self]
        known = [each for each in rows if isinstance(each, dict)]
        names = dict.fromkeys(name for each in known for name in each)
        table = html_table(names, ([each.get(name, "") for name in names] for each in known))
        return f"<div>{table}{escape(self._missing())}</div>"

    def _missing(self) -> str:
        gone = "; ".join(f"{each['location']}: {each['gone']}" for each in self.gone)
        return f" without what is on {gone}" if gone else ""


@short_traces
class DatasetCalls:
    """The calls about datasets, for a subclass that has the server."""

    _servers: ServerList

    def _open(self, name: str | None = None) -> RemoteServer:
        """The server that holds the dataset of a name, else any one; raises InvalidRequest if the client is closed."""
        raise NotImplementedError

    def put(
        self,
        name: str,
        data: Any,
        *,
        mode: Literal["create", "overwrite"] = "create",
        compression: Compression = None,
    ) -> int:
        """Store ``data`` as dataset ``name`` and return its number of rows. Readers get it while it is written. When
        an error or Ctrl-C ends the call, they get an error and not a short dataset.

        Args:
            name: 1 to 200 of ``A-Z a-z 0-9 . _ / : = -``, that does not end in ``/`` and digits.
            data: a Table, RecordBatch, RecordBatchReader, iterable of RecordBatches, or object with
                ``__arrow_c_stream__``. Batches above about 4 MiB are sent in several frames.
            mode: ``"create"`` refuses a name that exists; ``"overwrite"`` replaces it, while readers of the old
                dataset finish.
            compression: of the batches' buffers, as Arrow's IPC format has it: ``"lz4"``, ``"zstd"``, or ``"auto"``,
                LZ4 for buffers that shrink (``Writing``). None by default: some Arrow readers have no codec.

        Raises:
            AlreadyExists: the name exists; its dataset is unchanged.
            FlightShuffleError: the put failed or was not confirmed. Its dataset is failed; with ``overwrite`` the old
                one stays.
        """
        server, command, reader = self._open(name), _put_command(name, mode), as_reader(data)
        with (
            about(name, server.location),
            PutStream(server, command, reader.schema, compression=compression) as stream,
        ):
            for batch in reader:
                stream.write(batch)
            stream.commit()
            return stream.rows

    def get(
        self, name: str, *, ordered: bool = False, partitions: Sequence[int] | None = None
    ) -> pa.RecordBatchReader:
        """The rows of all partitions of a dataset, or of some, which may still be written. The reader raises if it
        cannot give them all.

        Args:
            name: the dataset.
            ordered: partition by partition; batches of later partitions that do not fit the memory budget wait in a
                local file. Otherwise in order of arrival, each partition's in its order.
            partitions: their indexes, each once, in the order in which they come where it is ``ordered``.

        Raises:
            NotFound: there is no dataset of that name, or no such partition.
        """
        return self._merge(merge, name, ordered=ordered, partitions=partitions).to_reader()

    async def aput(
        self,
        name: str,
        data: Any,
        *,
        mode: Literal["create", "overwrite"] = "create",
        compression: Compression = None,
    ) -> int:
        """As :meth:`put`, without blocking the event loop; ``data`` may also be an async iterable of batches.

        Cancelling it ends the stream without a commit, so readers get an error and not a short dataset.
        """
        server = self._open(name)
        with about(name, server.location):
            return await put_async(server, _put_command(name, mode), data, compression)

    async def aget(
        self, name: str, *, ordered: bool = False, partitions: Sequence[int] | None = None
    ) -> AsyncMergedStream:
        """As :meth:`get`: an async iterator of RecordBatches, and an async context manager that ends it."""
        return await asyncio.to_thread(self._merge, merge_async, name, ordered=ordered, partitions=partitions)

    def drop(self, name: str, generation: str | None = None) -> None:
        """Drop a dataset; its readers get an error. One over several servers is dropped on all of them; on one that
        does not answer now, its lease ends it.

        Args:
            generation: only this one, which may be a staged write (:meth:`staged`).

        Raises:
            NotFound: there is none of that name, or that generation is gone.
        """
        self._where_it_is(name, lambda server: drop(server, check_dataset_name(name), generation))

    def staged(self, name: str | None = None) -> Listed[dict[str, Any]]:
        """The writes of ``df.write`` and ``df.writeStream`` and the puts that overwrite, for all datasets or for one,
        that are not published yet: dataset, generation, mode, rows and bytes so far, and the seconds after which the
        server drops each if nothing is written to it. The first 100; ``drop(dataset, generation)`` ends one, and a task
        that still writes it fails.

        Raises as :meth:`datasets`.
        """
        answers, gone = self._why(name)
        return Listed((each for answer in answers for each in answer["staged"]["writes"]), gone)

    def datasets(self, prefix: str = "") -> Listed[DatasetInfo]:
        """The datasets whose names begin with ``prefix``, on the servers that answer within 10 s; ``gone`` of the list
        names the others. Only one server is asked until the deadline of a call, and again while it restarts.

        Raises:
            FlightShuffleError: no server has answered.
        """
        self._open()
        answers, gone = self._servers.answers(lambda server, **how: server.list_flights(prefix, **how))
        infos = {info.descriptor.path[0].decode(): info for listed in answers.values() for info in listed}
        return Listed(
            (
                DatasetInfo(
                    name,
                    DatasetRef.spread_partitions(info) or len(info.endpoints),
                    info.total_records,
                    info.total_bytes,
                    info.schema,
                )
                for name, info in sorted(infos.items())
            ),
            gone,
        )

    def statistics(self, name: str | None = None) -> dict[str, Any]:
        """The server's counters and its first 1,000 datasets, or one dataset's first 1,000 partitions. Of several
        servers the sums, and what each has of its first 1,000.

        ``servers`` are all of them, those in executors and beside the driver, too, and other workers of their
        supervisors: ``location``, ``start``, ``datasets``, and used and limit of memory and disk; or why one is
        ``gone``, which else is None. Of a dataset, those that hold it. Principals that do not see all of a server do
        not have these and other numbers of it.

        Raises:
            NotFound: there is no dataset of that name.
            FlightShuffleError: as :meth:`datasets`.
        """
        self._open()
        return self._servers.statistics(name)

    def why(self, name: str | None = None) -> Listed[dict[str, Any]]:
        """Each waiting stream, or of one dataset, on the servers that answer: the reason, how long it has waited, and
        its peer. ``gone`` of the list names the other servers. Raises as :meth:`statistics`.
        """
        answers, gone = self._why(name)
        return Listed((each for answer in answers for each in answer.get("waits", [])), gone)

    def _why(self, name: str | None) -> tuple[Iterable[dict[str, Any]], list[dict[str, Any]]]:
        self._open()
        body = DatasetRequest(name).encode()
        answers, gone = self._servers.answers(lambda server, **how: server.action("why", body, **how))
        return answers.values(), gone

    def _where_it_is(self, name: str, call: Callable[[RemoteServer], _Answer]) -> _Answer:
        """What the server that the name chooses answers, or, if that has no such dataset, another that has a part of
        it: tasks may write a dataset to some of the servers only.
        """
        server = self._open(name)
        with about(name, server.location):
            try:
                return call(server)
            except NotFound:
                other = self._servers.with_part(name)
                if other is None or other.location == server.location:
                    raise
        with about(name, other.location):
            return call(other)

    def _merge(
        self, how: Callable[..., _Merged], name: str, *, ordered: bool, partitions: Sequence[int] | None
    ) -> _Merged:
        server, info = self._where_it_is(
            name, lambda server: (server, server.flight_info(check_dataset_name(name)))
        )
        reading = server.reading
        parts = DatasetRef.spread_partitions(info)
        if parts is None:
            endpoints = info.endpoints
            if partitions is not None:
                of = {Ticket.parse(each.ticket.ticket).partition: each for each in endpoints}
                endpoints = [of[each] for each in _known_partitions(name, partitions, of)]
            streams = partition_streams(server, endpoints, lane=reading.lane)
        else:
            indexes = (
                range(parts) if partitions is None else _known_partitions(name, partitions, range(parts))
            )
            parts = len(indexes)
            streams = DatasetRef.of(server, name, info).portion_streams(indexes)
        return how(
            streams,
            parts=parts,
            pool=MemoryPool(reading.budget_bytes, "merge"),
            scratch_dir=reading.scratch_dir,
            order="stream" if ordered else "arrival",
            timeouts=server.timeouts,
        )


def _known_partitions(name: str, indexes: Sequence[int], known: Collection[int | None]) -> Sequence[int]:
    """``indexes``. Raises NotFound: the dataset has none of that index; InvalidRequest: no index, or one twice."""
    if not indexes or len({*indexes}) < len(indexes):
        raise InvalidRequest(f"partitions are one index or more, each once, not {[*indexes]}")
    if missing := [each for each in indexes if each not in known]:
        raise NotFound(
            f"dataset {name!r} has {len(known)} partitions, and none of index {missing[0]}", dataset=name
        )
    return indexes


def _put_command(name: str, mode: str) -> PutCommand:
    # With an attempt the server requires a commit, so a stream that ends early fails its dataset.
    return PutCommand(check_dataset_name(name), producer=0, attempt=uuid.uuid4().hex, mode=check_mode(mode))
