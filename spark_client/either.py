"""A name with two meanings: one on the class, another on its objects."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class OnClassOrObject(Generic[P, R, Q, S]):
    """``Kind.name(...)`` calls the first function with the class, ``thing.name(...)`` the second with the object."""

    def __init__(
        self, on_class: Callable[Concatenate[Any, P], R], on_object: Callable[Concatenate[Any, Q], S]
    ) -> None:
        self._on_class = on_class
        self._on_object = on_object

    @overload
    def __get__(self, thing: None, kind: type[Any]) -> Callable[P, R]: ...

    @overload
    def __get__(self, thing: object, kind: type[Any]) -> Callable[Q, S]: ...

    def __get__(self, thing: object, kind: type[Any]) -> Callable[P, R] | Callable[Q, S]:
        if thing is None:
            return cast("Callable[P, R]", MethodType(self._on_class, kind))
        return cast("Callable[Q, S]", MethodType(self._on_object, thing))
