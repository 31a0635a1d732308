"""AttachedChangelog: the attachment of a dataset that has a changelog."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Changes
from flight_server.datasets import Append, Attachment, Dataset, Sees, Transactions
from flight_server.protocol import (
    DIFF_COLUMN,
    Conflict,
    CreateRequest,
    FlightShuffleError,
    InvalidRequest,
    KeepRule,
)

from .changelog import Changelog


class AttachedChangelog(Attachment):
    """``append``: see :meth:`VersionAppends.append`; None for a store without a server."""

    by_name = True

    def __init__(self, changelog: Changelog, append: Append | None) -> None:
        self.changelog = changelog
        self.append = append

    def check_append(self, schema: pa.Schema, *, deletes: bool) -> None:
        self.changelog.check_producer(schema, deletes=deletes)

    def close(self, why: str) -> None:
        self.changelog.close(why)

    def declared(self, request: CreateRequest) -> CreateRequest:
        """It is always on disk, so a request does not say so."""
        state = self.changelog.declared
        keep = None if state.keep is None else KeepRule.parse(state.keep)
        return replace(request, durable=False, keep=keep, delay_seconds=state.delay_seconds)

    def check_overwrite(self, dataset: Dataset, *, staged: bool = False, meanwhile: bool = False) -> None:
        if meanwhile:
            why = "became a changelog meanwhile, which is not overwritten"
        elif staged:
            why = (
                "is a changelog, which is not overwritten: drop it, or append its rows once more with -1 in column "
                f"{DIFF_COLUMN!r}, which retracts them, or delete their keys"
            )
        else:
            why = (
                "is a changelog, which is not overwritten: put its new rows and delete or retract the old ones, or "
                "drop it first"
            )
        raise Conflict(f"dataset {dataset.name!r} {why}", dataset=dataset.name)

    def not_sealed(self, dataset: Dataset) -> FlightShuffleError:
        return InvalidRequest(
            f"dataset {dataset.name!r} is a changelog, which is never sealed and is not cut into pieces: read a "
            "version of it, by the ticket of get_flight_info",
            dataset=dataset.name,
        )

    def transactions(self, dataset: Dataset) -> Transactions:
        return self.changelog.transactions

    def look(self, dataset: Dataset) -> tuple[int, Changes]:
        return self.changelog.upper, self.changelog.changes

    def facts(self) -> dict[str, Any]:
        return {"since": self.changelog.since, "upper": self.changelog.upper}

    def statistics(self, sees: Sees) -> dict[str, Any]:
        said = self.changelog.statistics()
        keep = said["keep"]
        if keep is not None and keep.get("emit") is not None and not sees(keep["emit"]):
            said["keep"] = {name: value for name, value in keep.items() if name != "emit"}
            if "not_emitting" in said:
                said["not_emitting"] = (
                    "what it emits to takes nothing; this principal does not see that dataset"
                )
        return {"changelog": said}

    def stored(self) -> tuple[int, int, int]:
        return self.changelog.rows, self.changelog.memory_bytes, self.changelog.disk_bytes
