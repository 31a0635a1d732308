"""The options of the client's calls to a server: credentials, lane, the budget of a merge, and how long each wait may
last.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import ClassVar, Literal, TypedDict, get_args

from flight_server.protocol import InvalidRequest, check_size

LaneChoice = Literal["auto", "grpc", "bulk"]
Compression = Literal["auto", "lz4", "zstd"] | None


def check_lane(lane: object) -> None:
    """Raise InvalidRequest if it is no :data:`LaneChoice`."""
    if lane not in get_args(LaneChoice):
        raise InvalidRequest(f"lane is 'auto', 'grpc' or 'bulk', not {lane!r}")


def check_compression(compression: object) -> None:
    """Raise InvalidRequest if it is no :data:`Compression`."""
    if compression not in ("auto", "lz4", "zstd", None):
        raise InvalidRequest(f"compression is 'auto', 'lz4', 'zstd' or None, not {compression!r}")


@dataclass(frozen=True)
class Reading:
    """How partitions are read.

    Args:
        lane: ``bulk`` is HTTP, ``grpc`` is DoGet; ``auto`` takes the bulk lane if the server names one and it can be
            reached, else gRPC.
        budget_bytes: decoded bytes that one merge may hold in RAM; the rest waits in a scratch file.
        scratch_dir: the directory of these files; None for the system's temporary directory.
        gathered_bytes: decoded bytes that each step of a task which gathers rows (groups, joins, sorts, aggregates)
            may hold in RAM; the rest waits in scratch files, too.
        driver_bytes: a job of a pipeline that reads at most so many bytes, and calls no function of the user's, runs in
            the driver instead of Spark's tasks, and so do the last steps of ``collect`` and ``count``; 0: none
            (``pipeline.in_driver``). One thread reads 8 MiB in about the time that two jobs of Spark take before they
            read a row.

    Bytes may also be a text with a unit, such as ``"256m"``, see ``parse_size``.

    Raises:
        InvalidRequest: another lane, or no size.
    """

    lane: LaneChoice = "auto"
    budget_bytes: int = 256 << 20
    scratch_dir: str | None = None
    gathered_bytes: int = 64 << 20
    driver_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        check_lane(self.lane)
        for name in ("budget_bytes", "gathered_bytes", "driver_bytes"):
            object.__setattr__(self, name, check_size(f"Reading: {name}", getattr(self, name)))


@dataclass(frozen=True)
class Writing:
    """How datasets are written.

    Args:
        lane: ``bulk`` is an upgraded HTTP connection, ``grpc`` is DoPut; ``auto`` as for :class:`Reading`.
        compression: of exchanges and broadcasts, which only this client reads; ``put`` has an argument of its own.
            ``auto`` compresses by LZ4 the columns that shrink to two thirds, or to an eighth if the server is on this
            host (``lanes.messages``); ``lz4`` and ``zstd`` compress all.

    Raises:
        InvalidRequest: another lane or compression.
    """

    lane: LaneChoice = "auto"
    compression: Compression = "auto"

    def __post_init__(self) -> None:
        check_lane(self.lane)
        check_compression(self.compression)


@dataclass(frozen=True)
class Timeouts:
    """How long each wait may last.

    A stream that fails is tried again up to ``tries`` times in a row without a new frame, each after a pause
    (:meth:`pause_seconds`). So a dead server is an error after at most ``(tries + 1) * connect_seconds + tries *
    backoff_limit_seconds``, and sooner if it refuses the connection: after 11 to 21 s by default, in which a server may
    restart; at once where only the start that has refused had the data (``refuses``).
    A call with one answer is tried again alike, within ``call_seconds`` (``calls``).
    """

    connect_seconds: float = 10.0
    """One attempt to connect."""
    call_seconds: float = 60.0
    """A call with one answer."""
    first_message_seconds: float = 60.0
    """From opening a stream to its schema."""
    stall_seconds: float = 300.0
    """Between two messages of a stream, while the consumer waits; and while the server takes no byte of a put."""
    stream_seconds: float = 6 * 3600.0
    """One gRPC call that streams; a read resumes after it in a new call."""
    why_seconds: ClassVar[float] = 2.0
    """The question to the server why a stream stalls."""
    slot_seconds: ClassVar[float] = 0.05
    """A stream's wait for its turn to open, and for a free HTTP connection, while others are open."""
    close_seconds: ClassVar[float] = 1.0
    """The wait of ``close`` for the threads of a merge."""
    tries: int = 9
    """How often a stream that fails is tried again without a new frame."""
    backoff_seconds: ClassVar[float] = 0.1
    backoff_limit_seconds: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, Real):
                raise InvalidRequest(f"Timeouts: {name} is a number, not {value!r}")

    def pause_seconds(self, failures: int) -> float:
        """The pause after so many failures in a row, at least 1: ``backoff_seconds * 2^(failures - 1)``, at most
        ``backoff_limit_seconds``, or down to half of it: readers of a restarted server do not all connect at once.
        """
        most = min(self.backoff_limit_seconds, self.backoff_seconds * 2 ** (failures - 1))
        return random.uniform(most / 2, most)  # noqa: S311 - not a secret


class Credentials(TypedDict, total=False):
    """The options that belong to one server's address; ``ShuffleClient`` says what each means."""

    token: str | Path | None
    tls_root_certs: bytes | None
    tls_client_cert: bytes | Path | None
    tls_client_key: bytes | Path | None


class ServerOptions(Credentials, total=False):
    """The options of the calls to servers. None stands for the default, here of the class."""

    timeouts: Timeouts | None
    reading: Reading | None
    writing: Writing | None
