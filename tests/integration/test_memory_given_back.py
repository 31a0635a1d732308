"""The system gets memory back that the pool no longer holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

MIB = 1 << 20
SIZE_BYTES = 256 * MIB


@pytest.mark.long
def test_a_server_whose_datasets_were_dropped_becomes_small_again() -> None:
    batch = pa.record_batch({"n": np.arange(MIB // 8)})
    with ServerProcess.start(memory_limit="1GiB") as server, ShuffleClient(server.location) as client:
        before_bytes = server.rss_bytes()
        client.put("large", (batch for _ in range(SIZE_BYTES // batch.nbytes)))
        assert server.rss_bytes() > before_bytes + SIZE_BYTES, "it is held in memory, and can be seen there"
        client.drop("large")
        # Once what was freed has been kept for a while, for data that did not come.
        eventually(lambda: server.rss_bytes() < before_bytes + SIZE_BYTES // 4, True)
