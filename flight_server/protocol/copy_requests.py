"""Which hosts have a file of a dataset: the action ``copies``, by which they tell the server, and a driver asks.

The server only notes what it is told (``datasets.host_copies``): the hosts' files are the clients' own.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .strict_json import Fields, dump_json, parse_json

COPIES: Final = "copies"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class CopyVerb(StrEnum):
    """What is told or asked.

    ======== ================================================= ====================================
    verb     meaning                                           answer
    ======== ================================================= ====================================
    keep     ``host`` has or will have ``file``                ``withdrawn``: files to remove there
    removed  ``host`` has no such file                         ``left``: hosts of the dataset that
                                                               still have a withdrawn file
    withdraw all hosts are to remove their files               ``hosts``: those that have one
    which    what hosts have                                   ``kept``, ``withdrawn``: hosts;
                                                               ``gone``: the dataset is not there
    ======== ================================================= ====================================
    """

    KEEP = "keep"
    REMOVED = "removed"
    WITHDRAW = "withdraw"
    WHICH = "which"


@dataclass(frozen=True)
class CopiesRequest:
    """Body of the action. ``host`` and ``file`` are needed by ``keep`` and ``removed``."""

    verb: CopyVerb
    dataset: str
    generation: str
    host: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> CopiesRequest:
        fields = Fields(parse_json(data, COPIES), COPIES)
        verb = fields.text("verb")
        if verb not in {known.value for known in CopyVerb}:
            raise InvalidRequest(f"{COPIES}: 'verb' is one of {', '.join(CopyVerb)}, not {verb!r}")
        dataset, generation = check_dataset_name(fields.required("dataset")), fields.text("generation")
        host, file = (_name(fields.text(key), key) for key in ("host", "file"))
        fields.end()
        if generation is None or ((host is None or file is None) and verb in ("keep", "removed")):
            raise InvalidRequest(f"{COPIES} needs 'generation', and to {verb} also 'host' and 'file'")
        return cls(CopyVerb(verb), dataset, generation, host, file)

    def encode(self) -> bytes:
        return dump_json({key: value for key, value in asdict(self).items() if value is not None})


def _name(text: str | None, what: str) -> str | None:
    if text is not None and not _NAME.fullmatch(text):
        raise InvalidRequest(f"{COPIES}: {what!r} is 1 to 128 of A-Z a-z 0-9 . _ -, not {text[:80]!r}")
    return text
