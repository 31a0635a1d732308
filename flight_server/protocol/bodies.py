"""Bodies: dataclasses whose fields say how JSON has them. A new field is one line.

    @dataclass(frozen=True)
    class HoldRequest(Request, what="hold"):
        dataset: Name
        generation: Text = None
        version: Annotated[int | None, integer(0, MAX_VERSION)] = None

Guarantee: the text that ``encode`` renders is parsed to the same value. A field that is absent, or null, has its
default, and a field that has its default is not rendered. Parsing is strict: an unexpected key or value is an error
that names the expected ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .strict_json import dump_json, parse_json

_NUMBER = re.compile("[0-9]{1,15}")


class Fields:
    """Takes the expected keys out of a JSON object one by one; :meth:`end` refuses the remaining keys. ``what`` names
    the object in errors.
    """

    def __init__(self, body: Mapping[str, Any], what: str) -> None:
        self._body = dict(body)
        self._known: list[str] = []
        self.what = what

    def any(self, key: str) -> Any:
        self._known.append(key)
        return self._body.pop(key, None)

    def required(self, key: str) -> Any:
        value = self.any(key)
        if value is None:
            raise InvalidRequest(f"{self.what}: {key!r} is missing")
        return value

    def text(self, key: str) -> str | None:
        value: str | None = self.any(key)
        if value is None or isinstance(value, str):
            return value
        raise self._unfit(key, "text", value)

    def integer(self, key: str, low: int, high: int) -> int | None:
        value: int | None = self.any(key)
        # A bool is an int, too.
        if value is None or (type(value) is int and low <= value <= high):
            return value
        raise self._unfit(key, f"an integer from {low} to {high}", value)

    def number(self, key: str, low: float, high: float) -> float | None:
        value = self.any(key)
        if value is None or (type(value) in (int, float) and low <= value <= high):
            return None if value is None else float(value)
        raise self._unfit(key, f"a number from {low} to {high}", value)

    def flag(self, key: str) -> bool:
        value = self.any(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self._unfit(key, "true or false", value)

    def end(self) -> None:
        if self._body:
            unknown = ", ".join(repr(key) for key in sorted(self._body))
            raise InvalidRequest(f"{self.what}: unknown key {unknown}; known are {', '.join(self._known)}")

    def _unfit(self, key: str, expected: str, value: object) -> InvalidRequest:
        return InvalidRequest(f"{self.what}: {key!r} must be {expected}, not {value!r}")


class InJson(NamedTuple):
    """How JSON has a field: the metadata of its ``Annotated`` type.

    Args:
        take: its value out of a body, None if it is absent.
        key: None for the field's name.
        render: makes JSON of its value; None for the value, or its ``to_json``.
        always: also rendered where it has its default.
        inline: the keys of its object stand among the body's own.
    """

    take: Callable[[Fields, str], Any]
    key: str | None = None
    render: Callable[[Any], Any] | None = None
    always: bool = False
    inline: bool = False


def integer(low: int, high: int, key: str | None = None, *, always: bool = False) -> InJson:
    """An integer in this range."""
    return InJson(lambda fields, key: fields.integer(key, low, high), key, always=always)


def number(low: float, high: float, *, always: bool = False) -> InJson:
    """A number in this range, parsed as a float."""
    return InJson(lambda fields, key: fields.number(key, low, high), always=always)


def parse_as(parse: Callable[[Any], Any], *, needed: bool = False) -> InJson:
    """Any value but null, as ``parse`` returns it, which raises InvalidRequest."""

    def take(fields: Fields, key: str) -> Any:
        value = fields.required(key) if needed else fields.any(key)
        return None if value is None else parse(value)

    return InJson(take)


def one_of(words: type[StrEnum], *absent: str | None, always: bool = False) -> InJson:
    """One of these words. ``absent``: values that mean none."""

    def take(fields: Fields, key: str) -> StrEnum | None:
        text = fields.text(key)
        if text not in {*words, *absent}:
            raise InvalidRequest(f"{fields.what}: {key!r} is one of {', '.join(words)}, not {text!r}")
        return None if text is None or text in absent else words(text)

    return InJson(take, always=always)


Name = Annotated[str, parse_as(check_dataset_name, needed=True)]
Text = Annotated[str | None, InJson(Fields.text)]
Flag = Annotated[bool, InJson(Fields.flag)]
Faults = Iterator[tuple[bool, str]]


class Body:
    """The base of dataclasses that are objects in JSON. ``what`` names the body in errors."""

    what: ClassVar[str]

    def __init_subclass__(cls, *, what: str = "") -> None:
        cls.what = what

    @classmethod
    def of(cls, body: Mapping[str, Any], what: str | None = None) -> Self:
        """The value of a JSON object. Raises InvalidRequest."""
        members = Fields(body, what or cls.what)
        value = cls.take(members)
        members.end()
        value.check(members.what)
        return value

    @classmethod
    def member(cls, members: Fields, key: str) -> Self | None:
        """The one that is a member of another body; None if that has none. Raises InvalidRequest."""
        value = members.any(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            keys = ", ".join(in_json.key or name for name, in_json, _ in cls._in_json())
            raise InvalidRequest(f"{members.what}: {key!r} must be an object with {keys}")
        return cls.of(value, f"{members.what}: {key!r}")

    @classmethod
    def take(cls, members: Fields) -> Self:
        """The value whose keys may stand among others, not yet checked: a field that was absent and has no default is
        None. Raises InvalidRequest.
        """
        values = {}
        for name, in_json, default in cls._in_json():
            value = in_json.take(members, in_json.key or name)
            if value is not None or default is MISSING:
                values[name] = value
        return cls(**values)

    def faults(self, what: str) -> Faults:
        """The faults that fields may have together: whether they have it, and the error's text."""
        del what
        yield from ()

    def lacks(self, *names: str) -> bool:
        """Whether one of these fields is None; for ``faults``."""
        return any(getattr(self, name) is None for name in names)

    def check(self, what: str) -> None:
        """Raise InvalidRequest for the first fault."""
        for wrong, text in self.faults(what):
            if wrong:
                raise InvalidRequest(text)

    def to_json(self) -> Any:
        body: dict[str, Any] = {}
        for name, in_json, default in self._in_json():
            value = getattr(self, name)
            if not in_json.always and value == default:
                continue
            if in_json.render is not None:
                value = in_json.render(value)
            elif hasattr(value, "to_json"):
                value = value.to_json()
            body |= value if in_json.inline else {in_json.key or name: value}
        return body

    def encode(self) -> bytes:
        return dump_json(self.to_json())

    @classmethod
    @cache
    def _in_json(cls) -> list[tuple[str, InJson, Any]]:
        """The fields that JSON has, with their defaults."""
        # Annotations are evaluated in the class: a lambda there sees no names of the module.
        types = get_type_hints(cls, include_extras=True)
        listed = []
        for each in fields(cls):  # type: ignore[arg-type]  # bodies are dataclasses
            default = each.default if each.default_factory is MISSING else each.default_factory()
            described = getattr(types[each.name], "__metadata__", ())
            listed += [(each.name, in_json, default) for in_json in described]
        return listed


class Request(Body):
    """A body that comes as bytes."""

    @classmethod
    def parse(cls, data: bytes, *, in_thread: bool = False) -> Self:
        """``in_thread``: as for :func:`parse_json`. Raises InvalidRequest."""
        return cls.of(parse_json(data, cls.what, in_thread=in_thread))


def with_numbers(query: Mapping[str, str], keys: Collection[str]) -> dict[str, int | str]:
    """The values of a URL's query; those of ``keys`` as numbers, where they are some."""
    return {
        key: int(text) if key in keys and _NUMBER.fullmatch(text) else text for key, text in query.items()
    }
