"""A body's fields say how JSON has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import pytest

from flight_server.protocol import (
    Body,
    Faults,
    Fields,
    InJson,
    InvalidRequest,
    Name,
    Text,
    integer,
    one_of,
    parse_as,
)
from flight_server.protocol.bodies import Flag, Request, number


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Size(Body, what="size"):
    rows: Annotated[int | None, integer(0, 9)] = None


def _size(fields: Fields, key: str) -> Size:
    del key
    return Size.take(fields)


@dataclass(frozen=True)
class Thing(Request, what="thing"):
    dataset: Name
    limit: Annotated[int, integer(1, 5, "max", always=True)] = 3
    color: Annotated[Color, one_of(Color, None, "")] = Color.RED
    weight: Annotated[float, number(0.0, 1.0)] = 0.5
    note: Text = None
    last: Flag = False
    digits: Annotated[int | None, parse_as(int)] = None
    size: Annotated[Size, InJson(_size, inline=True)] = Size()
    local: int = 7

    def faults(self, what: str) -> Faults:
        yield self.last and self.note is None, f"{what}: the last one has a note"


def thing(**body: Any) -> Thing:
    return Thing.parse(json.dumps({"dataset": "d", **body}).encode())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max": 6}, "thing: 'max' must be an integer from 1 to 5, not 6"),
        ({"max": True}, "thing: 'max' must be an integer from 1 to 5, not True"),
        ({"weight": "x"}, "thing: 'weight' must be a number from 0.0 to 1.0, not 'x'"),
        ({"note": 1}, "thing: 'note' must be text, not 1"),
        ({"last": 1}, "thing: 'last' must be true or false, not 1"),
        ({"color": "pink"}, "thing: 'color' is one of red, blue, not 'pink'"),
        ({"dataset": None}, "thing: 'dataset' is missing"),
        ({"last": True}, "thing: the last one has a note"),
        (
            {"local": 1},
            "thing: unknown key 'local'; known are dataset, max, color, weight, note, last, digits, rows",
        ),
    ],
)
def test_an_error_says_what_is_expected(body: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        thing(**body)
    assert raised.value.message == words
