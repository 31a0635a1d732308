"""The options of the data source, checked: a wrong one is named, with the options that there are.

Spark gives all of them as text, and their names in lower case.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flight_server.protocol import MAX_PARTITIONS, InvalidRequest, check_dataset_name
from spark_client.connection import Reading, Server, Timeouts, Writing, check_location

BATCH_READ, BATCH_WRITE = "spark.read", "df.write"
STREAM_READ, STREAM_WRITE = "spark.readStream", "df.writeStream"
USES = frozenset({BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE})
ANY_READ = "spark.read or spark.readStream"
"""Spark does not say which of the two it asks the schema for."""
LIMITS = ("max_rows_per_trigger", "max_bytes_per_trigger", "max_partitions_per_trigger")

_TIMEOUTS = tuple(each.name for each in fields(Timeouts))


@dataclass(frozen=True)
class _Option:
    parse: Callable[[str], Any]
    uses: frozenset[str] = USES


def _number(low: float, kind: type[int | float] = int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value < float("inf"):
            raise ValueError(f"{'an integer' if kind is int else 'a number'} from {low:g} on")
        return value

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}")
        return text.lower()

    return parse


def _flag(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between them, or a JSON list of names."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
    else:
        found = [name.strip() for name in text.split(",")]
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(name, str) and name for name in found)
        or len(set(found)) < len(found)
    ):
        raise ValueError("different names with commas between them, or a JSON list of names")
    return tuple(found)


def _numbers(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < MAX_PARTITIONS:
            raise ValueError("partitions with commas between them, as in '0,3,8-11'")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _certificates(text: str) -> bytes:
    """PEM text, or the PEM of the file of that name."""
    if text.lstrip().startswith("-----BEGIN"):
        return text.encode()
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise ValueError(f"PEM text, or a file that the driver can read ({error})") from error


def _token(text: str) -> str:
    # Not a ValueError, whose message would show it.
    if not text or text != text.strip() or not text.isascii() or not text.isprintable():
        raise InvalidRequest(
            "option 'token' is printable ASCII without spaces or line breaks around it, and the one given is not"
        )
    return text


def _directory(text: str) -> str:
    if not text:
        raise ValueError("a directory")
    return text


_READS = frozenset({BATCH_READ, STREAM_READ})
_WRITES = frozenset({BATCH_WRITE, STREAM_WRITE})
_READ, _WRITE = frozenset({BATCH_READ}), frozenset({BATCH_WRITE})
_STREAM_READ, _STREAM_WRITE = frozenset({STREAM_READ}), frozenset({STREAM_WRITE})
_OPTIONS: dict[str, _Option] = {
    "location": _Option(check_location),
    "path": _Option(check_dataset_name),
    "token": _Option(_token),
    "tls_root_certs": _Option(_certificates),
    "lane": _Option(_one_of("auto", "grpc", "bulk")),
    "check": _Option(_flag),
    **{name: _Option(_number(0) if name == "tries" else _number(0.001, float)) for name in _TIMEOUTS},
    "budget_bytes": _Option(_number(1), _READS),
    "scratch_dir": _Option(_directory, _READS),
    "columns": _Option(_names, _READS),
    "partitions": _Option(_numbers, _READ),
    "limit": _Option(_number(0), _READ),
    "starting": _Option(_one_of("earliest", "latest"), _STREAM_READ),
    **{name: _Option(_number(1), _STREAM_READ) for name in LIMITS},
    "exists": _Option(_one_of("append", "error", "ignore"), _WRITE),
    "lease_seconds": _Option(_number(0.1, float), _WRITES),
    "durable": _Option(_flag, _WRITES),
    "fail_on_data_loss": _Option(_flag, _STREAM_WRITE),
    "checkpointlocation": _Option(str, _STREAM_WRITE),  # Spark's own, as the next one
    "queryname": _Option(str, _STREAM_WRITE),
}


class SourceOptions:
    """The options of one use of the source, by :meth:`get`.

    Raises:
        InvalidRequest: an option that this use does not have, or a value that it cannot have; also of the methods.
    """

    def __init__(self, given: Mapping[str, str], use: str) -> None:
        self._values: dict[str, Any] = {}
        for name, text in given.items():
            option = _OPTIONS.get(name.lower())
            if option is None or not _fits(option, use):
                raise _unknown(name, use)
            try:
                self._values[name.lower()] = option.parse(text)
            except ValueError as error:
                raise InvalidRequest(f"option {name!r} of {use} is {error}, not {text!r}") from error
        if "location" not in self._values:
            raise InvalidRequest(f'{use}: name the server by .option("location", "grpc://host:8815")')
        if "path" not in self._values:
            how = {BATCH_WRITE: "save", STREAM_WRITE: "start"}.get(use, "load")
            raise InvalidRequest(f'{use}: name the dataset, as in .{how}("countries")')

    @property
    def dataset(self) -> str:
        return str(self._values["path"])

    def get(self, name: str, default: Any = None) -> Any:
        """The option's value."""
        return self._values.get(name, default)

    def server(self) -> Server:
        """The server, not connected yet."""
        timeouts = {name: self._values[name] for name in _TIMEOUTS if name in self._values}
        lane, check = self.get("lane", "auto"), self.get("check", True)
        budget_bytes = self.get("budget_bytes", Reading.budget_bytes)
        return Server(
            self._values["location"],
            token=self.get("token"),
            tls_root_certs=self.get("tls_root_certs"),
            timeouts=Timeouts(**timeouts),
            reading=Reading(lane, budget_bytes, self.get("scratch_dir"), check),
            writing=Writing(lane, check),
        )


def _fits(option: _Option, use: str) -> bool:
    return bool(option.uses & _READS) if use == ANY_READ else use in option.uses


_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})


def _unknown(name: str, use: str) -> InvalidRequest:
    known = sorted(each for each, option in _OPTIONS.items() if _fits(option, use) and each not in _SPARKS)
    if name.lower() == "paths":
        return InvalidRequest(
            f'{use} takes one dataset, as in .load("countries"); read several and union them'
        )
    elsewhere = _OPTIONS.get(name.lower())
    near = difflib.get_close_matches(name.lower(), known, 1)
    if elsewhere is not None:
        hint = f", which is one of {' and '.join(sorted(elsewhere.uses))}"
    else:
        hint = f" (did you mean {near[0]!r}?)" if near else ""
    return InvalidRequest(
        f"{use} of format 'flight' has no option {name!r}{hint}; it has {', '.join(known)}", option=name
    )
