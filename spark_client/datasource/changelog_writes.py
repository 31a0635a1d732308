"""The changelog that an append or a delete is for: made before an append if there is none, and the schema that the rows
must have.

Guarantee: with the option ``changelog`` the name leads to a changelog of that keep rule, or the write is refused before
a row is sent. Its schema is that of the first DataFrame, without the column ``_diff``.

A DataFrame may have the column ``_diff``, of any integer type: how often its row is asserted, or below zero retracted.
With the option ``delete`` it has the columns of the key and no other, and the rows of these keys are deleted.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from flight_server.protocol import (
    DIFF_COLUMN,
    CreateRequest,
    InvalidRequest,
    KeepRule,
    Kind,
    NotFound,
    WriteMode,
)
from spark_client.changelogs import Changelog
from spark_client.connection import RemoteServer

from .batch_read import find
from .changelog_reads import with_diff
from .source_options import SourceOptions


def encoded(schema: Any) -> str:
    """The schema as ``create`` takes it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def check_changelog(options: SourceOptions, mode: WriteMode) -> WriteMode:
    """The mode, with the option ``delete`` that of a delete. Raises InvalidRequest if the options do not go together,
    or with this mode.
    """
    if options.get("delete"):
        for name in ("changelog", "exists", "durable"):
            if options.get(name):
                raise InvalidRequest(f"option 'delete' does not go with option {name!r}")
        if mode is not WriteMode.APPEND:
            raise InvalidRequest(
                "option 'delete' goes with mode 'append' alone: it deletes the keys that are written"
            )
        return WriteMode.DELETE
    if options.get("changelog") is None:
        if options.get("delay_seconds") is not None:
            raise InvalidRequest("option 'delay_seconds' goes with option 'changelog'")
    elif mode is not WriteMode.APPEND:
        raise InvalidRequest(
            "option 'changelog' goes with mode 'append' alone: a changelog is not overwritten; drop it before, or "
            "write its keys with the option 'delete'"
        )
    return mode


def deleted_schema(options: SourceOptions, server: RemoteServer) -> Any:
    """The schema for a delete: the columns of the key.

    Raises:
        NotFound: there is no such dataset.
        InvalidRequest: it is no changelog, or one without a key.
    """
    found = Changelog.find(server, options.dataset)
    if not found.key:
        raise InvalidRequest(
            f"changelog {options.dataset!r} has no keep rule with a key, by which its rows could be deleted: write "
            f"them with -1 in column {DIFF_COLUMN!r}, which retracts them",
            dataset=options.dataset,
        )
    return pa.schema([found.schema.field(name) for name in found.key])


def appended_schema(options: SourceOptions, server: RemoteServer, given: Any) -> Any:
    """The schema for an append of rows of the schema ``given``; None if there is no such dataset, nor is one made.
    Raises AlreadyExists, InvalidRequest: the name leads to no changelog, or to one with another keep rule.
    """
    name, keep = options.dataset, options.get("changelog")
    has_diff = DIFF_COLUMN in given.names
    try:
        known = server.schema(name)
    except NotFound:
        known = None
    if keep is not None:
        known = known or _without_diff(given)
        request = CreateRequest(
            name,
            Kind.CHANGELOG,
            schema=encoded(known),
            lease_seconds=options.get("lease_seconds"),
            keep=keep if isinstance(keep, KeepRule) else None,
            delay_seconds=options.get("delay_seconds"),
        )
        server.action("create", request.encode())
    if known is not None and has_diff and (keep is not None or find(server, name).is_changelog):
        return with_diff(known)
    return known


def _without_diff(schema: Any) -> Any:
    return pa.schema([field for field in schema if field.name != DIFF_COLUMN])
