"""The table of options: which there are, who has them, and what each one answers to a right and to a wrong text."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flight_server.protocol import InvalidRequest, KeepRule
from spark_client.connection import Reading, Timeouts, Writing
from spark_client.datasource.source_options import SourceOptions
from spark_client.hosts import Copies
from spark_client.settings import (
    BATCH_READ,
    BATCH_WRITE,
    SESSION,
    STREAM_READ,
    STREAM_WRITE,
    session_arguments,
)
from spark_client.settings.option_table import OPTIONS
from spark_client.settings.texts import EVERY_ROW

USES = dict(zip("SrwRW", (SESSION, BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE), strict=True))
PEM = "-----BEGIN CERTIFICATE-----\n"
RULE = '{"rule": "latest", "key": ["currency"], "order_by": ["time"]}'
NO_LOCATION = (
    "'h:1' is no address of a server: write 'grpc://h:1', or 'grpc+tls://h:1' where it has a certificate"
)
NO_TOKEN = "the token is printable ASCII without spaces or line breaks around it, and this one is not"
LANES = "'auto', 'grpc' or 'bulk'"
BOOL = "'true' or 'false'"
WHOLE = "an integer from {} on".format
SECONDS = "a number of seconds from {} on, also with a unit, as in '90s' or '5min'".format
SIZE = "a number of bytes from {} on, also with a unit, as in '64m' or '64MiB'".format
NAMES = "different names with commas between them, or a JSON list of names"
PEM_FILE = "PEM text, or a file that the driver can read ([Errno 2] No such file or directory: '/nowhere')"
A_RULE = "'all', or a keep rule in JSON, as " + RULE

# Name, uses, default, a text and its value, a text and what is wrong with it: None for no such text.
ANSWERS: list[tuple[str, str, Any, str, Any, str | None, str]] = [
    ("location", "S", None, " Embedded ", "embedded", "h:1", NO_LOCATION),
    ("location", "rwRW", None, "grpc://h:1/", "grpc://h:1", "h:1", NO_LOCATION),
    ("token", "SrwRW", None, "secret", "secret", "secret ", NO_TOKEN),
    ("token_file", "SrwRW", None, "/run/token", Path("/run/token"), "", "a file"),
    ("tls_root_certs", "SrwRW", None, PEM, PEM.encode(), "/nowhere", PEM_FILE),
    ("tls_client_cert", "SrwRW", None, "/run/client.crt", Path("/run/client.crt"), "", "a file"),
    ("tls_client_key", "SrwRW", None, "/run/client.key", Path("/run/client.key"), "", "a file"),
    ("lane", "SrwRW", None, "GRPC", "grpc", "http", LANES),
    ("compression", "S", None, "none", None, "snappy", "'auto', 'lz4', 'zstd' or 'none'"),
    ("budget_bytes", "SrR", None, "64m", 64 << 20, "64x", SIZE(1)),
    ("gathered_bytes", "S", None, "2GiB", 2 << 30, "1000k", SIZE(1 << 20)),
    ("driver_bytes", "S", None, "8 MB", 8_000_000, "8 MBit", SIZE(0)),
    ("scratch_dir", "SrR", None, "/scratch", "/scratch", " ", "a directory"),
    *(
        (each.name, "SrwRW", None, "1min", 60.0, "0", SECONDS(0.001))
        for each in fields(Timeouts)
        if each.name != "tries"
    ),
    ("tries", "SrwRW", None, " 0 ", 0, "1.5", WHOLE(0)),
    ("copies.dirs", "S", None, "/a, /b", ("/a", "/b"), "/a,,/b", "directories with commas between them"),
    ("copies.limit_bytes", "S", None, "1g", 1 << 30, "0", SIZE(1)),
    ("lease_seconds", "S", None, "2min", 120.0, "0.5", SECONDS(1)),
    (
        "offload_to",
        "S",
        None,
        "s3://b/x, /shared/",
        ("s3://b/x", "file:///shared"),
        "shared",
        "absolute paths, or addresses such as s3://bucket/path, with commas between them",
    ),
    ("workers", "S", None, "4", 4, "0", WHOLE(1)),
    ("lease_seconds", "wW", None, "500ms", 0.5, "0.05", SECONDS(0.1)),
    ("path", "rwRW", None, "countries", "countries", None, ""),
    ("checkpoint_location", "W", None, "/tmp/c", "/tmp/c", None, ""),
    ("query_name", "W", None, "q", "q", None, ""),
    ("columns", "rR", None, '["a, b", "c"]', ("a, b", "c"), "a,a", NAMES),
    ("starting", "R", "earliest", "Latest", "latest", "first", "'earliest' or 'latest'"),
    ("max_rows_per_trigger", "R", None, "1", 1, "0", WHOLE(1)),
    ("max_bytes_per_trigger", "R", None, "64m", 64 << 20, "64x", SIZE(1)),
    ("max_partitions_per_trigger", "R", None, "1", 1, "0", WHOLE(1)),
    ("as_of", "r", None, "0", 0, "-1", WHOLE(0)),
    ("after", "r", None, "7", 7, "", WHOLE(0)),
    ("starting_version", "R", "earliest", " 12 ", 12, "first", "'earliest' or 'latest', or a version"),
    ("max_versions_per_trigger", "R", None, "2", 2, "0", WHOLE(1)),
    ("hold_lease_seconds", "rR", None, "2h", 7200.0, "0", SECONDS(0.1)),
    ("fail_on_data_loss", "RW", True, "false", False, "no", BOOL),
    ("exists", "w", None, "Ignore", "ignore", "overwrite", "'append', 'error' or 'ignore'"),
    ("durable", "wW", False, "true", True, "yes", BOOL),
    ("changelog", "wW", None, "All", EVERY_ROW, "latest", A_RULE),
    ("changelog", "wW", None, RULE, KeepRule.parse(json.loads(RULE)), "top", A_RULE),
    ("delay_seconds", "wW", None, "0", 0.0, "soon", SECONDS(0)),
    ("delete", "wW", False, "true", True, "1", BOOL),
    ("transaction_app", "w", None, "app", "app", None, ""),
    ("transaction_version", "w", None, "3", 3, "-3", WHOLE(0)),
]
BY_USE = [
    pytest.param(answer, use, id=f"{answer[0]}-{use}-{at}")
    for at, answer in enumerate(ANSWERS)
    for use in answer[1]
]
GO_TOGETHER = {
    "transaction_app": {"transaction_version": "1"},
    "transaction_version": {"transaction_app": "a"},
}


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def of_session(name: str, text: str) -> Any:
    """The client's argument, or the field of one, that the session's setting becomes."""
    where = {} if name in ("offload_to", "workers") else {f"{SESSION}.location": "grpc://h:1"}
    settings = where | {f"{SESSION}.{camel(name)}": text}
    conf = SimpleNamespace(getAll=settings, get=lambda _, default=None: default or "local[1]")
    spark: Any = SimpleNamespace(conf=conf)
    arguments = session_arguments(spark, {})
    if name in arguments:
        return arguments[name]
    if name == "token_file":
        return arguments["token"]
    found = {
        getattr(part, name.removeprefix("copies."))
        for part in arguments.values()
        if isinstance(part, Reading | Writing | Timeouts | Copies)
    }
    assert len(found) == 1
    return found.pop()


def of_source(name: str, text: str, use: str) -> SourceOptions:
    needed = {"location": "grpc://h:1", "path": "countries"} | GO_TOGETHER.get(name, {})
    return SourceOptions(needed | {name: text}, use)


def test_these_are_the_options_with_their_uses_and_defaults() -> None:
    known = {(name, frozenset(USES[use] for use in uses), default) for name, uses, default, *_ in ANSWERS}
    assert {(option.name, option.uses, option.default) for option in OPTIONS} == known
    for use in USES.values():
        names = [option.name for option in OPTIONS if use in option.uses]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(("answer", "use"), BY_USE)
def test_each_use_takes_an_option_or_says_to_the_letter_what_it_takes(
    answer: tuple[str, str, Any, str, Any, str | None, str], use: str
) -> None:
    name, _, default, text, value, wrong, why = answer
    if use == "S":
        assert of_session(name, text) == value
        called = f"{SESSION}.{camel(name)}"
    else:
        options = of_source(name, text, USES[use])
        assert options.get(name) == value
        called = f"option {name!r} of {USES[use]}"
        if name not in {"location", "path", *GO_TOGETHER}:
            assert of_source("path", "countries", USES[use]).get(name) == default
    if wrong is None:
        return
    with pytest.raises(InvalidRequest) as refused:
        of_session(name, wrong) if use == "S" else of_source(name, wrong, USES[use])
    if why in (NO_LOCATION, NO_TOKEN):
        assert refused.value.message == (f"{called}: {why}" if use == "S" else why)
    else:
        assert refused.value.message == f"{called} is {why}, not {wrong!r}"


def test_every_field_of_the_clients_dataclasses_is_an_option() -> None:
    names = {option.name for option in OPTIONS if SESSION in option.uses}
    assert {each.name for kind in (Reading, Writing, Timeouts) for each in fields(kind)} <= names
    assert {f"copies.{each.name}" for each in fields(Copies)} <= names
