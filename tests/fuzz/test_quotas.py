"""Quotas against a model of what each principal has."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, Refused, command, commit, put_messages
from tests.support.server_process import ServerProcess

from .principals import token_file

QUOTA_BYTES, QUOTA_DATASETS, QUOTA_STREAMS = 64 << 10, 3, 2
OVERHEAD_BYTES = 4096
"""More than a message has beside its values."""
STEPS = 20


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(int(request.config.getoption("--fuzz-seed")))  # to be repeated


@pytest.fixture
def until(request: pytest.FixtureRequest) -> float:
    return time.monotonic() + float(request.config.getoption("--fuzz-seconds") or 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    grants = {name: {"read": [f"{name}/"], "write": [f"{name}/"]} for name in ("few", "free")}
    quotas = f"{{ bytes = {QUOTA_BYTES}, datasets = {QUOTA_DATASETS}, streams = {QUOTA_STREAMS} }}"
    token_file(file := tmp_path / "tokens.toml", grants, {"few": quotas})
    with ServerProcess.start(token_file=file, memory_limit="64MiB", data_dir=tmp_path / "data") as server:
        yield server
    assert server.events("internal_error") == []


def messages(body: dict[str, Any], sizes: list[int], *, wrong: bool = False) -> list[bytes]:
    """A put of an attempt with messages of so many bytes. ``wrong``: it commits rows that it has not sent."""
    batches = [pa.record_batch({"n": pa.array(range(size // 8), pa.int64())}) for size in sizes]
    rows = sum(each.num_rows for each in batches) + wrong
    return [*put_messages(command(body), batches), commit(rows, len(batches))]


def used(raw: RawFlight) -> dict[str, int]:
    return {name: each["used"] for name, each in raw.action("statistics")["quotas"].items()}


@pytest.mark.timeout(0)
def test_a_principal_has_what_its_puts_left_and_never_more_than_its_quota(
    server: ServerProcess, chance: random.Random, until: float
) -> None:
    has: dict[str, int] = {}  # the bytes of values of each dataset
    names = [f"few/n{number}" for number in range(QUOTA_DATASETS + 1)]
    done = 0
    with RawFlight(server.location, token="few") as few, RawFlight(server.location, token="free") as free:
        while done < STEPS or time.monotonic() < until:
            done += 1
            name = chance.choice(names)
            what = chance.choice(["put", "put", "put", "replace", "wrong", "cancel", "drop"])
            if what == "drop":
                if name in has:
                    few.action("drop", {"dataset": name})
                    del has[name]
            else:
                sizes = [chance.choice([8, 4096, 20_000, 30_000, QUOTA_BYTES - OVERHEAD_BYTES, QUOTA_BYTES])]
                sizes += [8] * chance.randrange(3)
                mode = {"mode": "overwrite"} if what == "replace" else {}
                body = {"dataset": name, "producer": 0, "attempt": str(done), **mode}
                sent = messages(body, sizes, wrong=what == "wrong")
                if what == "cancel":
                    cancelled(few, sent, chance.choice([0.001, 0.003, 0.01, 0.05]))
                    forget(few, has, name, replacing=False)
                else:
                    refused = put(few, sent)
                    before = sum(has.values())
                    fits = before + len(has) * OVERHEAD_BYTES + sum(sizes) + OVERHEAD_BYTES <= QUOTA_BYTES
                    free_name = name in has or len(has) < QUOTA_DATASETS
                    if what == "put" and name not in has and fits and free_name:
                        assert refused is None, (refused, has, sizes)
                    if before + sum(sizes) > QUOTA_BYTES or not free_name:
                        assert refused is not None, (has, sizes)
                    if refused is None:
                        has[name] = sum(sizes)
                    elif what != "replace" or name not in has:
                        forget(few, has, name, replacing=name in has)
            put_by_others = messages({"dataset": "free/x", "mode": "overwrite"}, [QUOTA_BYTES])
            free.put(put_by_others[:-1])
            eventually(lambda: used(few)["streams"], 0)
            eventually(lambda: used(few)["datasets"], len(has))
            assert sum(has.values()) <= used(few)["bytes"] <= QUOTA_BYTES
            assert used(few)["bytes"] <= sum(has.values()) + len(has) * 2 * OVERHEAD_BYTES
        for name in list(has):
            few.action("drop", {"dataset": name})
        eventually(lambda: used(few), {"bytes": 0, "datasets": 0, "streams": 0})


def put(raw: RawFlight, sent: list[bytes]) -> str | None:
    """None, or why it was refused."""
    try:
        raw.put(sent)
    except Refused as refused:
        return str(refused)
    return None


def cancelled(raw: RawFlight, sent: list[bytes], seconds: float) -> None:
    call = raw.call("DoPut", iter(sent), deadline_seconds=seconds)
    with suppress(grpc.RpcError):
        list(call)


def forget(raw: RawFlight, has: dict[str, int], name: str, *, replacing: bool) -> None:
    """A put that failed may leave a failed dataset, which has the name and no bytes; one that came too late, all."""
    if replacing:
        return  # it was refused for the name that is there
    eventually(lambda: used(raw)["streams"], 0)
    if name in has:
        return
    with suppress(Refused):  # it may have left no dataset
        raw.action("drop", {"dataset": name})
