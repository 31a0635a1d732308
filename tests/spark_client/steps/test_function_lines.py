"""A wrong result is shown at the user's function: at the line that gave it, or the function's first."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.steps import MapStage, run
from spark_client.steps.function_lines import trace_of

DECLARED = Declared("stage 1 (mapInArrow f)", pa.schema([("k", pa.int64())]))


def gives_a_number(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        yield 7  # the line


def returns_a_number(batches: Any) -> Any:
    return 7


def gives_other_columns(batches: Iterator[Any]) -> Iterator[Any]:
    yield from (pa.record_batch({"x": batch["k"]}) for batch in batches)


class Called:
    def __call__(self, batches: Any) -> Any:
        return 7

    def method(self, batches: Any) -> Any:
        return 7


def lines(trace: TracebackType | None) -> list[tuple[str, str | None]]:
    return [(each.name, each.line) for each in traceback.extract_tb(trace)]


@pytest.mark.parametrize(
    ("function", "name", "line"),
    [
        (gives_a_number, "gives_a_number", "yield 7  # the line"),
        (returns_a_number, "returns_a_number", "def returns_a_number(batches: Any) -> Any:"),
        (gives_other_columns, "gives_other_columns", None),
        (partial(returns_a_number), "returns_a_number", "def returns_a_number(batches: Any) -> Any:"),
        (Called(), "__call__", "def __call__(self, batches: Any) -> Any:"),
        (Called().method, "method", "def method(self, batches: Any) -> Any:"),
    ],
)
def test_a_wrong_result_is_shown_at_the_function(
    function: Callable[..., Any], name: str, line: str | None
) -> None:
    batches = iter([pa.record_batch({"k": [1, 2]})])
    with pytest.raises(InvalidRequest, match="stage 1") as wrong:
        list(run([MapStage(function, DECLARED)], batches))
    last = lines(wrong.value.__traceback__)[-1]
    assert last[0] == name
    assert line is None or last[1] == line
    assert [each for each, _ in lines(wrong.value.__traceback__)].count(name) == 1


def test_an_error_of_the_function_itself_has_its_own_trace() -> None:
    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            raise InvalidRequest("of the user's own")
        yield

    with pytest.raises(InvalidRequest) as wrong:
        list(run([MapStage(fails, DECLARED)], iter([pa.record_batch({"k": [1]})])))
    assert lines(wrong.value.__traceback__)[-1][1] == 'raise InvalidRequest("of the user\'s own")'


def test_what_is_not_of_python_has_no_line() -> None:
    assert trace_of(len) is None
    assert trace_of(None) is None
