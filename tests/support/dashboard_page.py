"""The dashboard in a browser: opens it, and reads what it shows."""

from __future__ import annotations

from tests.support.browser import Browser
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
    """The texts of a table without its head."""
    lines = f"[...document.querySelectorAll('#{name} tbody tr')]"
    shown: list[list[str]] = page.evaluate(
        f"{lines}.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return shown


def text(page: Browser, name: str) -> str:
    """All text of an element."""
    return str(page.evaluate(f"document.getElementById('{name}').textContent"))


def dataset(page: Browser, name: str) -> list[str]:
    """What the page shows of a dataset, without its lease; empty while it shows nothing."""
    return next((row[1:-1] for row in rows(page, "datasets") if row[0] == name), [])
