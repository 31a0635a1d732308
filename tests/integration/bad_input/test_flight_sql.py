"""What clients of Flight SQL send is not implemented, and says so; a command that is anything else is a bad request."""

from __future__ import annotations

from functools import partial

import pytest

from tests.integration.bad_input.data import SCHEMA, refused
from tests.support.raw_flight import RawFlight, command, field, flight_data

SQL = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
FOREIGN_COMMANDS = {
    "Flight SQL": (
        field(1, SQL) + field(2, field(1, b"SELECT 1")),
        "UNIMPLEMENTED",
        "this is not a Flight SQL server, so it takes no CommandStatementQuery: describe a dataset by",
    ),
    "a name": (
        b"countries",
        "INVALID_ARGUMENT",
        "the descriptor's command is not JSON: describe a dataset by",
    ),
    "text": (b"SELECT 1", "INVALID_ARGUMENT", "the descriptor's command is not JSON: describe a dataset by"),
    "bytes": (
        b"\xff\x00{}",
        "INVALID_ARGUMENT",
        "the descriptor's command is not JSON: describe a dataset by",
    ),
}


@pytest.mark.parametrize("case", FOREIGN_COMMANDS)
def test_a_command_that_is_not_json_is_refused_as_what_it_is(raw: RawFlight, case: str) -> None:
    body, status, words = FOREIGN_COMMANDS[case]
    schema = flight_data(SCHEMA.header, descriptor=command(body))
    asked = [refused(lambda: raw.put([schema]))]
    asked += [refused(partial(raw.ask, rpc, command(body))) for rpc in ("GetFlightInfo", "GetSchema")]
    for error in asked:
        assert error.status == status
        assert words in error.message
        assert 'PATH [dataset] or by CMD {"dataset": "…"}' in error.detail["message"]
        assert "put command" not in error.message


def test_a_flight_sql_ticket_is_unimplemented(raw: RawFlight) -> None:
    error = refused(lambda: raw.get(FOREIGN_COMMANDS["Flight SQL"][0]))
    assert (error.status, error.detail["command"]) == ("UNIMPLEMENTED", "CommandStatementQuery")
