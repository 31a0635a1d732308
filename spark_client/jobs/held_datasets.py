"""HeldDatasets: where the datasets of one driver are, and that their leases are renewed until they are dropped.

Guarantee: a dataset is asked for, renewed and dropped at each server that may have a part of it. One that cannot be
reached ends it with its lease, or, where rows are kept as objects, too, the driver deletes those.

Whole
    A sealed dataset is whole while each of its portions lives: on its server, or as an object. A server deletes its own
    object with its dataset. The driver deletes what those leave that are gone.
"""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flight_server.protocol import (
    CreateRequest,
    DatasetRequest,
    FlightShuffleError,
    InvalidRequest,
    Kind,
    NotFound,
    SealRequest,
    folder_of,
    index_of,
    shown,
)
from spark_client.connection import AWAY, LeaseKeeper, RemoteServer, TimedOut
from spark_client.executors import ExecutorServers
from spark_client.lanes import store_of
from spark_client.merge import DatasetRef
from spark_client.servers import ServerList

from .sealed import SealedDataset

_log = logging.getLogger(__name__)


def is_stored(source: DatasetRef, starts: Collection[str]) -> bool:
    """Whether each portion of these starts has an object, which is there now; False also if the driver may not look."""
    try:
        for portion in source.portions:
            if portion.start not in starts:
                continue
            if portion.stored is None:
                return False
            files, path = store_of(index_of(portion.stored))
            files.open_input_file(path).close()
    except (OSError, pa.ArrowException) as error:
        _log.info("%s: %s", source.dataset, shown(str(error)))
        return False
    return True


def remove_stored(prefix: str, dataset: str, generation: str) -> None:
    """Delete what is there of this generation. What the storage refuses is logged."""
    folder = folder_of(prefix, dataset, generation)
    try:
        files, path = store_of(folder)
        with suppress(FileNotFoundError):
            files.delete_dir(path)
    except (OSError, pa.ArrowException) as error:
        _log.warning("%s stays below %s: %s", dataset, shown(folder), shown(str(error)))


@dataclass
class _Places:
    """Where a dataset is.

    Args:
        locations: those that have sealed it; all that may have a part of it, while it is written.
        offload: the prefix below which its servers keep objects, too.
        unsealed: it is written by puts that create it.
        portions: of one that is sealed over several servers, that of each portion, by its start.
    """

    locations: tuple[str, ...]
    offload: str | None = None
    unsealed: bool = False
    portions: Mapping[str, str] = field(default_factory=dict)


class HeldDatasets:
    """Thread-safe.

    Args:
        server: the only one, unless there are several.
        lease_seconds: how long the datasets outlive a driver that died.
        executors: of a client whose tasks start the servers that they write to.
        host: an object that must live as long as the datasets, such as an embedded server: the thread that renews
            leases refers to this object.
    """

    def __init__(
        self,
        server: RemoteServer,
        servers: ServerList,
        lease_seconds: float,
        host: object = None,
        *,
        executors: ExecutorServers | None = None,
    ) -> None:
        self.server = server
        self.servers = servers
        self.lease_seconds = lease_seconds
        self.executors = executors
        self._host = host
        self._places: dict[str, _Places] = {}
        self._kept_alive: dict[str, object] = {}
        self._keeper = LeaseKeeper(self._renew, lease_seconds)
        self._closed = False

    def place(self, dataset: str) -> RemoteServer:
        """The server that holds, or is to hold, a dataset that one server holds."""
        if not self.servers.several:
            return self.server
        if dataset not in self._places:
            self._places[dataset] = _Places((self.servers.owner(dataset),))
        return self.servers.at(self._places[dataset].locations[0])

    def create(self, dataset: str, schema: pa.Schema, partitions: int) -> tuple[str, tuple[str, ...]]:
        """Create a shuffle dataset whose lease is renewed from now on; its generation, and the server's places for puts
        on the bulk lane. Raises InvalidRequest: the client is closed.
        """
        self._check_open()
        request = CreateRequest(
            dataset,
            Kind.SHUFFLE,
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
            partitions=partitions,
            lease_seconds=self.lease_seconds,
        )
        answer = self.place(dataset).action("create", request.encode())
        generation = str(answer["generation"])
        self._keeper.add(dataset, generation)
        return generation, tuple(answer.get("put_locations", ()))

    def seal(
        self, dataset: str, generation: str, attempts: dict[int, str]
    ) -> tuple[DatasetRef, dict[str, Any]]:
        """Make exactly these attempts readable, atomically; the dataset, and its ``rows``, ``bytes``, ``frames`` and
        ``partition_bytes``, the latter of partitions with rows, by their numbers as text. Twice is fine.
        """
        server = self.place(dataset)
        answer = server.action("seal", SealRequest(dataset, generation, attempts).encode())
        return DatasetRef.sealed(server, dataset, generation, answer), answer

    def begin_spread(self, dataset: str, generation: str, offload: str | None = None) -> None:
        """A dataset over several servers is written under this generation from now on, which the puts create; the one
        of an earlier run is dropped. ``offload``: the prefix below which the seal keeps it, too.

        Raises:
            InvalidRequest: the client is closed.
        """
        self._check_open()
        self.discard(dataset)
        self._places[dataset] = _Places(self.servers.locations, offload, unsealed=True)
        self._keeper.add(dataset, generation)

    def written_on(self, dataset: str, locations: Sequence[str]) -> None:
        """At most these servers hold the dataset. It may have been dropped meanwhile, as by another thread's close."""
        places = self._places.get(dataset)
        if places is not None:
            places.locations = tuple(locations)

    def sealed_on(self, dataset: str, portions: Mapping[str, str]) -> None:
        """The dataset is sealed: each portion, by its start, on this server. Dropped meanwhile as above."""
        places = self._places.get(dataset)
        if places is None:
            return
        places.locations = tuple(dict.fromkeys(portions.values()))
        places.portions, places.unsealed = portions, False

    def keep_alive(self, dataset: str, thing: object) -> None:
        """Keep a thing until the dataset is dropped."""
        self._kept_alive[dataset] = thing

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the ShuffleClient of this pipeline is closed; make a new one")

    # Dropping.

    def drop(self, dataset: str) -> None:
        """Drop a dataset. Twice is fine. Raises FlightShuffleError: the only server that held it could not be asked."""
        self._kept_alive.pop(dataset, None)
        generation = self._keeper.datasets().get(dataset)
        if generation is None:
            return
        self._keeper.remove(dataset)
        places = self._places.pop(dataset, None) or _Places((self.server.location,))
        if len(places.locations) == 1 and places.offload is None:
            self._drop(self.servers.at(places.locations[0]), dataset, generation)
            return
        self.servers.each(lambda server: self.drop_at(server.location, dataset, generation), places.locations)
        if places.offload is not None:
            remove_stored(places.offload, dataset, generation)

    def drop_at(self, location: str, dataset: str, generation: str) -> None:
        """Drop a generation that one server holds; one that cannot be reached ends it with its lease."""
        with _until_its_lease_ends(dataset):
            self._drop(self.servers.at(location), dataset, generation)

    def discard(self, dataset: str) -> None:
        """As :meth:`drop`; a dataset of a server that cannot be reached ends with its lease."""
        with _until_its_lease_ends(dataset):
            self.drop(dataset)

    def close(self) -> None:
        """Discard each dataset, all servers at once; of one that does not answer nothing more is asked: the driver
        would wait for it as often as there are datasets. And stop renewing. Twice is fine.
        """
        self._closed = True
        self._kept_alive.clear()
        datasets = self._keeper.datasets()
        only = _Places((self.server.location,))
        held = {dataset: self._places.pop(dataset, only) for dataset in datasets}
        for dataset in datasets:
            self._keeper.remove(dataset)

        def drop(server: RemoteServer) -> None:
            for dataset, generation in datasets.items():
                if server.location not in held[dataset].locations:
                    continue
                try:
                    self._drop(server, dataset, generation)
                except FlightShuffleError as error:
                    _log.info("%s stays until its lease ends: %s", dataset, error.message)
                    if isinstance(error, (*AWAY, TimedOut)):
                        return

        self.servers.each(drop, dict.fromkeys(each for places in held.values() for each in places.locations))
        for dataset, places in held.items():
            if places.offload is not None:
                remove_stored(places.offload, dataset, datasets[dataset])
        self._keeper.close()

    def _drop(self, server: RemoteServer, dataset: str, generation: str) -> None:
        seconds = self.servers.patience_seconds(server.location)
        with contextlib.suppress(NotFound):
            server.action("drop", DatasetRequest(dataset, generation).encode(), seconds, once=True)

    # Renewing.

    def is_whole(self, sealed: SealedDataset) -> bool:
        """Whether each of its portions lives. Raises FlightShuffleError: the only server is away."""
        dataset = sealed.source.dataset
        places = self._places.get(dataset)
        try:
            held = self._renewed(dataset, sealed.source.generation)
        except NotFound:
            return False
        if places is None or not places.portions:
            return all(held.values())
        lost = {start for start, place in places.portions.items() if not held.get(place)}
        return not lost or (places.offload is not None and is_stored(sealed.source, lost))

    def _renew(self, dataset: str, generation: str) -> None:
        """Raises NotFound if no server has it, but for one that no task has written to yet, or that is in objects."""
        places = self._places.get(dataset)
        # Looked at before: what is sealed during the call was not there yet when the servers answered.
        may_lack = places is not None and (places.unsealed or places.offload is not None)
        held = self._renewed(dataset, generation)
        if may_lack:
            return
        if held and {*held.values()} <= {False}:
            raise NotFound(f"no server has dataset {dataset!r} any more", dataset=dataset)

    def _renewed(self, dataset: str, generation: str) -> dict[str, bool | None]:
        """Renew the lease at each server that holds the dataset; whether it does, and None of one that cannot be
        reached. Of the only server the error is raised, with the server's own words.
        """
        places = self._places.get(dataset) or _Places((self.server.location,))
        is_only = not self.servers.several and places.offload is None
        body, seconds = DatasetRequest(dataset, generation).encode(), self.lease_seconds / 6
        if self.servers.several:
            # One server that does not answer must not let the leases of the others end.
            seconds = max(1.0, seconds / max(1, len(self._keeper.datasets())))

        def renew(server: RemoteServer) -> bool | None:
            try:
                server.action("renew", body, timeout_seconds=seconds, once=True)
            except (NotFound, *AWAY, TimedOut) as error:
                if is_only:
                    raise
                return False if isinstance(error, NotFound) else None
            return True

        return dict(zip(places.locations, self.servers.each(renew, places.locations), strict=True))


@contextlib.contextmanager
def _until_its_lease_ends(dataset: str) -> Iterator[None]:
    try:
        yield
    except FlightShuffleError as error:
        _log.info("%s stays until its lease ends: %s", dataset, error.message)
