"""Good messages, to be made bad, and what is asked after a refusal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from tests.support.held import message_bytes
from tests.support.raw_flight import RawFlight, Refused, ipc_messages

MAX_MESSAGE_BYTES = 2 << 20
BATCH = pa.record_batch({"n": np.arange(1000), "s": [f"row {n}" for n in range(1000)]})
WORDS = pa.record_batch({"w": pa.array(["a", "b", "a", None] * 10).dictionary_encode()})
SCHEMA, FRAME = ipc_messages(BATCH.schema, [BATCH])


def used_bytes(raw: RawFlight) -> int:
    """Of messages: what a put leaves of its dataset's name is something else."""
    return message_bytes(raw.action("statistics"))


def moving_bytes(raw: RawFlight) -> int:
    """Of messages that come or go."""
    accounts = raw.action("statistics")["memory"]["accounts"]
    return sum(int(account["used_bytes"]) for name, account in accounts.items() if name != "frames")


def refused(act: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        act()
    return caught.value
