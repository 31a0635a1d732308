"""What a dataset machine is told and what it orders: plans and reports of jobs, and the calls that the driver makes.

A call is a value: :class:`~spark_client.servers.dataset_machine.DatasetMachine` returns it, and ``DriverLoop`` makes
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from flight_server.protocol import ServerPortion

from .server_table import ServerStart


class PlannedDataset(NamedTuple):
    """A dataset that a job is to write. ``offload``: the prefix below which its servers keep it as objects, too."""

    partitions: int
    offload: str | None = None


class Report(NamedTuple):
    """A task's, whose attempt Spark has accepted: this server has committed it."""

    dataset: str
    producer: int
    attempt: str
    server: ServerStart
    locations: tuple[str, ...] = ()
    rows: int = 0
    size_bytes: int = 0


class Patience(StrEnum):
    """How long the driver waits for an answer."""

    BRIEF = "briefly"
    """The call can be made later, or left out."""
    ANSWER = "for an answer"
    """A job needs it: up to the deadline of a call. A refusal is an answer."""
    RESTART = "for a restart"
    """A job needs a server, whichever start answers: a refusal is no answer, either."""


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the server for its start."""

    location: str
    job: int
    patience: Patience = Patience.BRIEF


@dataclass(frozen=True, slots=True)
class RunJob:
    """Run the job's tasks. They write under these generations, by dataset, to the servers at ``locations``, or, if
    there are none, to those that they start, where they drop what is ``left``: datasets with their generations. Its
    end is an event of its own.
    """

    job: int
    run: int
    generations: Mapping[str, str]
    locations: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Seal:
    """Make exactly these attempts readable on the server. Twice is fine.

    Args:
        attempts: by producer.
        servers: all that hold a portion.
        largest: the answer names the sizes of so many partitions, the largest, and the others' sum
            (``SealTotals``); None: all sizes.
        offload: the prefix below which the server keeps what it has as an object, too.
    """

    server: ServerStart
    dataset: str
    generation: str
    attempts: Mapping[int, str] = field(repr=False)
    servers: tuple[ServerPortion, ...] = field(repr=False)
    largest: int | None = None
    offload: str | None = None

    @property
    def location(self) -> str:
        return self.server.location


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease of the dataset on the server. ``start``: of the one that has a portion; empty while the dataset
    is written, and the server may have nothing of it yet.
    """

    location: str
    dataset: str
    generation: str
    start: str = ""
    patience: Patience = Patience.BRIEF


@dataclass(frozen=True, slots=True)
class FindObject:
    """Look whether the object of a portion, whose server is lost, is there. Its failure is that it is not."""

    address: str
    dataset: str
    generation: str
    start: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop this generation of the dataset on the server. Its refusal changes nothing: the lease ends."""

    location: str
    dataset: str
    generation: str


@dataclass(frozen=True, slots=True)
class RemoveObjects:
    """Delete the objects of this generation below the prefix. Its failure changes nothing."""

    prefix: str
    dataset: str
    generation: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise the error where the job is waited for. Nothing of it is kept."""

    job: int
    error: Exception


ServerCall = Look | Seal | Renew | Drop | FindObject | RemoveObjects
"""A call to a server or to shared storage, whose end is an event."""
DriverCall = ServerCall | RunJob | Fail
