"""The tree of errors. Each class names the gRPC status that it becomes at the border.

    FlightShuffleError
    ├── InvalidRequest          INVALID_ARGUMENT   the request can never succeed as it is
    │   ├── BadFrame            INVALID_ARGUMENT   what a producer sent is not the dataset's data
    │   ├── AlreadyExists       INVALID_ARGUMENT   a put or create that collides with what is there
    │   └── Conflict            INVALID_ARGUMENT   the verb does not fit the state of its object
    ├── NotFound                NOT_FOUND          unknown dataset or partition
    │   ├── StaleTicket         NOT_FOUND          the ticket is for another generation
    │   └── Released            NOT_FOUND          retention has let the wanted frames go
    ├── Unsupported             UNIMPLEMENTED      what this server is not: Flight SQL, DoExchange, an unknown action
    ├── Unavailable             UNAVAILABLE        try again later, here or elsewhere
    │   ├── OutOfBudget         UNAVAILABLE        memory and disk stayed full until the deadline
    │   ├── Draining            UNAVAILABLE        the server is going down
    │   ├── ProducerStalled     UNAVAILABLE        a producer sent nothing until its deadline
    │   ├── ReaderTooSlow       UNAVAILABLE        a stalled reader held bytes that others waited for
    │   ├── ReadTrouble         UNAVAILABLE        the disk does not give a frame back now
    │   ├── SourceUnavailable   UNAVAILABLE        what a source dataset pulls from cannot be reached
    │   └── DamagedMessage      UNAVAILABLE        a message of a put is not what its producer sent
    ├── Unauthenticated         UNAUTHENTICATED
    ├── Forbidden               PERMISSION_DENIED
    └── PartitionFailed         INTERNAL           the data itself is lost or was never completed
        ├── ProducerFailed      INTERNAL           the producer broke off or was refused
        ├── DatasetDropped      INTERNAL           dropped while it was being read or written
        ├── CorruptFrame        INTERNAL           a frame came back from disk with another checksum
        └── DataQuarantined     INTERNAL           the dataset was damaged on disk and is kept aside

A message says what was wrong *and* what to do; ``detail`` holds the same facts for programs. It
travels as JSON in the trailer :data:`ERROR_TRAILER` of every failed call, whatever its status, so
that a client needs to parse no prose. Statuses that reach pyarrow as a misleading class
(RESOURCE_EXHAUSTED, ALREADY_EXISTS, DATA_LOSS) are not used.

One cause may reach many readers. Python chains tracebacks on the instance, so each reader must be
given an instance of its own: see :meth:`FlightShuffleError.fresh`.
"""

from __future__ import annotations

import copy
import json
from typing import Any, ClassVar, Self

ERROR_TRAILER = "x-flight-shuffle-error"
MAX_MESSAGE_CHARACTERS = 1_200
"""gRPC clients refuse trailers of more than 8 KiB, and a message stands there three times: as it is, as JSON and
in base64. Where it is not plain ASCII it is escaped, so that one character takes up to twelve bytes."""


def _shortened(text: str) -> str:
    plain = text.isascii() and text.isprintable()
    limit = MAX_MESSAGE_CHARACTERS if plain else MAX_MESSAGE_CHARACTERS // 8
    return text if len(text) <= limit else text[: limit - 3] + "..."


class FlightShuffleError(Exception):
    """Base of all errors of the service and its client.

    Args:
        message: one or two sentences: what was wrong, and what to do.
        detail: the same facts for programs; values are JSON scalars.
    """

    status: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **detail: str | int | float | bool | None) -> None:
        message = _shortened(message)
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = {
            key: _shortened(value) if isinstance(value, str) else value
            for key, value in detail.items()
            if value is not None
        }

    def fresh(self) -> Self:
        """An equal error with no traceback, raised ``from`` this one by whoever hands it out."""
        twin = copy.copy(self)
        twin.__traceback__ = None
        twin.__cause__ = None
        twin.__context__ = None
        return twin

    def to_json(self) -> str:
        """ASCII JSON: ``error``, ``message``, ``retryable`` and the detail."""
        body = {"error": self.code, "message": self.message, "retryable": self.retryable, **self.detail}
        return json.dumps(body, separators=(",", ":"))

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles exceptions on their way from a task to the driver.
        return (_rebuild, (type(self), self.message, self.detail))


def _rebuild(kind: type[FlightShuffleError], message: str, detail: dict[str, Any]) -> FlightShuffleError:
    return kind(message, **detail)


class InvalidRequest(FlightShuffleError):
    """The request can never succeed as it is."""

    status = "INVALID_ARGUMENT"
    code = "invalid_request"


class BadFrame(InvalidRequest):
    """What a producer sent is not a frame of the dataset."""

    code = "bad_frame"


class AlreadyExists(InvalidRequest):
    """A put or create collides with what is there."""

    code = "already_exists"


class Conflict(InvalidRequest):
    """The verb does not fit the state of its object, for example sealing twice with other attempts."""

    code = "conflict"


class NotFound(FlightShuffleError):
    """There is no such dataset or partition."""

    status = "NOT_FOUND"
    code = "not_found"


class StaleTicket(NotFound):
    """The ticket is for a generation that is gone; ask for new tickets."""

    code = "stale_ticket"


class Released(NotFound):
    """The wanted frames were let go, as the dataset's retention declares."""

    code = "released"


class Unsupported(FlightShuffleError):
    """Another kind of server than this one might do it."""

    status = "UNIMPLEMENTED"
    code = "unsupported"


class Unavailable(FlightShuffleError):
    """Not now: try again later."""

    status = "UNAVAILABLE"
    code = "unavailable"
    retryable = True


class OutOfBudget(Unavailable):
    """Memory and disk stayed full until the deadline."""

    code = "out_of_budget"


class Draining(Unavailable):
    """The server is going down and takes nothing new."""

    code = "draining"


class ReaderTooSlow(Unavailable):
    """A reader that took nothing held bytes that other readers waited for."""

    code = "reader_too_slow"


class ReadTrouble(Unavailable):
    """The disk does not give a frame back now; the frame stays, and the next read may get it."""

    code = "read_trouble"


class ProducerStalled(Unavailable):
    """A producer sent nothing until the deadline of its put."""

    code = "producer_stalled"


class SourceUnavailable(Unavailable):
    """What a source dataset pulls from cannot be reached or read."""

    code = "source_unavailable"


class DamagedMessage(Unavailable):
    """A message of a put has another checksum than its producer sent it with. Nothing of the put was kept."""

    code = "damaged_message"


class Unauthenticated(FlightShuffleError):
    """No valid credentials."""

    status = "UNAUTHENTICATED"
    code = "unauthenticated"


class Forbidden(FlightShuffleError):
    """Valid credentials, but not for this."""

    status = "PERMISSION_DENIED"
    code = "forbidden"


class PartitionFailed(FlightShuffleError):
    """The partition cannot be read to its end, now or later."""

    code = "partition_failed"


class ProducerFailed(PartitionFailed):
    """The partition's producer broke off, or what it sent was refused."""

    code = "producer_failed"


class DatasetDropped(PartitionFailed):
    """The dataset was dropped, or its lease ended, while it was in use."""

    code = "dataset_dropped"


class CorruptFrame(PartitionFailed):
    """A frame or dictionary came back from disk with another checksum than it went there with."""

    code = "corrupt_frame"


class DataQuarantined(PartitionFailed):
    """The dataset was damaged on disk; it is kept aside, and nothing of it is deleted."""

    code = "data_quarantined"


class InternalError(FlightShuffleError):
    """A bug. Carries an id to look for in the server's log, and no text of the exception."""

    code = "internal"


def error_classes() -> dict[str, type[FlightShuffleError]]:
    """Every class of the tree by its ``code``, so that a client raises what the server raised."""
    found: dict[str, type[FlightShuffleError]] = {}
    open_ = [FlightShuffleError]
    while open_:
        kind = open_.pop()
        found[kind.code] = kind
        open_.extend(kind.__subclasses__())
    return found


def from_json(text: str | bytes) -> FlightShuffleError:
    """The error that :meth:`FlightShuffleError.to_json` wrote; unknown codes become the base class.

    Raises:
        ValueError: the text is not such JSON.
    """
    body = json.loads(text)
    if not isinstance(body, dict) or "message" not in body:
        raise ValueError("not an error of this service")
    message = str(body.pop("message"))
    body.pop("retryable", None)
    kind = error_classes().get(str(body.pop("error", "error")), FlightShuffleError)
    return kind(message, **body)
