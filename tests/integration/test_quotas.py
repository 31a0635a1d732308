"""The quotas of a token file, on both lanes of a running server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import QuotaExceeded
from spark_client import ShuffleClient
from spark_client.connection import Reading, Writing
from tests.support.server_process import ServerProcess

TABLE = pa.table({"n": np.arange(1 << 16)})  # 512 KiB


def principal(name: str, quotas: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f'[principals.{name}]\ntokens = ["sha256:{digest}"]\nread = ["{name}/"]\nwrite = ["{name}/"]\n{quotas}\n'


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    file = tmp_path / "tokens.toml"
    quotas = 'quotas = { bytes = "1MiB", datasets = 2, streams = 4 }'
    file.write_text(principal("etl", quotas) + principal("others", ""))
    with ServerProcess.start(token_file=file, memory_limit="64MiB") as running:
        yield running
    assert running.events("internal_error") == []


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_a_principal_at_its_quota_is_refused_and_no_other(
    process: ServerProcess, lane: Literal["grpc", "bulk"]
) -> None:
    given = {"reading": Reading(lane), "writing": Writing(lane)}
    with (
        ShuffleClient(process.location, token="etl", **given) as etl,  # type: ignore[arg-type]
        ShuffleClient(process.location, token="others", **given) as others,  # type: ignore[arg-type]
    ):
        etl.put("etl/a", TABLE)
        with pytest.raises(QuotaExceeded, match="principal 'etl' has"):
            etl.put("etl/b", pa.concat_tables([TABLE] * 4))
        for number in range(4):
            others.put(f"others/n{number}", TABLE)
        assert etl.get("etl/a").read_all() == TABLE
        found = etl.statistics()["quotas"]
        assert TABLE.nbytes <= found["bytes"]["used"] < 2 * TABLE.nbytes
        assert found["bytes"]["limit"] == 1 << 20
        assert found["datasets"] == {"used": 2, "limit": 2}, "the one that was refused has failed"
        assert found["streams"] == {"used": 0, "limit": 4}
        assert "quotas" not in others.statistics()
        etl.drop("etl/a")
        etl.put("etl/a", TABLE)
