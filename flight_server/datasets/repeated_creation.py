"""Repeated creation: whether a ``create`` asks for a dataset like the existing one."""

from __future__ import annotations

from flight_server.frames import SchemaMessage
from flight_server.protocol import AlreadyExists, CreateRequest

from .dataset import Dataset

_COMPARED = ("kind", "partitions", "producers", "retention", "durable", "keep", "delay_seconds")


def check_same(known: Dataset, request: CreateRequest, schema: SchemaMessage | None) -> None:
    """Raise AlreadyExists if one of ``_COMPARED`` differs, InvalidRequest if the schema does."""
    mine = known.request()
    differing = [what for what in _COMPARED if getattr(mine, what) != getattr(request, what)]
    known.check_schema(schema)
    if differing:
        raise AlreadyExists(
            f"dataset {known.name!r} exists with another {', '.join(differing)}; drop it first, or choose another name",
            dataset=known.name,
        )
