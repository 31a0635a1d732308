"""The changelog that an append is for: made before the write if there is none, and the schema that its rows must have.

Guarantee: with the option ``changelog`` the name leads to a changelog of that keep rule, or the write is refused before
a row is sent. Its schema is that of the first DataFrame, without the column ``_diff``.

A DataFrame may have the column ``_diff``, of any integer type: how often its row is asserted, or below zero retracted.
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
from spark_client.connection import Server

from .batch_read import find
from .changelog_reads import with_diff
from .source_options import SourceOptions


def encoded(schema: Any) -> str:
    """The schema as ``create`` takes it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def check_changelog(options: SourceOptions, mode: WriteMode) -> None:
    """Raise InvalidRequest if the options do not go together, or with this mode."""
    if options.get("changelog") is None:
        if options.get("delay_seconds") is not None:
            raise InvalidRequest("option 'delay_seconds' goes with option 'changelog'")
    elif mode is not WriteMode.APPEND:
        raise InvalidRequest(
            "option 'changelog' goes with mode 'append' alone: a changelog is not overwritten; drop it before, or "
            "write its rows once more with -1 in column '_diff', which retracts them"
        )


def appended_schema(options: SourceOptions, server: Server, given: Any) -> Any:
    """The schema for an append of rows of the schema ``given``; None if there is no such dataset, nor is one made.

    Raises:
        AlreadyExists, InvalidRequest: the name leads to no changelog, or to one with another keep rule.
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
