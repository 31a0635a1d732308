"""For gRPC's reflection: describes Arrow Flight, as this server speaks it, to tools such as grpcurl.

It asks for no token, because the protocol is public. The service's own code does not use these descriptions.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2

PACKAGE = "arrow.flight.protocol"
_FILE = "flight_server/arrow_flight.proto"

# Each message's fields: number, name, then "repeated" or "optional", type. Messages and enums begin with a capital.
_MESSAGES = {
    "HandshakeRequest": "1 protocol_version uint64, 2 payload bytes",
    "HandshakeResponse": "1 protocol_version uint64, 2 payload bytes",
    "BasicAuth": "2 username string, 3 password string",
    "Empty": "",
    "ActionType": "1 type string, 2 description string",
    "Criteria": "1 expression bytes",
    "Action": "1 type string, 2 body bytes",
    "Result": "1 body bytes",
    "SchemaResult": "1 schema bytes",
    "FlightDescriptor": "1 type DescriptorType, 2 cmd bytes, 3 path repeated string",
    "FlightInfo": "1 schema bytes, 2 flight_descriptor FlightDescriptor, 3 endpoint repeated FlightEndpoint, "
    "4 total_records int64, 5 total_bytes int64, 6 ordered bool, 7 app_metadata bytes",
    "PollInfo": "1 info FlightInfo, 2 flight_descriptor FlightDescriptor, 3 progress optional double, "
    "4 expiration_time Timestamp",
    "CancelFlightInfoRequest": "1 info FlightInfo",
    "CancelFlightInfoResult": "1 status CancelStatus",
    "RenewFlightEndpointRequest": "1 endpoint FlightEndpoint",
    "Ticket": "1 ticket bytes",
    "Location": "1 uri string",
    "FlightEndpoint": "1 ticket Ticket, 2 location repeated Location, 3 expiration_time Timestamp, "
    "4 app_metadata bytes",
    "FlightData": "1 flight_descriptor FlightDescriptor, 2 data_header bytes, 3 app_metadata bytes, "
    "1000 data_body bytes",
    "PutResult": "1 app_metadata bytes",
}
_ENUMS = {
    "CancelStatus": ("UNSPECIFIED", "CANCELLED", "CANCELLING", "NOT_CANCELLABLE"),
    "DescriptorType": ("UNKNOWN", "PATH", "CMD"),
}
_CALLS = {
    "Handshake": "stream HandshakeRequest -> stream HandshakeResponse",
    "ListFlights": "Criteria -> stream FlightInfo",
    "GetFlightInfo": "FlightDescriptor -> FlightInfo",
    "PollFlightInfo": "FlightDescriptor -> PollInfo",
    "GetSchema": "FlightDescriptor -> SchemaResult",
    "DoGet": "Ticket -> stream FlightData",
    "DoPut": "stream FlightData -> stream PutResult",
    "DoExchange": "stream FlightData -> stream FlightData",
    "DoAction": "Action -> stream Result",
    "ListActions": "Empty -> stream ActionType",
}


def describe() -> None:
    """Have this process's reflection know Arrow Flight. Twice is fine."""
    pool = descriptor_pool.Default()
    try:
        pool.FindFileByName(_FILE)
    except KeyError:  # the first server of this process
        pool.AddSerializedFile(described().SerializeToString())


def described() -> Any:
    """The FileDescriptorProto of the tables above."""
    file = descriptor_pb2.FileDescriptorProto(
        name=_FILE, package=PACKAGE, syntax="proto3", dependency=[timestamp_pb2.DESCRIPTOR.name]
    )
    for name, text in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in filter(None, text.split(", ")):
            _add_field(message, *field.split(" "))
    descriptor = next(each for each in file.message_type if each.name == "FlightDescriptor")
    for scope, name, prefix in ((file, "CancelStatus", "CANCEL_STATUS_"), (descriptor, "DescriptorType", "")):
        enum = scope.enum_type.add(name=name)
        for number, value in enumerate(_ENUMS[name]):
            enum.value.add(name=prefix + value, number=number)
    service = file.service.add(name="FlightService")
    for name, text in _CALLS.items():
        asked, _, answered = text.partition(" -> ")
        service.method.add(
            name=name,
            input_type=f".{PACKAGE}.{asked.removeprefix('stream ')}",
            output_type=f".{PACKAGE}.{answered.removeprefix('stream ')}",
            client_streaming=asked.startswith("stream "),
            server_streaming=answered.startswith("stream "),
        )
    return file


def _add_field(message: Any, number: str, name: str, *words: str) -> None:
    kind = descriptor_pb2.FieldDescriptorProto
    *before, last = words
    field = message.field.add(name=name, number=int(number), label=kind.LABEL_OPTIONAL)
    if "repeated" in before:
        field.label = kind.LABEL_REPEATED
    elif "optional" in before:
        # protobuf's form for a number that may be absent.
        message.oneof_decl.add(name=f"_{name}")
        field.oneof_index, field.proto3_optional = len(message.oneof_decl) - 1, True
    if last[0].islower():
        field.type = getattr(kind, f"TYPE_{last.upper()}")
        return
    field.type = kind.TYPE_ENUM if last in _ENUMS else kind.TYPE_MESSAGE
    if last == "Timestamp":
        field.type_name = ".google.protobuf.Timestamp"
    elif last == "DescriptorType":
        field.type_name = f".{PACKAGE}.FlightDescriptor.{last}"
    else:
        field.type_name = f".{PACKAGE}.{last}"
