"""The options of the data source, checked: a wrong one is named, with the options that there are.

Spark gives all of them as text, and their names in lower case. Underscores in names do not count: ``maxRowsPerTrigger``
is ``max_rows_per_trigger``.

Defaults
    Those of the session's ShuffleClient, if it has registered the source: its server, token, certificates and
    settings. With the location of another server none of them are used: the token is not for that one.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from flight_server.protocol import (
    MAX_PARTITIONS,
    InvalidRequest,
    KeepRule,
    Transaction,
    check_attempt,
    check_dataset_name,
)
from spark_client.connection import Server, Timeouts, check_location
from spark_client.settings import certificates, flag, integer, one_of, seconds, size_bytes, some_text

BATCH_READ, BATCH_WRITE = "spark.read", "df.write"
STREAM_READ, STREAM_WRITE = "spark.readStream", "df.writeStream"
USES = frozenset({BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE})
ANY_READ = "spark.read or spark.readStream"
"""Spark does not say which of the two it asks the schema for."""
LIMITS = ("max_rows_per_trigger", "max_bytes_per_trigger", "max_partitions_per_trigger")
EVERY_ROW = "all"
"""The value of the option ``changelog`` for one that keeps every row."""
OF_CHANGELOGS = (
    "as_of",
    "after",
    "starting_version",
    "max_versions_per_trigger",
    "hold_lease_seconds",
    "fail_on_data_loss",
)
OF_PARTITIONS = ("partitions", "starting", *LIMITS)
"""What only a read of a changelog has, and only a read of another dataset."""

_TIMEOUTS = tuple(each.name for each in fields(Timeouts))


@dataclass(frozen=True)
class _Option:
    parse: Callable[[str], Any]
    uses: frozenset[str] = USES


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


def _token(text: str) -> str:
    # Not a ValueError, whose message would show it.
    if not text or text != text.strip() or not text.isascii() or not text.isprintable():
        raise InvalidRequest(
            "option 'token' is printable ASCII without spaces or line breaks around it, and the one given is not"
        )
    return text


def _keep(text: str) -> KeepRule | str:
    if text.strip().lower() == EVERY_ROW:
        return EVERY_ROW
    try:
        rule = json.loads(text)
    except ValueError:
        raise ValueError(
            f"{EVERY_ROW!r}, or a keep rule in JSON, as "
            '{"rule": "latest", "key": ["currency"], "order_by": ["time"]}'
        ) from None
    return KeepRule.parse(rule)


def _start(text: str) -> str | int:
    if text.strip().isdecimal():
        return int(text)
    try:
        return one_of("earliest", "latest")(text)
    except ValueError as error:
        raise ValueError(f"{error}, or a version") from None


_READS = frozenset({BATCH_READ, STREAM_READ})
_WRITES = frozenset({BATCH_WRITE, STREAM_WRITE})
_READ, _WRITE = frozenset({BATCH_READ}), frozenset({BATCH_WRITE})
_STREAM_READ, _STREAM_WRITE = frozenset({STREAM_READ}), frozenset({STREAM_WRITE})
_OPTIONS: dict[str, _Option] = {
    "location": _Option(check_location),
    "path": _Option(check_dataset_name),
    "token": _Option(_token),
    "token_file": _Option(lambda text: Path(some_text("a file")(text))),
    "tls_root_certs": _Option(certificates),
    "lane": _Option(one_of("auto", "grpc", "bulk")),
    "check": _Option(flag),
    **{name: _Option(integer(0) if name == "tries" else seconds(0.001)) for name in _TIMEOUTS},
    "budget_bytes": _Option(size_bytes(1), _READS),
    "scratch_dir": _Option(some_text("a directory"), _READS),
    "columns": _Option(_names, _READS),
    "partitions": _Option(_numbers, _READ),
    "limit": _Option(integer(0), _READ),
    "starting": _Option(one_of("earliest", "latest"), _STREAM_READ),
    **{name: _Option(integer(1), _STREAM_READ) for name in LIMITS},
    "as_of": _Option(integer(0), _READ),
    "after": _Option(integer(0), _READ),
    "starting_version": _Option(_start, _STREAM_READ),
    "max_versions_per_trigger": _Option(integer(1), _STREAM_READ),
    "hold_lease_seconds": _Option(seconds(0.1), _READS),
    "exists": _Option(one_of("append", "error", "ignore"), _WRITE),
    "lease_seconds": _Option(seconds(0.1), _WRITES),
    "durable": _Option(flag, _WRITES),
    "changelog": _Option(_keep, _WRITES),
    "delay_seconds": _Option(seconds(0.0), _WRITES),
    "delete": _Option(flag, _WRITES),
    "transaction_app": _Option(lambda text: check_attempt(text, "option 'transaction_app'"), _WRITE),
    "transaction_version": _Option(integer(0), _WRITE),
    "fail_on_data_loss": _Option(flag, _STREAM_READ | _STREAM_WRITE),
    "checkpoint_location": _Option(str, _STREAM_WRITE),  # Spark's own, as the next one
    "query_name": _Option(str, _STREAM_WRITE),
}
_SPELLED = {name.replace("_", ""): name for name in _OPTIONS}


class SourceOptions:
    """The options of one use of the source, by :meth:`get`.

    Raises:
        InvalidRequest: an option that this use does not have, or a value that it cannot have; also of the methods.
    """

    def __init__(self, given: Mapping[str, str], use: str, defaults: Server | None = None) -> None:
        self._defaults = defaults
        self._values: dict[str, Any] = {}
        self._use = use
        for name, text in given.items():
            known = _spelled(name)
            option = _OPTIONS.get(known)
            if option is None or not _fits(option, use):
                raise _unknown(name, use)
            if known in self._values:
                raise InvalidRequest(f"{use}: option {known!r} is given in two spellings")
            try:
                self._values[known] = option.parse(text)
            except ValueError as error:
                raise InvalidRequest(f"option {name!r} of {use} is {error}, not {text!r}") from error
        if "location" not in self._values and defaults is None:
            raise InvalidRequest(
                f'{use}: name the server by .option("location", "grpc://host:8815"), or call '
                "ShuffleClient.get(spark) before, with spark.flight.shuffle.location set"
            )
        if "token" in self._values and "token_file" in self._values:
            raise InvalidRequest(f"{use}: give one of the options 'token' and 'token_file'")
        if ("transaction_app" in self._values) != ("transaction_version" in self._values):
            raise InvalidRequest(f"{use}: options 'transaction_app' and 'transaction_version' go together")
        if "path" not in self._values:
            how = {BATCH_WRITE: "save", STREAM_WRITE: "start"}.get(use, "load")
            raise InvalidRequest(f'{use}: name the dataset, as in .{how}("countries")')

    @property
    def dataset(self) -> str:
        return str(self._values["path"])

    def get(self, name: str, default: Any = None) -> Any:
        """The option's value."""
        return self._values.get(name, default)

    @property
    def transaction(self) -> Transaction | None:
        """What makes a write happen once, if it is given."""
        app, version = self.get("transaction_app"), self.get("transaction_version")
        return None if app is None or version is None else Transaction(app, version)

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise InvalidRequest if one of these options is given."""
        given = [name for name in names if name in self._values]
        if given:
            raise InvalidRequest(
                f"{self._use}: dataset {self.dataset!r} {why}, so it takes no option {given[0]!r}",
                dataset=self.dataset,
                option=given[0],
            )

    def server(self) -> Server:
        """The server, not connected yet. Patient from the first call on: a running stream plans each batch in a new
        process, also while its server restarts.
        """
        base, location = self._defaults, self.get("location")
        if base is None or location not in (None, base.location):
            base = Server(location)
        both, of_reads = ("lane", "check"), ("lane", "check", "budget_bytes", "scratch_dir")
        server = Server(
            base.location,
            token=self.get("token", self.get("token_file", base.given_token)),
            tls_root_certs=self.get("tls_root_certs", base.tls_root_certs),
            timeouts=replace(base.timeouts, **self._given(*_TIMEOUTS)),
            reading=replace(base.reading, **self._given(*of_reads)),
            writing=replace(base.writing, **self._given(*both)),
        )
        server.patient = True
        return server

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: self._values[name] for name in names if name in self._values}


def _fits(option: _Option, use: str) -> bool:
    return bool(option.uses & _READS) if use == ANY_READ else use in option.uses


_SPARKS = frozenset({"path", "checkpoint_location", "query_name"})


def _spelled(name: str) -> str:
    """The option's name, if there is such an option."""
    return _SPELLED.get(name.lower().replace("_", ""), name.lower())


def _unknown(name: str, use: str) -> InvalidRequest:
    known = sorted(each for each, option in _OPTIONS.items() if _fits(option, use) and each not in _SPARKS)
    if name.lower() == "paths":
        return InvalidRequest(
            f'{use} takes one dataset, as in .load("countries"); read several and union them'
        )
    elsewhere = _OPTIONS.get(_spelled(name))
    near = difflib.get_close_matches(name.lower(), known, 1)
    if elsewhere is not None:
        hint = f", which is one of {' and '.join(sorted(elsewhere.uses))}"
    else:
        hint = f" (did you mean {near[0]!r}?)" if near else ""
    return InvalidRequest(
        f"{use} of format 'flight' has no option {name!r}{hint}; it has {', '.join(known)}", option=name
    )
