"""Descriptors of puts, and of requests for a FlightInfo."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    InvalidRequest,
    PutCommand,
    check_dataset_name,
    check_few_fields,
    parse_partition,
    wire,
)

_PATH = 3  # of FlightDescriptor: 1 type, 2 cmd, 3 path


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
    path = [value for number, value in wire.fields(data) if number == _PATH and isinstance(value, memoryview)]
    if path:
        parse_path(path)  # before protobuf, which writes a line to standard error for each that is not UTF-8
    try:
        descriptor = flight.FlightDescriptor.deserialize(data)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRequest(f"the descriptor is not a FlightDescriptor: {error}") from None
    if descriptor.descriptor_type is flight.DescriptorType.PATH:
        dataset, partition = parse_path(descriptor.path)
        return PutCommand(dataset, partition)
    if descriptor.descriptor_type is flight.DescriptorType.CMD:
        return PutCommand.parse(descriptor.command)
    raise InvalidRequest("the descriptor must be a PATH [dataset] or a CMD with JSON")
