"""Errors that hide a Ctrl-C."""

from __future__ import annotations

import pytest

from spark_client.pyspark_parts import interrupts_kept


def hide(signal: type[BaseException]) -> None:
    """As Py4J, which asks the broken connection in its handler."""
    try:
        raise signal
    except signal:
        raise RuntimeError("the gateway must be connected")  # noqa: B904  # as Py4J


def test_an_error_that_hides_an_interrupt_leaves_as_one() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interrupts_kept():
        hide(KeyboardInterrupt)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_other_errors_and_interrupts_leave_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="must be connected"), interrupts_kept():
        hide(ValueError)
    with pytest.raises(KeyboardInterrupt, match="itself"), interrupts_kept():
        raise KeyboardInterrupt("itself")
    with interrupts_kept():
        pass


def test_an_interrupt_that_the_caller_handles_is_none_of_the_block() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(RuntimeError, match="must be connected"), interrupts_kept():
            hide(ValueError)
        with pytest.raises(KeyboardInterrupt), interrupts_kept():
            hide(KeyboardInterrupt)
