"""The table of access, and its page."""

from __future__ import annotations

from pathlib import Path

from flight_server.access import OPERATIONS, table_text
from flight_server.protocol import ACTIONS

PAGE = Path(__file__).resolve().parents[3] / "deploy" / "README.md"


def test_the_page_has_the_table() -> None:
    assert table_text() in PAGE.read_text()


def test_each_action_has_a_row_and_each_row_an_action() -> None:
    rows = {call.removeprefix("action ") for call in OPERATIONS if call.startswith("action ")}
    assert rows == ACTIONS.keys()
