"""Where the user's function stands whose result is wrong: such an error is not raised in it, so its trace lacks it."""

from __future__ import annotations

from functools import partial
from types import CodeType, FunctionType, GeneratorType, MethodType, TracebackType
from typing import Any


def trace_of(function: Any, result: Any = None) -> TracebackType | None:
    """A trace of one line: that at which the function's generator, its ``result``, waits, or else the function's first.
    None for a function that is not of Python.
    """
    code, module = _code_of(function)
    if code is None:
        return None
    frame = result.gi_frame if isinstance(result, GeneratorType) else None
    if frame is not None and frame.f_code is code:
        return TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
    place = "\n" * (code.co_firstlineno - 1) + "raise LookupError"
    line: CodeType = compile(place, code.co_filename, "exec").replace(
        co_name=code.co_name, co_qualname=code.co_qualname
    )
    try:
        exec(line, {"__name__": module})  # noqa: S102 - the line above, in the place of the function's
    except LookupError as error:
        trace = error.__traceback__
        return None if trace is None else trace.tb_next
    raise AssertionError


def _code_of(function: Any) -> tuple[CodeType | None, str]:
    """The code of the user's function, without what was put around it, and its module."""
    while not isinstance(function, FunctionType):
        if isinstance(function, partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        elif type(function).__module__.startswith("spark_client."):
            function = function.fn
        elif callable(function) and isinstance(type(function).__call__, FunctionType):
            function = type(function).__call__
        else:
            return None, ""
    return function.__code__, function.__module__ or "__main__"
