"""The action ``hold``: keeps the versions of a dataset from one on readable while its lease lasts."""

from __future__ import annotations

from dataclasses import dataclass

from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .stream_requests import MAX_VERSION, check_attempt
from .strict_json import Fields, dump_json, parse_json

HOLD = "hold"
MAX_OWNER_CHARACTERS = 300
MAX_HOLD_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True)
class HoldRequest:
    """Body of the action.

    Args:
        hold: its name, the holder's choice. A repeated call renews the lease.
        version: what it holds. None: what the hold of this name holds, or the newest version for a new one. A hold
            moves forward only.
        release: end it.
        releases: the name of another hold, which is released in the same step.
        owner: who holds, for people: at most 300 printable characters. Without one it stays as it is.
    """

    dataset: str
    hold: str
    generation: str | None = None
    version: int | None = None
    lease_seconds: float = 60.0
    release: bool = False
    releases: str | None = None
    owner: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> HoldRequest:
        fields = Fields(parse_json(data, HOLD), HOLD)
        request = cls(
            check_dataset_name(fields.required("dataset")),
            check_attempt(fields.required("hold"), HOLD),
            fields.text("generation"),
            fields.integer("version", 0, MAX_VERSION),
            fields.number("lease_seconds", 0.1, MAX_HOLD_SECONDS) or 60.0,
            fields.flag("release"),
            None if (other := fields.any("releases")) is None else check_attempt(other, "hold: 'releases'"),
            fields.text("owner"),
        )
        fields.end()
        if request.release and request.version is not None:
            raise InvalidRequest("hold: a 'release' names no 'version'")
        if request.owner is not None and not (
            0 < len(request.owner) <= MAX_OWNER_CHARACTERS and request.owner.isprintable()
        ):
            raise InvalidRequest(
                f"hold: 'owner' must be 1 to {MAX_OWNER_CHARACTERS} printable characters, not "
                f"{request.owner[:MAX_OWNER_CHARACTERS]!r}"
            )
        return request

    def encode(self) -> bytes:
        body = {
            "dataset": self.dataset,
            "hold": self.hold,
            "generation": self.generation,
            "version": self.version,
            "lease_seconds": self.lease_seconds,
            "release": self.release or None,
            "releases": self.releases,
            "owner": self.owner,
        }
        return dump_json({key: value for key, value in body.items() if value is not None})
