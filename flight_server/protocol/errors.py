"""The tree of errors below :class:`FlightShuffleError`, with the gRPC status that each becomes at the border.

    class             status              its subclasses, with the same status
    ================  ==================  ====================================================================
    InvalidRequest    INVALID_ARGUMENT    BadFrame, AlreadyExists, Conflict
    NotFound          NOT_FOUND           StaleTicket, Released, Compacted, ServerLost
    Unsupported       UNIMPLEMENTED
    Unavailable       UNAVAILABLE         OutOfBudget, Draining, ReaderTooSlow, ReadTrouble, ProducerStalled,
                                          SourceUnavailable, DamagedMessage, QuotaInUse
    Unauthenticated   UNAUTHENTICATED
    Forbidden         PERMISSION_DENIED   QuotaExceeded
    PartitionFailed   INTERNAL            ProducerFailed, DatasetDropped, CorruptFrame, DataQuarantined
    InternalError     INTERNAL

An ``InvalidRequest`` is a ValueError, too, and a ``NotFound`` a LookupError: where code handles Python's classes, it
handles ours before them, if their messages are whole already.

A message names the fault *and* the remedy, with addresses as they may be shown (``shown_addresses``); ``detail`` holds
the same facts for programs, as JSON scalars. Both travel as JSON in the trailer :data:`ERROR_TRAILER` of every failed
call. Statuses that reach pyarrow as a misleading class (RESOURCE_EXHAUSTED, ALREADY_EXISTS, DATA_LOSS) are not used.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any, ClassVar, Self

from .shown_addresses import shown

ERROR_TRAILER = "x-flight-shuffle-error"
MAX_MESSAGE_CHARACTERS = 1_200
"""gRPC clients refuse trailers of more than 8 KiB, which have the message three times: percent-encoded, as JSON, and as
JSON in base64. So a message has at most as many bytes there as one of so many plain characters."""
_PLAIN_COST = 10
"""Thirds of a byte that a plain character takes in these three."""


def _shortened(text: str) -> str:
    text = shown(text)
    if text.isascii() and text.isprintable():
        return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 3] + "..."
    left = MAX_MESSAGE_CHARACTERS * _PLAIN_COST
    fits = 0  # characters before the one that may be the last, if the text must be cut
    for index, character in enumerate(text):
        left -= _cost(character)
        if left < 0:
            return text[:fits] + "..."
        if left >= 3 * _PLAIN_COST:
            fits = index + 1
    return text


def _cost(character: str) -> int:
    if " " <= character <= "~":
        return _PLAIN_COST
    percent_encoded = 3 * len(character.encode("utf-8", "surrogatepass"))
    escaped = len(json.dumps(character)) - 2
    return 3 * percent_encoded + 7 * escaped


class FlightShuffleError(Exception):
    """Base of all errors of the service and its client."""

    status: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """The code is the class's name in small letters, unless it says another one."""
        if "code" not in cls.__dict__:
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, /, **detail: str | int | float | bool | None) -> None:
        message = _shortened(message)
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = {
            key: _shortened(value) if isinstance(value, str) else value
            for key, value in detail.items()
            if value is not None
        }

    @classmethod
    def about(
        cls,
        dataset: str,
        text: str,
        *,
        partition: int | None = None,
        **detail: str | int | float | bool | None,
    ) -> Self:
        """One of a dataset, or of one partition of it, which the message and the detail name. ``text`` follows the name
        in the message, and begins with a colon if a sentence of its own does.
        """
        where = f"dataset {dataset!r}" + ("" if partition is None else f" partition {partition}")
        space = "" if text.startswith(":") else " "
        return cls(f"{where}{space}{text}", dataset=dataset, partition=partition, **detail)

    def fresh(self) -> Self:
        """An equal error with no traceback: each of many readers needs its own instance, raised ``from`` this one."""
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


class InvalidRequest(FlightShuffleError, ValueError):
    """The request can never succeed as it is."""

    status = "INVALID_ARGUMENT"


class BadFrame(InvalidRequest):
    """A producer sent bytes that are not a frame of the dataset."""


class AlreadyExists(InvalidRequest):
    """A put or create collides with an existing dataset or partition."""


class Conflict(InvalidRequest):
    """The verb does not fit its object's state."""


class NotFound(FlightShuffleError, LookupError):
    """There is no such dataset or partition."""

    status = "NOT_FOUND"


class StaleTicket(NotFound):
    """The ticket's generation is gone; ask for new tickets."""


class Released(NotFound):
    """The frames were released, as the dataset's retention declares."""


class Compacted(NotFound):
    """A version can no longer be asked for: take a snapshot."""


class ServerLost(NotFound):
    """The server that holds these frames has ended, or cannot be reached: what had no copy elsewhere is lost."""


class Unsupported(FlightShuffleError):
    """The server does not do this: Flight SQL, DoExchange, an unknown action."""

    status = "UNIMPLEMENTED"


class Unavailable(FlightShuffleError):
    """Not now: try again later, here or elsewhere."""

    status = "UNAVAILABLE"
    retryable = True


class OutOfBudget(Unavailable):
    """Memory and disk stayed full until the deadline."""


class Draining(Unavailable):
    """The server is going down."""


class ReaderTooSlow(Unavailable):
    """A stalled reader held bytes that other readers waited for. ``held``: counts them until its call has ended."""

    held: object = None


class ReadTrouble(Unavailable):
    """The disk does not give a frame back now; the next read may get it."""


class ProducerStalled(Unavailable):
    """A producer sent nothing until its put's deadline."""


class SourceUnavailable(Unavailable):
    """A dataset's source cannot be reached or read."""


class DamagedMessage(Unavailable):
    """A message of a put arrived damaged. Nothing of the put was kept."""


class QuotaInUse(Unavailable):
    """The principal has as many running streams as it may."""


class Unauthenticated(FlightShuffleError):
    """No valid credentials."""

    status = "UNAUTHENTICATED"


class Forbidden(FlightShuffleError):
    """Valid credentials, but not for this."""

    status = "PERMISSION_DENIED"


class QuotaExceeded(Forbidden):
    """The principal has as much as it may, until it drops some of it."""


class PartitionFailed(FlightShuffleError):
    """The partition cannot be read to its end, now or later."""


class ProducerFailed(PartitionFailed):
    """The producer broke off, or its messages were refused."""


class DatasetDropped(PartitionFailed):
    """The dataset was dropped, or its lease ended, while it was in use."""


class CorruptFrame(PartitionFailed):
    """A frame or dictionary came back from disk with another checksum."""


class DataQuarantined(PartitionFailed):
    """The dataset was damaged on disk and is kept aside."""


class InternalError(FlightShuffleError):
    """A bug. Says where the server's log has the cause (by an id, except of a pull), without its text."""

    code = "internal"


def error_classes() -> dict[str, type[FlightShuffleError]]:
    """Every class of the tree by its ``code``."""
    classes: dict[str, type[FlightShuffleError]] = {}
    open_ = [FlightShuffleError]
    while open_:
        kind = open_.pop()
        classes[kind.code] = kind
        open_.extend(kind.__subclasses__())
    return classes


def from_json(text: str | bytes) -> FlightShuffleError:
    """The error that ``to_json`` wrote; of the base class for an unknown code. ValueError for other text."""
    try:
        body = json.loads(text)
    except RecursionError:
        raise ValueError("lists in lists, without end") from None
    if not isinstance(body, dict) or "message" not in body:
        raise ValueError("not an error of this service")
    message = str(body.pop("message"))
    body.pop("retryable", None)
    kind = error_classes().get(str(body.pop("error", "error")), FlightShuffleError)
    return kind(message, **body)
