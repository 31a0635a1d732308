"""The tree of errors: each class has its status, travels as JSON and in a pickle, and fits into trailers."""

from __future__ import annotations

import pickle
import re
from urllib.parse import quote

import pytest

from flight_server.protocol import errors
from flight_server.protocol.errors import FlightShuffleError, NotFound, StaleTicket, error_classes, from_json

# INVALID_ARGUMENT and the others that pyarrow raises as the class that fits.
STATUSES = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNAVAILABLE",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "INTERNAL",
    "UNIMPLEMENTED",
}
CLASSES = sorted(error_classes().items())
for_each_class = pytest.mark.parametrize(
    "kind", [kind for _, kind in CLASSES], ids=[code for code, _ in CLASSES]
)


@for_each_class
def test_each_class_becomes_a_status_that_reaches_pyarrow_as_it_is_meant(
    kind: type[FlightShuffleError],
) -> None:
    assert kind.status in STATUSES
    assert kind.retryable == (kind.status == "UNAVAILABLE")


@for_each_class
def test_each_class_comes_back_from_its_json(kind: type[FlightShuffleError]) -> None:
    error = kind("what was wrong; what to do", dataset="d", partition=3, generation=None)
    back = from_json(error.to_json())
    assert type(back) is kind
    assert (back.message, back.detail) == (error.message, {"dataset": "d", "partition": 3})
    assert error.to_json().isascii()


@for_each_class
def test_each_class_comes_back_from_a_pickle(kind: type[FlightShuffleError]) -> None:
    back = pickle.loads(pickle.dumps(kind("what", dataset="d")))
    assert type(back) is kind
    assert (str(back), back.detail) == ("what", {"dataset": "d"})


def test_every_class_has_a_code_of_its_own_and_stands_in_the_table() -> None:
    defined = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, FlightShuffleError)
    ]
    assert len({kind.code for kind in defined}) == len(defined)
    table = (errors.__doc__ or "").partition("=\n")[2].partition("\n\n")[0]
    written: dict[str, str] = {}
    status = ""
    for line in table.splitlines():
        names = re.findall(r"\w+", line)
        if line[4] != " ":  # not the rest of the line above
            status = names.pop(1)
        written |= dict.fromkeys(names, status)
    assert written == {kind.__name__: kind.status for kind in defined if kind is not FlightShuffleError}


def test_an_unknown_code_becomes_the_base_class_and_keeps_its_detail() -> None:
    error = from_json('{"error":"of a later version","message":"m","retryable":true,"x":1}')
    assert type(error) is FlightShuffleError
    assert (error.message, error.detail) == ("m", {"x": 1})


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"error":"not_found"}', b"\xff"])
def test_what_is_no_error_of_this_service_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        from_json(text)


@pytest.mark.parametrize("letter", ["x", "%", '"', "\\", "é", "\U0001f600", "\0", "\n"])
def test_a_long_message_still_fits_into_trailers(letter: str) -> None:
    error = StaleTicket(letter * 100_000, dataset="d", generation="g")
    assert error.message.endswith("...")
    as_status = len(quote(error.message, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"))
    as_json = len(error.to_json())
    assert as_status + as_json + as_json * 4 // 3 < 8 << 10


@pytest.mark.parametrize("letter", ["é", "\U0001f600", "\n"])
def test_one_letter_that_is_not_plain_costs_a_refusal_no_more_than_its_own_bytes(letter: str) -> None:
    text = f"the column {letter!r} {letter} " + "x" * 1100 + "; what to do"
    assert NotFound(text).message == text
    long = NotFound(text + "y" * 1200).message
    assert long.startswith(text)
    assert long.endswith("y...")
    assert len(long) > 1150
