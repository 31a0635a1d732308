"""The server's reports: in pages, and without stopping the streams."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.access import OPERATIONS, Principal
from flight_server.concurrency.slices import AT_ONCE
from flight_server.datasets import Caller
from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog.store import CHANGELOGS_AT_ONCE
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Kind
from flight_server.protocol.errors import InvalidRequest
from flight_server.records import Quarantined
from flight_server.reporting import flight_infos, reports
from flight_server.reporting.metrics import Metrics
from flight_server.reporting.reports import MAX_PAGE, DatasetOrder, ListedPage, Page
from tests.support.callers import anyone
from tests.support.nodes import running_node

PARTITIONS = 5 * AT_ONCE


@asynccontextmanager
async def core_with_partitions(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as node:
        dataset, _ = node.catalogue.create(CreateRequest("d", Kind.SHUFFLE, partitions=PARTITIONS), None)
        for index in range(PARTITIONS):
            dataset.partition(index)
        yield node


def statistics(node: Node, page: ListedPage) -> Awaitable[dict[str, Any]]:
    return reports.statistics(node.observed, page, anyone(node.catalogue, "action statistics"))


async def turns_of_others(work: Awaitable[Any]) -> int:
    """How often another task had its turn before the work ended."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await work
    task.cancel()
    await asyncio.wait([task])
    return turns


@pytest.mark.parametrize(
    "answer",
    [
        lambda node: statistics(node, ListedPage()),
        lambda node: statistics(node, ListedPage("d")),
        lambda node: reports.datasets("", Page(), anyone(node.catalogue, "GET /v1/datasets")),
        lambda node: flight_infos.flight_info(node.locations, node.catalogue.find("d")),
        lambda node: flight_infos.poll_info(node.locations, node.catalogue.find("d")),
    ],
    ids=["statistics", "statistics of one", "datasets", "flight_info", "poll_info"],
)
async def test_other_tasks_have_their_turns_while_a_long_answer_is_made(
    tmp_path: Path, answer: Callable[[Node], Awaitable[Any]]
) -> None:
    async with core_with_partitions(tmp_path) as node:
        assert await turns_of_others(answer(node)) >= PARTITIONS // AT_ONCE


async def test_other_tasks_have_their_turns_while_changelogs_are_added_up(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64())])
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    async with running_node(tmp_path) as node:  # which has what it keeps of changelogs as long as it lives
        for number in range(60):
            request = CreateRequest(f"log-{number}", Kind.CHANGELOG, schema=text)
            await node.changelogs.create(request, SchemaMessage.of(schema))
        assert await turns_of_others(Metrics(node.observed).render()) >= 60 // CHANGELOGS_AT_ONCE
        assert await turns_of_others(statistics(node, ListedPage())) >= 1
        await asyncio.to_thread(node.changelogs.close)


async def test_the_pages_of_a_dataset_are_its_partitions_each_once(tmp_path: Path) -> None:
    async with core_with_partitions(tmp_path) as node:
        seen: list[str] = []
        first = 0
        while True:
            answer = await statistics(node, ListedPage("d", first, 700))
            seen += answer["datasets"]["d"]["partitions"]
            first = answer["first"] + answer["limit"]
            if first >= answer["count"]:
                break
        assert seen == [str(index) for index in range(PARTITIONS)]
        assert answer["count"] == answer["datasets"]["d"]["partition_count"] == PARTITIONS


async def test_an_answer_has_no_more_than_a_page_by_default(tmp_path: Path) -> None:
    async with core_with_partitions(tmp_path) as node:
        for number in range(MAX_PAGE + 2):
            node.catalogue.create(CreateRequest(f"other-{number:05}"), None)
        answer = await statistics(node, ListedPage())
        assert (len(answer["datasets"]), answer["count"]) == (MAX_PAGE, MAX_PAGE + 3)
        assert "partitions" not in answer["datasets"]["d"]
        assert answer["datasets"]["d"]["partition_states"] == {"open": PARTITIONS}
        last = await statistics(node, ListedPage(first=MAX_PAGE, limit=10))
        assert list(last["datasets"]) == [
            f"other-{number:05}" for number in range(MAX_PAGE - 1, MAX_PAGE + 2)
        ]
        listed = await reports.datasets(
            "other-", Page(first=1, limit=1), anyone(node.catalogue, "GET /v1/datasets")
        )
        assert [each["dataset"] for each in listed["datasets"]] == ["other-00001"]
        assert listed["count"] == MAX_PAGE + 2
        one = await statistics(node, ListedPage("d"))
        assert len(one["datasets"]["d"]["partitions"]) == MAX_PAGE


async def test_the_attempts_of_a_dataset_are_summed_up_and_come_in_pages(node: Node) -> None:
    dataset, _ = node.catalogue.create(CreateRequest("s", Kind.SHUFFLE), None)
    for producer in range(5):
        dataset.begin_attempt(producer, "a")
    summary = (await statistics(node, ListedPage()))["datasets"]["s"]
    assert summary["attempt_states"] == {"writing": 5}
    answer = await statistics(node, ListedPage("s", first=1, limit=2))
    assert [each["producer"] for each in answer["datasets"]["s"]["attempts"]] == [1, 2]


async def test_waits_come_in_pages_longest_first(node: Node) -> None:
    with node.waits.enter("producer", dataset="a"), node.waits.enter("disk", dataset="b"):
        answer = await reports.why(
            node.observed, Page(first=1, limit=1), anyone(node.catalogue, "action why")
        )
        assert [each["waiting_for"] for each in answer["waits"]] == ["disk"]
        assert answer["count"] == 2
        assert (await reports.why(node.observed, Page("a"), anyone(node.catalogue, "action why")))[
            "count"
        ] == 1


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        *(
            (Page.of, body)
            for body in (
                *({"limit": MAX_PAGE + 1}, {"limit": 0}, {"first": -1}),
                *({"first": "1"}, {"dataset": 3}, {"last": 1}),
            )
        ),
        *(
            (Page.of_query, query)
            for query in ({"first": "²"}, {"limit": "-1"}, {"limit": "1001"}, {"first": "1" * 16})
        ),
        (ListedPage.of, {"contains": 7}),
    ],
)
def test_a_page_that_cannot_be_is_refused(parse: Callable[..., object], body: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        parse(body, "statistics")
    with pytest.raises(InvalidRequest, match="'order' is one of name, attention"):
        ListedPage.of({"order": "size"}, "statistics")
    assert ListedPage.of_query({"contains": "7", "limit": "7"}, "statistics").contains == "7"


async def test_datasets_are_listed_by_name_or_by_what_needs_attention_and_those_of_a_text(
    node: Node,
) -> None:
    for name in ("a", "b-failed", "c", "d-awaited", "e-f"):
        dataset, _ = node.catalogue.create(CreateRequest(name), None)
        if name == "b-failed":
            dataset.partition(0).fail(InvalidRequest("a reason"))
    with node.waits.enter("producer", dataset="d-awaited"):
        listed_by_order = {
            order: list((await statistics(node, ListedPage(order=order)))["datasets"])
            for order in DatasetOrder
        }
        page = ListedPage(first=1, limit=2, order=DatasetOrder.ATTENTION, contains="-")
        part = await statistics(node, page)
    assert listed_by_order[DatasetOrder.NAME] == ["a", "b-failed", "c", "d-awaited", "e-f"]
    assert listed_by_order[DatasetOrder.ATTENTION] == ["b-failed", "d-awaited", "a", "c", "e-f"]
    assert (part["count"], list(part["datasets"])) == (3, ["d-awaited", "e-f"])


async def test_why_names_what_is_in_the_quarantine_as_far_as_the_caller_sees_it(node: Node) -> None:
    quarantine = node.catalogue.disk.quarantine
    for name in ("mine/d", "theirs/d"):
        quarantine.note(Quarantined.now(name, "g", "a flipped bit", ["file"]))

    async def named(caller: Caller, dataset: str | None = None) -> list[str]:
        answer = await reports.why(node.observed, Page(dataset), caller)
        return [entry["dataset"] for entry in answer["quarantine"]]

    everyone = anyone(node.catalogue, "action why")
    assert await named(everyone) == ["mine/d", "theirs/d"]
    assert await named(everyone, "theirs/d") == ["theirs/d"]
    principal = Principal("one", read=("mine/",))
    one = Caller(node.catalogue, principal, OPERATIONS["action why"])
    assert await named(one) == ["mine/d"]
    assert await named(one, "theirs/d") == []
    await quarantine.drop("mine/d")
    assert await named(one) == []
