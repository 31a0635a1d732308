"""The table of access, and its page."""

from __future__ import annotations

from pathlib import Path

from flight_server.access import OPERATIONS
from flight_server.protocol import ACTIONS

PAGE = Path(__file__).resolve().parents[3] / "deploy" / "README.md"


def test_the_page_has_the_table() -> None:
    lines = ["| call | permission | on | |", "|---|---|---|---|"]
    for row in OPERATIONS.values():
        permission = "any" if row.permission is None else "no token" if row.is_open else row.permission
        call = row.call.replace("{rest:.+}", "…")
        lines.append(f"| `{call}` | {permission} | {row.resource} | {row.also} |".replace("|  |", "| |"))
    assert "\n".join(lines) in PAGE.read_text()


def test_each_action_has_a_row_and_each_row_an_action() -> None:
    rows = {call.removeprefix("action ") for call in OPERATIONS if call.startswith("action ")}
    assert rows == ACTIONS.keys()
