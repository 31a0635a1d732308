"""The files of the page at ``/``, without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources

import pytest

from tests.support.bulk import RawGet, get
from tests.support.server_process import ServerProcess

FILES = resources.files("flight_server.lanes.http") / "page"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(token="secret") as running:
        yield running


def test_the_page_needs_nothing_from_elsewhere_and_nothing_inline(server: ServerProcess) -> None:
    home = get(f"{server.http}/")
    linked = re.findall(rb"""(?:src|href)="([^"]*)""", home.body)
    imported = [each.name for each in FILES.iterdir() if each.name.endswith(".js")]
    paths = {*(each.decode() for each in linked), *(f"page/{name}" for name in imported)}
    assert not re.search(rb"<style|<script>|style=|[ ]on[a-z]+=", home.body)
    types = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for path in ["", *paths]:
        answer = get(f"{server.http}/{path}")
        kind = types.get(path.rpartition(".")[2], "text/html")
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert not re.search(rb"@import|url\(|https?://(?!www.w3.org/2000/svg)", answer.body)


def test_a_file_of_the_page_is_sent_again_only_when_it_has_changed(server: ServerProcess) -> None:
    first = get(f"{server.http}/page/dashboard.css")
    assert first.headers["cache-control"] == "no-cache"
    with RawGet(
        f"{server.http}/page/dashboard.css", headers={"If-None-Match": first.headers["etag"]}
    ) as again:
        answer = again.answer()
    assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", first.headers["etag"])


@pytest.mark.parametrize("path", ["none.js", "", "..%2Flistener.py", "dashboard.html", "%2e%2e/dashboard.py"])
def test_no_other_file_is_served(server: ServerProcess, path: str) -> None:
    with RawGet(f"{server.http}/page/{path}", headers={"Authorization": "Bearer secret"}) as raw:
        assert raw.answer().status == 404
