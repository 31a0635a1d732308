"""The browser that the tests of the page share; they are skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, NoBrowserError


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        started = Browser(tmp_path_factory.mktemp("browser") / "profile")
    except NoBrowserError as reason:
        pytest.skip(str(reason))
    with started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    yield browser
    browser.leave()
