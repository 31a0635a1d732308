"""What the driver's state machine (``spread_write``) hears from tasks, and the calls that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class ServerStart(NamedTuple):
    """One start of a server: a process that was started again at the same location is another one."""

    location: str
    start: str = ""


class Report(NamedTuple):
    """A task's: this server has committed its attempt."""

    dataset: str
    generation: str
    producer: int
    attempt: str
    server: ServerStart


@dataclass(frozen=True, slots=True)
class Create:
    """Create the dataset, and hand its generation to ``SpreadWrite.created``."""

    server: ServerStart
    dataset: str
    run: int


@dataclass(frozen=True, slots=True)
class RunJob:
    """Run the job's tasks. They write under these generations, by dataset, and to none of the servers ``without``."""

    run: int
    generations: Mapping[str, str]
    without: frozenset[ServerStart] = frozenset()


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Cancel this run of the job. Its tasks may go on for some time; what they report then is dropped."""

    run: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Make exactly these attempts readable on the server. Twice is fine.

    Args:
        attempts: by producer.
        largest: the answer names the sizes of so many partitions, the largest, and the others' sum
            (``PartitionSizes``); None: all sizes.
    """

    server: ServerStart
    dataset: str
    generation: str
    attempts: Mapping[int, str] = field(repr=False)
    largest: int | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease of the dataset on the server."""

    server: ServerStart
    dataset: str
    generation: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop this generation of the dataset on the server. Its refusal changes nothing: the lease ends."""

    server: ServerStart
    dataset: str
    generation: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise the error where the datasets are waited for. Nothing of them is kept."""

    error: Exception


DriverCall = Create | RunJob | CancelJob | Seal | Renew | Drop | Fail
