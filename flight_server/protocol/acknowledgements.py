"""How a reader says which frames it has, for datasets whose retention counts readers (``datasets.places``).

The server answers such a read with the header ``x-flight-shuffle-acknowledge: frames``. A reader that its ticket
names then sends the action ``acknowledge`` now and then and at the end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .stream_requests import MAX_PARTITIONS, check_attempt
from .strict_json import Fields, dump_json, parse_json

ACKNOWLEDGE_HEADER: Final = "x-flight-shuffle-acknowledge"
ACKNOWLEDGE: Final = "acknowledge"


@dataclass(frozen=True)
class AcknowledgeRequest:
    """Body of the action: ``reader`` has the frames that it last asked for, up to before number ``frames``."""

    dataset: str
    generation: str
    partition: int
    reader: str
    frames: int

    @classmethod
    def parse(cls, data: bytes) -> AcknowledgeRequest:
        fields = Fields(parse_json(data, ACKNOWLEDGE), ACKNOWLEDGE)
        name, generation = check_dataset_name(fields.required("dataset")), fields.text("generation")
        partition, frames = (
            fields.integer("partition", 0, MAX_PARTITIONS - 1),
            fields.integer("frames", 0, 2**53),
        )
        reader = check_attempt(fields.required("reader"), "reader")
        fields.end()
        if generation is None or partition is None or frames is None:
            raise InvalidRequest(f"{ACKNOWLEDGE} needs 'generation', 'partition' and 'frames'")
        return cls(name, generation, partition, reader, frames)

    def encode(self) -> bytes:
        return dump_json(asdict(self))
