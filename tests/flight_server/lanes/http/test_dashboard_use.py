"""The page at ``/`` with what a person does to it, and where they look at it: in a real browser."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.browser import Browser
from tests.support.dashboard_page import dataset, open_dataset, rows, show, text
from tests.support.durable import put, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

# The contrast of each of the page's texts with what is behind it, as WCAG computes it (4.5 is its level AA).
CONTRASTS = """(() => {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const probe = document.createElement("p");
    document.body.append(probe);
    probe.style.color = style.getPropertyValue(name);
    const found = getComputedStyle(probe).color.match(/[0-9.]+/g).map(Number);
    probe.remove();
    return found;
  };
  const light = (name) => {
    const [r, g, b] = colour(name).map((n) => n / 255 <= 0.03928 ? n / 3294.6 : ((n / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const pairs = [["--text", "--page"], ["--text", "--card"], ["--quiet", "--page"], ["--quiet", "--card"],
    ["--good", "--good-soft"], ["--warn", "--warn-soft"], ["--bad", "--bad-soft"], ["--bad", "--card"],
    ["--text", "--warn-soft"], ["--text", "--bad-soft"], ["--in", "--card"], ["--out", "--card"]];
  return {page: style.getPropertyValue("--page"), ratios: pairs.map((pair) => ratio(...pair))};
})()"""
HTML = """<img src=x onerror="window.owned = 1"><i>a name</i>"""


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
    assert page.evaluate("document.querySelectorAll('img, i').length") == 0
    assert page.evaluate("window.owned") is None
    assert page.complaints == []


def test_the_page_of_thousands_of_datasets_shows_those_that_matter_and_finds_the_others(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    for number in range(120):
        put(client, table(1), dataset=f"many/n{number:03}")
    put(client, table(5000), dataset="zz/large")
    show(page, server)
    eventually(lambda: [row[0] for row in rows(page, "datasets")][:1], ["zz/large"])
    assert len(rows(page, "datasets")) == 25
    assert re.search(r"and \d+ more", text(page, "datasets"))
    page.evaluate("document.getElementById('more').click()")
    eventually(lambda: len(rows(page, "datasets")) > 100, True)
    find = "filter.value = '{}'; filter.dispatchEvent(new Event('input'))"
    page.evaluate("{ const filter = document.getElementById('filter'); " + find.format("many/n01") + " }")
    eventually(lambda: sorted(row[0] for row in rows(page, "datasets")), [f"many/n01{n}" for n in range(10)])
    page.evaluate("{ const filter = document.getElementById('filter'); " + find.format("no such") + " }")
    eventually(lambda: text(page, "datasets").endswith("No name contains that."), True)
    assert page.complaints == []


@pytest.mark.long
def test_a_paused_page_asks_for_nothing(page: Browser, server: ServerProcess) -> None:
    show(page, server)
    eventually(lambda: page.evaluate("!document.getElementById('pause').hidden"), True)
    page.evaluate("document.getElementById('pause').click()")
    asked = "performance.getEntriesByType('resource').filter(each => each.name.includes('/v1/')).length"
    before = page.evaluate(f"new Promise(done => setTimeout(() => done({asked}), 5000))")
    after = page.evaluate(f"new Promise(done => setTimeout(() => done({asked}), 5000))")
    assert before == after
    page.evaluate("document.getElementById('pause').click()")
    eventually(lambda: page.evaluate(asked) > after, True)


def test_the_dark_has_its_own_colours_that_can_be_read(page: Browser, server: ServerProcess) -> None:
    show(page, server)
    seen = {}
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        found = page.evaluate(CONTRASTS)
        assert min(found["ratios"]) >= 4.5, (scheme, found)
        seen[scheme] = found["page"]
    assert seen["light"] != seen["dark"]


def test_a_principal_of_some_names_sees_the_parts_that_it_is_given(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, table(10), dataset="mine/some")
    whole = ["memory", "disk", "servers", "task_failures", "quarantine", "foreign_files", "bytes_in"]
    refusal = json.dumps({"message": "principal 'etl' may not do this"})
    given = {
        "principal": "etl",
        "quotas": {"bytes": 1 << 30, "datasets": {"limit": 10, "used": 9}, "streams": None},
    }
    show(
        page,
        server,
        before=f"""const real = window.fetch;
        window.fetch = async (path, ...rest) => {{
          if (path.includes("history")) return new Response("{{}}", {{status: 403}});
          if (path.includes("v1/rows")) return new Response({json.dumps(refusal)}, {{status: 403}});
          const found = await (await real(path, ...rest)).json();
          if (path.includes("statistics")) {{
            for (const each of {whole}) delete found[each];
            Object.assign(found, {json.dumps(given)});
          }}
          return new Response(JSON.stringify(found));
        }};""",
    )
    eventually(lambda: dataset(page, "mine/some")[:2], ["stream", "sealed"])
    assert text(page, "where") == "etl"
    hidden = "['charts', 'servers-part', 'pools-part', 'totals-part'].map(id => document.getElementById(id).hidden)"
    assert page.evaluate(hidden) == [True] * 4
    tiles = text(page, "tiles")
    assert "Quota: bytes1.0 GiBat most" in tiles
    assert "Quota: datasets9of 10 · 90 %" in tiles
    assert not re.search("Memory|Disk|Written|streams1", tiles)
    open_dataset(page, "mine/some")
    eventually(lambda: text(page, "rows-note"), "principal 'etl' may not do this")
    assert rows(page, "rows") == []
    assert page.complaints == []


def test_a_click_on_a_dataset_shows_its_columns_and_first_rows(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    nested = pa.array([{"a": [1, None]}] * 50)
    data = pa.table({HTML: [HTML] * 50, "long": ["x" * 1000] * 50, "nested": nested, "b": [b"\0"] * 50})
    put(client, data, dataset="clicked", chunk_rows=5)
    changelogs.create(client, "clicked/log", table(1).schema, delay_seconds=0)
    show(page, server)
    open_dataset(page, "clicked")
    eventually(lambda: len(rows(page, "rows")), 20)
    assert rows(page, "rows")[0] == [HTML, "x" * 99 + "…", "{a: [1, null]}", "1 bytes: 00"]
    assert rows(page, "columns")[:2] == [[HTML, "string", "allowed"], ["long", "string", "allowed"]]
    assert (text(page, "dataset-name"), text(page, "failure")) == ("clicked", "")
    assert text(page, "rows-note") == "The first 20 rows of partition 0."
    assert page.evaluate("document.querySelectorAll('img, i').length") == 0
    open_dataset(page, "clicked/log")
    eventually(lambda: text(page, "rows-note"), "no reader would get a row yet")
    assert rows(page, "columns")[0] == ["number", "int64", "allowed"]
    assert page.evaluate("document.getElementById('rows-part').hidden") is True
    page.evaluate("document.getElementById('close').click()")
    assert page.evaluate("document.getElementById('dataset-part').hidden") is True
    assert page.evaluate("document.activeElement.textContent") == "clicked/log"
    assert page.complaints == []


def test_a_phone_shows_folded_cards_and_no_page_that_scrolls_sideways(
    page: Browser, server: ServerProcess, client: flight.FlightClient
) -> None:
    name = "narrow/" + "n" * 193
    wide = pa.table({f"{n} " + "c" * 300: ["v" * 300] for n in range(60)})
    put(client, wide, dataset=name)
    changelogs.create(client, "narrow/log", table(1).schema, delay_seconds=0)
    show(page, server, width=390)
    eventually(lambda: dataset(page, name)[:2], ["stream", "sealed"])
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) <= 390
    row = f"[...document.querySelectorAll('#datasets tr')].find(row => row.textContent.startsWith({name!r}))"
    shown = f"[...{row}.cells].filter(cell => cell.offsetParent).map(cell => cell.dataset.title ?? 'fold')"
    assert page.evaluate(shown) == ["name", "state", "rows", "fold"]
    page.evaluate(f"{row}.querySelector('.fold button').click()")
    assert page.evaluate(shown) == [
        *("name", "kind", "state", "rows", "in RAM", "on disk", "readers", "lease", "fold")
    ]
    assert page.evaluate(f"{row}.querySelector('.fold button').getAttribute('aria-expanded')") == "true"
    assert page.evaluate(width) <= 390
    folded = "[...document.querySelectorAll('main > details:not([hidden], [open])')].map(each => each.id)"
    assert {"changelogs-part", "totals-part"} <= {*page.evaluate(folded)}
    page.evaluate("document.querySelector('#changelogs-part summary').click()")
    eventually(lambda: page.evaluate("!!document.querySelector('#changelogs td').offsetParent"), True)
    open_dataset(page, name)
    eventually(lambda: len(rows(page, "rows")), 1)
    page.evaluate("for (const each of document.querySelectorAll('.fold button, summary')) each.click()")
    assert page.evaluate(width) <= 390
    cut = """[...document.querySelectorAll('main td, main h2')]
      .filter(each => each.offsetParent && each.getBoundingClientRect().right > 390).length"""
    assert page.evaluate(cut) == 0
    assert page.complaints == []
