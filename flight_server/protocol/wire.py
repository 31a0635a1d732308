"""Walks protobuf fields in bytes, for both packages.

:func:`locate` finds FlightData's fields as views into the received bytes; generated protobuf code would copy each
body. Other modules read and compose the messages below with the same functions.

    FlightData            1 descriptor   2 data_header   3 app_metadata   1000 data_body
    FlightDescriptor      1 type (varint)   2 cmd   3 path (repeated)
    PutResult             1 app_metadata
    HandshakeRequest      1 protocol_version (varint)   2 payload; HandshakeResponse has the same
    Criteria              1 expression
    PollInfo              1 info   2 descriptor   3 progress (double)   4 expiration_time (Timestamp)
    CancelFlightInfoRequest       1 info
    CancelFlightInfoResult        1 status (varint)
    RenewFlightEndpointRequest    1 endpoint

(Field numbers: ``Flight.proto`` of Apache Arrow. Wire types: the protobuf encoding guide.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Final, NamedTuple

from .errors import BadFrame, InvalidRequest

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_FIELD_NUMBER: Final = (1 << 29) - 1
_MAX_VARINT: Final = (1 << 64) - 1
MAX_FIELDS: Final = 1000
"""No client needs more of them in a message, but of a FlightInfo's endpoints. A million take half a second to walk."""
_EMPTY: Final = memoryview(b"")
_USUAL: Final = range(4)  # fields in a FlightData message
_DESCRIPTOR_TAG, _HEADER_TAG, _METADATA_TAG = 1 << 3 | _BYTES, 2 << 3 | _BYTES, 3 << 3 | _BYTES
_BODY_TAG, _BODY_TAG_END = (1000 << 3 | _BYTES) & 0x7F | 0x80, 1000 << 3 >> 7  # two bytes of a varint

CANCEL_STATUS_CANCELLED: Final = 1
CANCEL_STATUS_CANCELLING: Final = 2
PATH_DESCRIPTOR: Final = 1
CMD_DESCRIPTOR: Final = 2


class FlightData(NamedTuple):
    """Views into one received message; an absent field is empty."""

    descriptor: memoryview = _EMPTY
    header: memoryview = _EMPTY
    metadata: memoryview = _EMPTY
    body: memoryview = _EMPTY


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number runs past the end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a protobuf message in order: varints as integers, others as views. Raises ValueError."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if not 0 < number <= _MAX_FIELD_NUMBER:
            # Protobuf cuts a larger tag to 32 bits, and would see another field.
            raise ValueError(f"field number {number}")
        if kind == _VARINT:
            value, at = _varint(view, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(view, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(view) - at:
            raise ValueError(f"field {number} runs past the end")
        yield number, view[at : at + size]
        at += size


def _few_fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """As :func:`fields`. Raises ValueError at the first one beyond ``MAX_FIELDS``, too."""
    for count, field in enumerate(fields(data)):
        if count == MAX_FIELDS:
            raise ValueError(f"more than {MAX_FIELDS} fields, which no client needs")
        yield field


def bytes_field(data: bytes | memoryview, number: int, what: str) -> bytes:
    """The last value of a length-delimited field, empty if absent. Raises InvalidRequest if it has another type, or
    the bytes are no protobuf message, or one of more than ``MAX_FIELDS``.
    """
    last: bytes = b""
    try:
        for candidate, value in _few_fields(data):
            if candidate == number:
                if isinstance(value, int):
                    raise ValueError(f"field {number} is a number")
                last = bytes(value)
    except ValueError as error:
        raise InvalidRequest(f"{what} is not the protobuf message of Arrow Flight: {error}") from None
    return last


def check_few_fields(data: bytes | memoryview, name: str) -> None:
    """Raise InvalidRequest if a message that pyarrow is about to parse has more than ``MAX_FIELDS`` fields, or is
    none: an empty field, such as a location, becomes an object of 50 to 400 bytes.
    """
    try:
        more = next(islice(fields(data), MAX_FIELDS, None), None)
    except ValueError as error:
        raise InvalidRequest(f"what was sent is not a {name}: {error}") from None
    if more is not None:
        raise InvalidRequest(f"the {name} has more than {MAX_FIELDS} fields, which no client needs")


def first_field(data: bytes | memoryview, number: int, name: str) -> memoryview | None:
    """The first value of such a field; None if absent. Raises as :func:`bytes_field`, but looks at no later field."""
    try:
        first = next((value for candidate, value in _few_fields(data) if candidate == number), None)
    except ValueError as error:
        raise InvalidRequest(f"what was sent is not a {name}: {error}") from None
    if isinstance(first, int):
        raise InvalidRequest(f"what was sent is not a {name}: field {number} is a number")
    return first


def _encode_varint(value: int) -> bytes:
    if value < 0x4000:
        return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def _tag(number: int) -> bytes:
    """Of a length-delimited field."""
    return _encode_varint(number << 3 | _BYTES)


def field(number: int, value: bytes | bytearray | memoryview) -> bytes:
    """One length-delimited field."""
    return b"".join((_tag(number), _encode_varint(len(value)), value))


def field_head(number: int, size_bytes: int) -> bytes:
    """Tag and length of a length-delimited field whose bytes are sent from where they are."""
    return _tag(number) + _encode_varint(size_bytes)


def varint_field(number: int, value: int) -> bytes:
    """One number of up to 64 bits; a negative one as protobuf's int64."""
    return _encode_varint(number << 3 | _VARINT) + _encode_varint(value & _MAX_VARINT)


def double_field(number: int, value: float) -> bytes:
    """One double."""
    return _encode_varint(number << 3 | _FIXED64) + struct.pack("<d", value)


def timestamp(seconds: float) -> bytes:
    """A ``google.protobuf.Timestamp`` of seconds since the epoch."""
    whole = int(seconds // 1)
    return varint_field(1, whole) + varint_field(2, int((seconds - whole) * 1e9))


def path_descriptor(*path: str) -> bytes:
    """A FlightDescriptor of a path."""
    return varint_field(1, PATH_DESCRIPTOR) + b"".join(field(3, each.encode()) for each in path)


def command_descriptor(command: bytes) -> bytes:
    """A FlightDescriptor of a command."""
    return varint_field(1, CMD_DESCRIPTOR) + field(2, command)


def locate(message: bytes | memoryview) -> FlightData:
    """The parts of a FlightData message. Raises BadFrame if it is no protobuf message, is empty, has a body and no
    header, or more than ``MAX_FIELDS`` fields.
    """
    try:
        parts = _usual_parts(message) or _parts(message)
    except ValueError as error:
        raise BadFrame(f"the message of {len(message)} bytes is not FlightData: {error}") from None
    if not parts.header and not parts.metadata and not parts.descriptor:
        raise BadFrame("the FlightData message is empty: it has no header, no metadata and no descriptor")
    if parts.body and not parts.header:
        raise BadFrame("the FlightData message has a body but no header")
    return parts


def _parts(message: bytes | memoryview) -> FlightData:
    descriptor = header = metadata = body = _EMPTY
    for number, value in _few_fields(message):
        if number not in (1, 2, 3, 1000):
            continue  # a later version's field
        if isinstance(value, int):
            raise ValueError(f"field {number} is a number")  # noqa: TRY004  # the data, not the code, is wrong
        if number == 2:
            header = value
        elif number == 1000:
            body = value
        elif number == 3:
            metadata = value
        else:
            descriptor = value
    return FlightData(descriptor, header, metadata, body)


def _usual_parts(message: bytes | memoryview) -> FlightData | None:
    """As :func:`_parts`, in half the time; None for other or repeated fields, longer tags, and faults."""
    descriptor = header = metadata = body = _EMPTY
    view, end, at = memoryview(message), len(message), 0
    try:
        for _ in _USUAL:
            tag, size = message[at], message[at + 1]
            at += 2
            if tag == _BODY_TAG and size == _BODY_TAG_END:
                size = message[at]
                at += 1
            elif tag not in (_DESCRIPTOR_TAG, _HEADER_TAG, _METADATA_TAG):
                return None
            # Here, because a call of ``_varint`` for each number takes as long as all the rest.
            if size > 0x7F:
                size, shift, byte = size & 0x7F, 7, 0x80
                while byte > 0x7F:
                    if shift > 63:
                        return None
                    byte = message[at]
                    size |= (byte & 0x7F) << shift
                    shift, at = shift + 7, at + 1
            start, at = at, at + size
            if tag == _HEADER_TAG:
                header = view[start:at]
            elif tag == _BODY_TAG:
                body = view[start:at]
            elif tag == _METADATA_TAG:
                metadata = view[start:at]
            else:
                descriptor = view[start:at]
            if at >= end:
                break
    except IndexError:
        return None
    return FlightData(descriptor, header, metadata, body) if at == end else None


def flight_data(
    header: bytes | memoryview, metadata: bytes | memoryview = b"", body: bytes | memoryview = b""
) -> bytes:
    """A FlightData message of the server's own: one copy of each part."""
    parts: list[bytes | memoryview] = []
    for number, value in ((2, header), (3, metadata), (1000, body)):
        if len(value):
            parts += (_encode_varint(number << 3 | _BYTES), _encode_varint(len(value)), value)
    return b"".join(parts)
