"""What clients of Flight SQL send is not implemented, and says so."""

from __future__ import annotations

from functools import partial

import pytest

from tests.integration.bad_input.data import SCHEMA, refused
from tests.support.raw_flight import RawFlight, command, field, flight_data

SQL = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
FOREIGN_COMMANDS = {
    "Flight SQL": (field(1, SQL) + field(2, field(1, b"SELECT 1")), "it takes no CommandStatementQuery"),
    "text": (b"SELECT 1", "is not JSON, and this is not a Flight SQL server"),
    "bytes": (b"\xff\x00{}", "is not JSON, and this is not a Flight SQL server"),
}


@pytest.mark.parametrize("case", FOREIGN_COMMANDS)
def test_a_command_of_another_protocol_is_unimplemented(raw: RawFlight, case: str) -> None:
    body, words = FOREIGN_COMMANDS[case]
    schema = flight_data(SCHEMA.header, descriptor=command(body))
    asked = [refused(lambda: raw.put([schema]))]
    asked += [refused(partial(raw.ask, rpc, command(body))) for rpc in ("GetFlightInfo", "GetSchema")]
    for error in asked:
        assert error.status == "UNIMPLEMENTED"
        assert words in error.message
        assert 'PATH [dataset] or by CMD {"dataset": "…"}' in error.detail["message"]
        assert "put command" not in error.message


def test_a_flight_sql_ticket_is_unimplemented(raw: RawFlight) -> None:
    error = refused(lambda: raw.get(FOREIGN_COMMANDS["Flight SQL"][0]))
    assert (error.status, error.detail["command"]) == ("UNIMPLEMENTED", "CommandStatementQuery")
