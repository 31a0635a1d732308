"""The page at ``/`` in a real browser, which the tests of this module share; skipped where there is none."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.browser import Browser, NoBrowserError
from tests.support.bulk import RawGet, get
from tests.support.durable import action, put, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spread import spread

Start = Callable[..., ServerProcess]

STATE = "document.getElementById('state').textContent"
HTML = """<img src=x onerror="window.owned = 1"><b>a name</b>"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for the whole module: each test uses names of its own."""
    with ServerProcess.start(memory_limit="64MiB") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(server.location) as made:
        yield made


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        browser = Browser(tmp_path_factory.mktemp("browser") / "profile")
    except NoBrowserError as reason:
        pytest.skip(str(reason))
    with browser:
        yield browser


def show(page: Browser, server: ServerProcess, width: int = 1280) -> None:
    """Open the server's page. It asks again by its own clock, which runs ten times as fast here."""
    assert server.http is not None
    page.open(
        server.http,
        width=width,
        before="{ const real = setTimeout; window.setTimeout = (f, ms) => real(f, ms / 10); }",
    )


def rows(page: Browser, name: str) -> list[list[str]]:
    """The texts of a table without its head."""
    cells = f"[...document.querySelectorAll('#{name} tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    shown: list[list[str]] = page.evaluate(cells)
    return shown[1:]


def dataset(page: Browser, name: str) -> list[str]:
    """What the page shows of a dataset, without its lease; empty while it shows nothing."""
    return next((row[1:-1] for row in rows(page, "datasets") if row[0] == name), [])


def children(pid: int) -> list[int]:
    """The processes that it has started, oldest first."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()))


def test_the_page_needs_nothing_from_elsewhere(server: ServerProcess) -> None:
    answer = get(f"{server.http}/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(rb"""(src|href|action)\s*=|@import|url\(|https?://""", answer.body)


def test_the_page_shows_datasets_readers_and_waits_and_keeps_up_with_them(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, table(1000), dataset="shown/eur.usd")
    action(client, "create", dataset="shown/awaited")
    batch = table(10).to_batches()[0]
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("shown/filling"), batch.schema)
    with RawGet(f"{server.http}/v1/datasets/shown/awaited/partitions/0") as waiting:
        eventually(lambda: len(get(f"{server.http}/v1/why?dataset=shown/awaited").json()["waits"]), 1)
        show(page, server)
        eventually(lambda: dataset(page, "shown/eur.usd")[:4], ["stream", "sealed", "1", "1,000"])
        pools = page.evaluate("document.getElementById('pools').textContent")
        for account in ("memory", "frames", "sends", "arrivals", "disk"):
            assert account in pools
        assert "of 64.0 MiB" in pools
        assert any(row[0] == "producer" and row[-1] == waiting.peer for row in rows(page, "waits"))
        for written in (1, 2):
            writer.write_batch(batch)
            eventually(
                lambda: dataset(page, "shown/filling")[:4], ["stream", "1 open", "1", str(10 * written)]
            )
        with RawGet(f"{server.http}/v1/datasets/shown/filling/partitions/0") as reading:
            eventually(
                lambda: [row[:3] for row in rows(page, "readers")], [["shown/filling", "0", reading.peer]]
            )
            writer.close()
            eventually(lambda: dataset(page, "shown/filling")[:2], ["stream", "sealed"])
    assert page.evaluate(STATE).startswith("serving · ")
    assert page.complaints == []


def test_the_page_shows_what_a_changelog_keeps_and_how_far_it_is(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    keep = {"rule": "top_k", "key": ["kind"], "order_by": ["number"], "k": 3}
    schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("kind", pa.string())])
    changelogs.create(client, "shown/rates", schema, keep=keep, delay_seconds=3600)
    changelogs.put(client, "shown/rates", table(30).cast(schema))
    action(client, "hold", dataset="shown/rates", hold="mine")
    show(page, server)
    for version in (1, 2):
        eventually(
            lambda: next((row[1:8] for row in rows(page, "changelogs") if row[0] == "shown/rates"), []),
            [
                "top_k 3 by kind",
                "3600 s",
                "0",
                str(version),
                str(3 * version),
                str(30 * version),
                str(version),
            ],
        )
        (shown,) = [row[8:] for row in rows(page, "changelogs") if row[0] == "shown/rates"]
        assert shown[0].endswith("B")
        assert shown[2:] == [str(30 * (version - 1)), "1", "0", "0", "delay"]
        changelogs.put(client, "shown/rates", table(30).cast(schema))
    assert dataset(page, "shown/rates")[0] == "changelog"
    assert page.complaints == []


def test_the_page_shows_who_holds_versions_and_ends_a_hold(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    name, lease_seconds = "held/rates", 2 * 86_400 + 5 * 3600 + 60
    changelogs.create(client, name, table(1).schema, delay_seconds=0)
    changelogs.put(client, name, table(1))
    action(client, "hold", dataset=name, hold="mine", lease_seconds=lease_seconds, owner="query 7 of ann")
    changelogs.put(client, name, table(1))
    action(client, "hold", dataset=name, hold="other")
    show(page, server)

    def held() -> list[list[str]]:
        return [[*row[1:4], row[5]] for row in rows(page, "holds") if row[0] == name]

    eventually(
        lambda: [each[:3] for each in held()],
        [["query 7 of ann", "mine", "1"], ["unknown", "other", "2"]],
    )
    assert held()[0][3] == "2 d 5 h"
    waits = [row[-1] for row in rows(page, "changelogs") if row[0] == name]
    assert waits == ["hold 'mine' of query 7 of ann, at version 1"]
    page.evaluate("window.confirm = (text) => { window.asked = text; return true; }")
    press = "[...document.querySelectorAll('#holds tr')].find(row => row.cells[2].textContent == 'mine')"
    page.evaluate(f"{press}.querySelector('button').click()")
    eventually(lambda: [each[1] for each in held()], ["other"])
    assert "query 7 of ann" in page.evaluate("window.asked")
    assert page.complaints == []


def test_the_page_of_a_worker_shows_the_others_and_which_of_them_is_gone(
    page: Browser, flight_server_process: Start
) -> None:
    supervisor = flight_server_process(
        command=(sys.executable, "-m", "flight_server"), workers=3, memory_limit="192MiB"
    )
    first, second, third = supervisor.ready["locations"]
    with flight.connect(second) as client:
        put(client, table(10), dataset="of-the-second")
    show(page, supervisor)
    eventually(lambda: [row[0] for row in rows(page, "servers")], [first, second, third])
    eventually(lambda: [row[-1] for row in rows(page, "servers")], ["0", "1", "0"])
    assert all(re.fullmatch(r"[0-9a-f]{16}", row[1]) for row in rows(page, "servers"))
    assert rows(page, "servers")[1][2] == "serving"
    assert re.fullmatch(r"[0-9.]+ KiB of 64.0 MiB", rows(page, "servers")[1][3])
    links = "[...document.querySelectorAll('#servers a')].map(link => link.getAttribute('href'))"
    assert page.evaluate(links)[0] == supervisor.http

    others = {*children(supervisor.pid)[::2]}

    def second_is_gone() -> bool:
        (row,) = [each for each in rows(page, "servers") if each[0] == second]
        if row[2] == "serving":  # the supervisor starts it again, each time after a longer pause
            for pid in set(children(supervisor.pid)) - others:
                os.kill(pid, signal.SIGKILL)
        return row[2] == "gone: it has ended, and is to be started again"

    eventually(second_is_gone, True)
    assert [row[2] for row in rows(page, "servers")][::2] == ["serving", "serving"]
    assert page.complaints == []


def test_the_page_of_one_server_shows_no_others_but_that_a_dataset_is_spread(
    page: Browser, server: ServerProcess
) -> None:
    with ServerProcess.start() as other:
        spread("spread", [server, other])
    show(page, server)
    eventually(lambda: dataset(page, "spread")[-2:], ["0", "2"])
    eventually(lambda: page.evaluate(STATE).startswith("serving · "), True)
    assert page.evaluate("document.getElementById('fellows').hidden") is True


def test_the_page_says_that_a_put_has_failed_and_that_the_server_is_gone(
    page: Browser, flight_server_process: Start
) -> None:
    server = flight_server_process()
    command = {"dataset": "broken", "producer": 0, "attempt": "1"}
    with flight.connect(server.location) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_command(json.dumps(command)), table(10).schema)
        writer.write_table(table(10))
        writer.write_metadata(json.dumps({"commit": {"rows": 11, "frames": 1}}).encode())
        with pytest.raises(pa.ArrowInvalid, match="the commit says 11 rows"):
            writer.close()
    show(page, server)
    eventually(lambda: dataset(page, "broken")[:2], ["stream", "1 failed"])
    assert page.evaluate(STATE).startswith("serving · 1 dataset · ")
    assert page.complaints == []
    assert server.terminate() == 0
    eventually(lambda: page.evaluate(STATE).startswith("no answer: "), True)
    assert page.evaluate("document.getElementById('state').className") == "trouble"


def test_the_page_asks_for_the_token_and_shows_nothing_without_it(
    page: Browser, flight_server_process: Start
) -> None:
    server = flight_server_process(token="secret")
    show(page, server)
    eventually(lambda: page.evaluate(STATE), "this server wants a token")
    give = "document.getElementById('token').value = '{}', document.getElementById('login').requestSubmit()"
    page.evaluate(give.format("wrong"))
    eventually(lambda: page.evaluate(STATE), "this is not the server's token")
    assert page.evaluate("document.getElementById('main').hidden") is True
    page.evaluate(give.format("secret"))
    eventually(lambda: page.evaluate(STATE).startswith("serving · 0 datasets · "), True)
    assert page.evaluate("document.getElementById('login').hidden") is True
    assert rows(page, "datasets") == [["none"]]


def test_a_name_is_shown_as_text_whatever_is_in_it(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    """A server refuses such a name, so the answer is changed on its way to the page."""
    put(client, table(10), dataset="harmless")
    show(page, server)
    eventually(lambda: dataset(page, "harmless")[:2], ["stream", "sealed"])
    page.evaluate(
        f"""{{ const real = window.fetch, name = {json.dumps(json.dumps(HTML))};
        window.fetch = async (...asked) =>
          new Response((await (await real(...asked)).text()).replaceAll('"harmless"', () => name)); }}"""
    )
    eventually(lambda: dataset(page, HTML)[:2], ["stream", "sealed"])
    assert page.evaluate("document.querySelectorAll('img, b').length") == 0
    assert page.evaluate("window.owned") is None
    assert page.complaints == []


def test_a_narrow_window_shows_the_page_without_scrolling_it_sideways(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    name = "narrow/" + "n" * 193
    put(client, table(10), dataset=name)
    show(page, server, width=360)
    eventually(lambda: dataset(page, name)[:2], ["stream", "sealed"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
