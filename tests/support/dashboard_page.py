"""The dashboard in a browser: opens it, and reads what it shows."""

from __future__ import annotations

from tests.support.browser import Browser
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

STATE = "document.getElementById('state').textContent"


def show(page: Browser, server: ServerProcess, width: int = 1280, before: str = "") -> None:
    """Open the server's page. It asks again by its own clock, which runs ten times as fast here."""
    assert server.http is not None
    page.open(
        server.http,
        width=width,
        before="{ const real = setTimeout; window.setTimeout = (f, ms) => real(f, ms / 10); } " + before,
    )


def rows(page: Browser, name: str) -> list[list[str]]:
    """The texts of a table without its head, and without the buttons that fold its rows."""
    lines = f"[...document.querySelectorAll('#{name} tbody tr')]"
    cells = "[...row.cells].filter(cell => cell.className !== 'fold')"
    shown: list[list[str]] = page.evaluate(f"{lines}.map(row => {cells}.map(cell => cell.textContent))")
    return shown


def text(page: Browser, name: str) -> str:
    """All text of an element."""
    return str(page.evaluate(f"document.getElementById('{name}').textContent"))


def open_dataset(page: Browser, name: str) -> None:
    """Search for it, and click on its name."""
    search = f"filter.value = {name!r}; filter.dispatchEvent(new Event('input'))"
    page.evaluate("{ const filter = document.getElementById('filter'); " + search + " }")
    button = f"[...document.querySelectorAll('#datasets .opens')].find(each => each.textContent === {name!r})"
    eventually(lambda: page.evaluate(f"!!{button}"), True)
    page.evaluate(f"{button}.click()")


def dataset(page: Browser, name: str) -> list[str]:
    """What the page shows of a dataset, without its lease; empty while it shows nothing."""
    return next((row[1:-1] for row in rows(page, "datasets") if row[0] == name), [])
