"""Tasks that wait for each other until no host has a withdrawn copy, but no longer than they were told."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from spark_client.broadcast import reaching


def test_a_clock_that_is_set_back_keeps_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time()
    readings = iter([began])
    monkeypatch.setattr(reaching, "left", lambda _: {"a host that is gone"})
    monkeypatch.setattr(reaching, "remove_withdrawn", lambda _: None)
    monkeypatch.setattr(time, "time", lambda: next(readings, began - 3600))
    content: Any = SimpleNamespace(key="none")

    def task() -> None:
        assert not [*reaching._remove_in_task(content, began + 0.2, 0.2, iter(()))]

    waiting = threading.Thread(target=task, daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive()
