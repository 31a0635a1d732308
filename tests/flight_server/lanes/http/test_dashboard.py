"""What the page at ``/`` shows of a server, in a real browser."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.flight_server.test_supervisor import children
from tests.support import changelogs
from tests.support.browser import Browser
from tests.support.bulk import RawGet, get
from tests.support.dashboard_page import STATE, dataset, open_dataset, rows, show, text
from tests.support.durable import action, put, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, everything, rows_of, spread

Start = Callable[..., ServerProcess]


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
        for account in ("frames", "sends", "arrivals"):
            assert account in text(page, "pools")
        assert re.search(r"Memory.*of 64.0 MiB.*Disk.*Written.*Read.*Waiting.*Datasets", text(page, "tiles"))
        (shown,) = [row for row in rows(page, "waits") if row[-1] == waiting.peer]
        assert (shown[0], shown[3:5]) == ("for a producer's next frame", ["shown/awaited", "0"])
        assert shown[2] == "1 min"
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
    assert page.evaluate(STATE) == "healthy"
    assert page.complaints == []


def test_a_page_that_has_just_been_opened_shows_the_last_minutes(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    def written() -> list[int]:
        sampled: list[int] = get(f"{server.http}/v1/history").json()["bytes_in"]
        return sampled

    eventually(lambda: len(written()) > 0, True)  # a rate is between two samples
    before = written()[-1]
    put(client, table(1000), dataset="charted")
    eventually(lambda: written()[-1] > before, True)
    show(page, server)
    line = "document.querySelectorAll('#traffic polyline.line.in').length"
    eventually(lambda: page.evaluate(line), 1)
    label = "document.querySelector('#traffic svg').getAttribute('aria-label')"
    assert re.match(r"Throughput, last .*: written .*B/s, at most [1-9].*B/s; read ", page.evaluate(label))
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
            lambda: next((row[1:7] for row in rows(page, "changelogs") if row[0] == "shown/rates"), []),
            [
                "top_k 3 by kind",
                "3600 s",
                "0",
                str(version),
                str(30 * version),
                str(version),
            ],
        )
        (shown,) = [row[7:] for row in rows(page, "changelogs") if row[0] == "shown/rates"]
        assert shown[0].endswith("B")
        assert shown[2:] == [str(30 * version), "1", "0", "0", "delay"]
        changelogs.put(client, "shown/rates", table(30).cast(schema))
    assert dataset(page, "shown/rates")[0] == "changelog", "the server has no data directory"
    assert page.complaints == []


def test_the_page_shows_who_holds_versions_and_ends_a_hold(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    name, lease_seconds = "held/rates", 2 * 86_400 + 5 * 3600 + 60
    changelogs.create(client, name, table(1).schema, delay_seconds=0)
    changelogs.put(client, name, table(1))
    action(client, "hold", dataset=name, hold="mine", lease_seconds=lease_seconds, owner="query 7 of ann")
    changelogs.put(client, name, table(1))
    show(page, server)
    press = f"[...document.querySelectorAll('#holds tr')].find(row => row.textContent.startsWith('{name}query 7'))"
    eventually(lambda: page.evaluate(f"!!{press}"), True)
    page.evaluate(f"{press}.querySelector('button').focus()")
    action(client, "hold", dataset=name, hold="other")

    def held() -> list[list[str]]:
        return [[*row[1:4], row[5]] for row in rows(page, "holds") if row[0] == name]

    eventually(
        lambda: [each[:3] for each in held()],
        [["query 7 of ann", "mine", "1"], ["unknown", "other", "2"]],
    )
    assert held()[0][3] == "2 d 5 h"
    assert page.evaluate("document.activeElement.textContent") == "release", "it keeps the focus"
    # The compactor may be busy with the first version for a moment.
    eventually(
        lambda: [row[-1] for row in rows(page, "changelogs") if row[0] == name],
        ["hold 'mine' of query 7 of ann, at version 1"],
    )
    page.evaluate("window.confirm = (text) => { window.asked = text; return true; }")
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
    eventually(lambda: [row[-2] for row in rows(page, "servers")], ["0", "1", "0"])
    assert all(re.fullmatch(r"[0-9a-f]{16}", row[1]) for row in rows(page, "servers"))
    assert rows(page, "servers")[1][2] == "serving"
    assert re.fullmatch(r"[0-9.]+ KiB of 64.0 MiB", rows(page, "servers")[1][5])
    assert all(re.fullmatch(r"[0-9.]+ (Ki)?B/s", row[3]) for row in rows(page, "servers"))
    links = "[...document.querySelectorAll('#servers a')].map(link => link.getAttribute('href'))"
    assert page.evaluate(links)[0] == supervisor.http

    others = {*children(supervisor.pid)[::2]}

    def second_is_gone() -> bool:
        (row,) = [each for each in rows(page, "servers") if each[0] == second]
        if row[2] == "serving":  # the supervisor starts it again, each time after a longer pause
            for pid in set(children(supervisor.pid)) - others:
                with suppress(ProcessLookupError):  # killed before the page knew
                    os.kill(pid, signal.SIGKILL)
        return row[2] == "gone: it has ended, and is to be started again"

    eventually(second_is_gone, True)
    assert [row[2] for row in rows(page, "servers")][::2] == ["serving", "serving"]
    assert page.evaluate(STATE) == "in trouble"
    assert f"server {second} is gone" in text(page, "problems")
    assert page.complaints == []


@pytest.mark.long
def test_the_page_of_one_server_shows_no_others_but_which_part_of_a_spread_dataset_it_has(
    page: Browser, server: ServerProcess
) -> None:
    with ServerProcess.start() as other:
        spread("spread", [server, other])
    show(page, server)
    eventually(lambda: dataset(page, "spread")[-2:], ["0", "this and 1 more"])
    here = sum(len(rows_of(0, partition)) for partition in range(PARTITIONS))
    assert dataset(page, "spread")[3] == f"{here} of {len(everything(2))}"
    assert page.evaluate("document.getElementById('servers-part').hidden") is True


def test_the_page_says_that_a_put_has_failed_that_the_server_is_gone_and_that_it_is_back(
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
    eventually(lambda: dataset(page, "broken")[:2], ["stream", "failed"])
    assert page.evaluate(STATE) == "needs attention"
    assert "dataset broken has failed: dataset 'broken' producer 0 attempt 1" in text(page, "problems")
    assert "the commit says 11 rows in 1 frames, but 10 rows" in text(page, "problems")
    open_dataset(page, "broken")
    eventually(lambda: text(page, "rows-note") != "asking …", True)
    assert text(page, "failure").endswith("write it again")
    assert [row[0] for row in rows(page, "columns")] == ["number", "text", "kind"]
    assert text(page, "moment").startswith("1 dataset · ")
    assert page.complaints == []
    port = urlsplit(server.http).port
    assert server.terminate() == 0
    eventually(lambda: page.evaluate(STATE), "no answer")
    assert "what is shown is from" in text(page, "moment")
    assert dataset(page, "broken")[:2] == ["stream", "failed"]
    flight_server_process(http_port=port)
    eventually(lambda: page.evaluate(STATE), "healthy")
    assert dataset(page, "broken") == []


def test_the_page_asks_for_the_token_and_shows_nothing_without_it(
    page: Browser, flight_server_process: Start
) -> None:
    server = flight_server_process(token="secret")
    show(page, server)
    eventually(lambda: page.evaluate(STATE), "log in")
    give = "document.getElementById('token').value = '{}', document.getElementById('login').requestSubmit()"
    page.evaluate(give.format("wrong"))
    eventually(lambda: text(page, "refused"), "This is no token of this server.")
    assert page.evaluate("document.getElementById('main').hidden") is True
    page.evaluate(give.format("secret"))
    eventually(lambda: page.evaluate(STATE), "healthy")
    assert page.evaluate("document.getElementById('login').hidden") is True
    assert text(page, "datasets").endswith("There are no datasets.")
    kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    assert "secret" not in page.evaluate(kept)
    assert page.evaluate("document.cookie") == ""
    show(page, server)  # a page that is opened again needs no token
    eventually(lambda: page.evaluate(STATE), "healthy")
    assert page.complaints == []
    page.evaluate("document.getElementById('logout').click()")
    eventually(lambda: page.evaluate(STATE), "log in")
    assert page.evaluate("document.getElementById('main').hidden") is True


def test_the_page_shows_staged_writes_and_that_the_server_drains(
    page: Browser, flight_server_process: Start
) -> None:
    server = flight_server_process(drain_grace_seconds=600)
    with flight.connect(server.location) as client:
        schema = base64.b64encode(table(1).schema.serialize().to_pybytes()).decode()
        staged = {"kind": "shuffle", "schema": schema, "mode": "append", "write": "w", "lease_seconds": 600}
        action(client, "create", dataset="staged", **staged)
        action(client, "create", dataset="awaited")
    with RawGet(f"{server.http}/v1/datasets/awaited/partitions/0"):
        show(page, server)
        eventually(lambda: [row[0] for row in rows(page, "staged")], ["staged"])
        assert [row[2] for row in rows(page, "staged")] == ["append"]
        server.signal(signal.SIGTERM)
        eventually(lambda: page.evaluate(STATE), "draining")
        assert "takes no new streams" in text(page, "problems")
    assert page.complaints == []
    assert server.wait() == 0
