"""Creating sources, and what happens when they are damaged, change or go: a clear word, never a mixture."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.access import Principal
from flight_server.access.principals import Quotas
from flight_server.frames import SchemaMessage
from flight_server.protocol import CreateRequest, Kind
from flight_server.protocol.errors import (
    AlreadyExists,
    Forbidden,
    InvalidRequest,
    NotFound,
    PartitionFailed,
    SourceUnavailable,
)
from tests.support.background_tasks import idle
from tests.support.file_sources import TABLE, WRITERS, Served
from tests.support.nodes import read_messages, read_table

every_format = pytest.mark.parametrize("written", list(WRITERS))


# Damage and change


@every_format
async def test_what_is_not_of_the_format_is_refused_at_create_and_named(served: Served, written: str) -> None:
    (served.root / "bad").write_bytes(b'"\xff\xfe\x00garbage' * 100)
    with pytest.raises(InvalidRequest, match="/bad cannot be read"):
        await served.create(written)


@pytest.mark.parametrize("written", ["parquet", "ipc"])
async def test_damage_in_the_middle_of_a_file_fails_its_partition_only(served: Served, written: str) -> None:
    random = np.random.default_rng(1)
    path = served.write(written, pa.table({"text": [random.bytes(50).hex() for _ in range(20_000)]}), "a")
    served.write(written, TABLE.select(["text"]), "b")
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)
    dataset = await served.create(written)
    with pytest.raises(PartitionFailed, match="/a is damaged"):
        await read_table(served.node, dataset, 0)
    assert (await read_table(served.node, dataset, 1)).num_rows == 5


async def test_an_ipc_file_that_was_cut_off_is_refused_and_so_is_a_stream(served: Served) -> None:
    path = served.write("ipc", TABLE, "a")
    whole = path.read_bytes()
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE)
    for content in (path.read_bytes(), whole[:-8], b""):
        path.write_bytes(content)
        with pytest.raises(InvalidRequest, match="/a cannot be read: it is no Arrow IPC file"):
            await served.create("ipc")


@every_format
async def test_a_file_that_was_written_again_is_a_new_generation_never_a_mixture(
    served: Served, written: str
) -> None:
    path = served.write(written, TABLE.select(["n"]), "a")
    old = await served.create(written)
    served.write(written, TABLE.select(["n"]).slice(3), "a")
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceUnavailable, match=r"written again.*new generation"):
        await read_table(served.node, old)
    await idle(served.node.background)
    new = served.node.catalogue.find("d")
    assert new.generation != old.generation
    assert (await read_table(served.node, new)).to_pylist() == [{"n": 4}, {"n": 5}]


async def test_a_new_generation_has_the_owner_of_the_old_one_and_not_the_reader_that_found_the_change(
    served: Served,
) -> None:
    path = served.write("parquet", TABLE.select(["n"]), "a")
    usages, quotas = served.node.catalogue.usages, Quotas(datasets=1)
    owner, reader = Principal("owner", quotas=quotas), Principal("reader", quotas=quotas)
    with usages.calls_of(reader):
        served.node.catalogue.create(CreateRequest("own"), None)
    with usages.calls_of(owner):
        old = await served.create("parquet")
    served.write("parquet", TABLE.select(["n"]).slice(3), "a")
    os.utime(path, ns=(1, 1))
    with usages.calls_of(reader), pytest.raises(SourceUnavailable, match="new generation"):
        await read_table(served.node, old)
    await idle(served.node.background)
    new = served.node.catalogue.find("d")
    assert new is not old
    assert new.owner is usages.of(owner)
    assert [each.name for each in usages.of(reader).datasets()] == ["own"]
    assert not served.node.background.failures


async def test_a_file_that_grows_while_it_is_pulled_fails_the_pull(served: Served) -> None:
    path = served.write("ipc", pa.table({"n": range(3_000_000)}), "a")
    dataset = await served.create("ipc")
    await read_messages(served.node, dataset, at_most=1)
    with path.open("ab") as file:
        file.write(b"2")
    with pytest.raises(SourceUnavailable, match="written again"):
        await read_table(served.node, dataset)


async def test_a_file_that_is_gone_is_an_error_and_the_rest_a_new_generation(served: Served) -> None:
    gone = served.write("parquet", TABLE, "a")
    served.write("parquet", TABLE, "b")
    old = await served.create("parquet")
    gone.unlink()
    assert (await read_table(served.node, old, 1)).equals(TABLE)
    with pytest.raises(SourceUnavailable, match="a is gone"):
        await read_table(served.node, old, 0)
    await idle(served.node.background)
    assert served.node.catalogue.find("d").partition_count == 1


async def test_when_the_last_file_is_gone_the_dataset_stays_and_says_so_at_each_read(served: Served) -> None:
    path = served.write("parquet", TABLE, "a")
    dataset = await served.create("parquet")
    path.unlink()
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="a is gone"):
            await read_table(served.node, dataset)
        await idle(served.node.background)
    assert served.node.catalogue.find("d") is dataset
    served.write("parquet", TABLE, "a")
    with pytest.raises(SourceUnavailable):  # back, but not the file that it was
        await read_table(served.node, dataset)
    await idle(served.node.background)
    assert (await read_table(served.node, served.node.catalogue.find("d"))).equals(TABLE)


# Creating


async def test_creating_the_same_again_is_fine_and_anything_else_is_refused(served: Served) -> None:
    served.write("parquet", TABLE, "a")
    dataset = await served.create("parquet", columns=["n"])
    assert await served.create("parquet", columns=["n"]) is dataset
    with pytest.raises(AlreadyExists, match="created otherwise"):
        await served.create("parquet")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"format": "orc", "path": "."}, "'format' is one of parquet, ipc"),
        ({"path": "."}, "'format' is missing"),
        ({"format": "ipc"}, "'path' is missing"),
        ({"format": "ipc", "path": ".", "columns": []}, "'columns' must be a list"),
        ({"format": "ipc", "path": ".", "columns": [1]}, "'columns' must be a list"),
        ({"format": "ipc", "path": ".", "columns": ["n", "n"]}, "names something twice"),
        ({"format": "ipc", "path": ".", "colums": ["n"]}, "unknown key 'colums'"),
        ({"format": "ipc", "path": "empty"}, "no file below"),
    ],
)
async def test_a_source_that_is_not_one_is_refused(
    served: Served, source: dict[str, Any], message: str
) -> None:
    (served.root / "empty").mkdir()
    with pytest.raises(InvalidRequest, match=message):
        await served.node.kinds[Kind.SOURCE].create(CreateRequest("d", Kind.SOURCE, source=source), None)
    with pytest.raises(NotFound):
        served.node.catalogue.find("d")


async def test_what_a_source_is_never_is_refused(served: Served) -> None:
    served.write("ipc", TABLE, "a")
    request = CreateRequest("d", Kind.SOURCE, source={"format": "ipc", "path": "."})
    sources = served.node.kinds[Kind.SOURCE]
    with pytest.raises(InvalidRequest, match="not 'durable'"):
        await sources.create(replace(request, durable=True), None)
    with pytest.raises(InvalidRequest, match="leave 'schema' out"):
        await sources.create(request, SchemaMessage.of(TABLE.schema))
    with pytest.raises(InvalidRequest, match="1 partitions, not 3"):
        await sources.create(replace(request, partitions=3), None)
    with pytest.raises(Forbidden, match="is a URL"):
        await served.create("ipc", "s3://bucket/key")
