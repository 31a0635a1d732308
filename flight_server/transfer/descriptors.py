"""Descriptors of puts, and of requests for a FlightInfo."""

from __future__ import annotations

from collections.abc import Sequence

from flight_server.protocol import (
    InvalidRequest,
    PutCommand,
    check_dataset_name,
    check_few_fields,
    parse_partition,
    wire,
)


def parse_path(path: Sequence[bytes | memoryview]) -> tuple[str, int | None]:
    """Dataset and, if it is named, partition of a PATH descriptor. Raises InvalidRequest for no element, more than two,
    or an illegal one.
    """
    if not 1 <= len(path) <= 2:
        raise InvalidRequest(
            f"a PATH descriptor is [dataset] or [dataset, partition], not {len(path)} elements"
        )
    try:
        parts = [str(part, "utf-8") for part in path]
    except UnicodeDecodeError:
        raise InvalidRequest("a PATH descriptor must be UTF-8 text") from None
    return check_dataset_name(parts[0]), parse_partition(parts[1]) if len(parts) == 2 else None


def parse_descriptor(data: bytes) -> PutCommand:
    """The command of a put's descriptor. Raises InvalidRequest if it is neither a valid PATH nor a valid CMD."""
    check_few_fields(data, "FlightDescriptor")
    kind, command = 0, b""
    path: list[memoryview] = []
    for number, value in wire.fields(data):
        if isinstance(value, int):
            kind = value if number == 1 else kind
        elif number == 2:
            command = bytes(value)
        elif number == 3:
            path.append(value)
    if kind == wire.PATH_DESCRIPTOR:
        return PutCommand(*parse_path(path))
    if kind == wire.CMD_DESCRIPTOR:
        return PutCommand.parse(command)
    raise InvalidRequest("the descriptor must be a PATH [dataset] or a CMD with JSON")
