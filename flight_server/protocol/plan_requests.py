"""The action ``plan``: which frames to read together, so that many readers share one dataset's partitions."""

from __future__ import annotations

from dataclasses import dataclass

from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .stream_requests import MAX_PARTITIONS
from .strict_json import Fields, dump_json, parse_json

PLAN = "plan"


@dataclass(frozen=True)
class PlanRequest:
    """Body of the action.

    Args:
        target_bytes: about how many stored bytes a piece is to have.
        partitions: those to cut; None for all.
    """

    dataset: str
    target_bytes: int
    generation: str | None = None
    partitions: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, data: bytes) -> PlanRequest:
        fields = Fields(parse_json(data, PLAN), PLAN)
        dataset = check_dataset_name(fields.required("dataset"))
        target_bytes = fields.integer("target_bytes", 1, 2**53)
        generation, given = fields.text("generation"), fields.any("partitions")
        fields.end()
        if target_bytes is None:
            raise InvalidRequest("plan: 'target_bytes' is missing")
        if given is None:
            return cls(dataset, target_bytes, generation)
        # A bool is an int, too.
        if (
            not isinstance(given, list)
            or len(given) > MAX_PARTITIONS
            or set(map(type, given)) - {int}
            or not 0 <= min(given, default=0) <= max(given, default=0) < MAX_PARTITIONS
            or len(set(given)) != len(given)
        ):
            raise InvalidRequest(
                f"plan: 'partitions' is a list of numbers from 0 to {MAX_PARTITIONS - 1}, each once, not "
                f"{str(given[:20] if isinstance(given, list) else given)[:40]}"
            )
        return cls(dataset, target_bytes, generation, tuple(given))

    def encode(self) -> bytes:
        body = {
            "dataset": self.dataset,
            "target_bytes": self.target_bytes,
            "generation": self.generation,
            "partitions": None if self.partitions is None else list(self.partitions),
        }
        return dump_json({key: value for key, value in body.items() if value is not None})
