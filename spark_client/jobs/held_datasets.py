"""HeldDatasets: where the datasets of one driver are, and that their leases are renewed until they are dropped.

Guarantee: a dataset is asked for, renewed and dropped at each server that may have a part of it. One that cannot be
reached ends it with its lease, or, where rows are kept as objects, too, the driver deletes those.

Whole
    A sealed dataset is whole while each of its portions lives: on its server, or as an object.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flight_server.protocol import DatasetRequest, FlightShuffleError, NotFound
from spark_client.connection import AWAY, LeaseKeeper, RemoteServer, TimedOut
from spark_client.servers import ServerList

from .sealed import SealedDataset
from .stored_datasets import is_stored, remove_stored

_log = logging.getLogger(__name__)


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
        host: an object that must live as long as the datasets, such as an embedded server: the thread that renews
            leases refers to this object.
    """

    def __init__(
        self, server: RemoteServer, servers: ServerList, lease_seconds: float, host: object = None
    ) -> None:
        self._server = server
        self._servers = servers
        self._lease_seconds = lease_seconds
        self._host = host
        self._places: dict[str, _Places] = {}
        self._keeper = LeaseKeeper(self._renew, lease_seconds)

    def place(self, dataset: str) -> RemoteServer:
        """The server that holds, or is to hold, a dataset that one server holds."""
        if not self._servers.several:
            return self._server
        if dataset not in self._places:
            self._places[dataset] = _Places((self._servers.owner(dataset),))
        return self._servers.at(self._places[dataset].locations[0])

    def created(self, dataset: str, generation: str) -> None:
        """The server of :meth:`place` has created it."""
        self._keeper.add(dataset, generation)

    def begin_spread(self, dataset: str, generation: str, offload: str | None) -> None:
        """Any server may have it from now on."""
        self._places[dataset] = _Places(self._servers.locations, offload, unsealed=True)
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

    # Dropping.

    def drop(self, dataset: str) -> None:
        """Drop a dataset. Twice is fine. Raises FlightShuffleError: the only server that held it could not be asked."""
        generation = self._keeper.datasets().get(dataset)
        if generation is None:
            return
        self._keeper.remove(dataset)
        places = self._places.pop(dataset, None) or _Places((self._server.location,))
        if len(places.locations) == 1 and places.offload is None:
            self._drop(self._servers.at(places.locations[0]), dataset, generation)
            return
        self._servers.each(
            lambda server: self.drop_at(server.location, dataset, generation), places.locations
        )
        if places.offload is not None:
            remove_stored(places.offload, dataset, generation)

    def drop_at(self, location: str, dataset: str, generation: str) -> None:
        """Drop a generation that one server holds; one that cannot be reached ends it with its lease."""
        with _until_its_lease_ends(dataset):
            self._drop(self._servers.at(location), dataset, generation)

    def discard(self, dataset: str) -> None:
        """As :meth:`drop`; a dataset of a server that cannot be reached ends with its lease."""
        with _until_its_lease_ends(dataset):
            self.drop(dataset)

    def close(self) -> None:
        """Discard each dataset, all servers at once; of one that does not answer nothing more is asked: the driver
        would wait for it as often as there are datasets. And stop renewing. Twice is fine.
        """
        datasets = self._keeper.datasets()
        only = _Places((self._server.location,))
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

        self._servers.each(drop, dict.fromkeys(each for places in held.values() for each in places.locations))
        for dataset, places in held.items():
            if places.offload is not None:
                remove_stored(places.offload, dataset, datasets[dataset])
        self._keeper.close()

    def _drop(self, server: RemoteServer, dataset: str, generation: str) -> None:
        seconds = self._servers.patience_seconds(server.location)
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
        places = self._places.get(dataset) or _Places((self._server.location,))
        is_only = not self._servers.several and places.offload is None
        body, seconds = DatasetRequest(dataset, generation).encode(), self._lease_seconds / 6
        if self._servers.several:
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

        return dict(zip(places.locations, self._servers.each(renew, places.locations), strict=True))


@contextlib.contextmanager
def _until_its_lease_ends(dataset: str) -> Iterator[None]:
    try:
        yield
    except FlightShuffleError as error:
        _log.info("%s stays until its lease ends: %s", dataset, error.message)
