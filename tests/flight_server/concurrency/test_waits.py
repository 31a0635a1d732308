"""Waits are listed exactly while they last."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

import pytest

from flight_server.concurrency.waits import ENDS, Waits

SERVER = Path(__file__).parents[3] / "flight_server"


def test_an_open_wait_is_listed_with_its_owner_and_deadline() -> None:
    waits = Waits()
    entered = waits.enter("reader", dataset="d", partition=3, peer="p", deadline_seconds=5.0)
    with suppress(RuntimeError), entered:
        (row,) = waits.listed()
        assert row.pop("seconds") >= 0
        assert row == {
            "waiting_for": "reader",
            "dataset": "d",
            "partition": 3,
            "producer": None,
            "peer": "p",
            "deadline_seconds": 5.0,
            "ends": None,
        }
        assert len(waits) == 1
        raise RuntimeError
    assert waits.listed() == []


def named_kinds() -> set[str]:
    """What the waits of the server's code wait for."""
    kinds = set[str]()
    texts = (file.read_text() for file in SERVER.rglob("*.py"))
    for text in (each for each in texts if ".enter(" in each or "._wait(" in each):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr not in ("enter", "_wait"):
                    continue
                parts = [part for argument in node.args for part in ast.walk(argument)]
                kinds |= {
                    part.value
                    for part in parts
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }
    return kinds


def test_every_wait_has_a_deadline_or_an_end_that_the_guarantee_names() -> None:
    assert named_kinds() == {*ENDS}
    guarantee = (SERVER / "README.md").read_text().partition("**No silent wait.**")[2].partition("## ")[0]
    waits = Waits()
    for what, end in ENDS.items():
        with waits.enter(what):
            (row,) = waits.listed()
        assert (row["deadline_seconds"], row["ends"]) == (None, end)
        assert f"| `{what}` (" in guarantee
        assert end.split(",")[0] in guarantee
    with pytest.raises(KeyError), waits.enter("something else"):
        pass
