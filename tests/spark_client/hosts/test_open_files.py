"""Things made of a host's files: one for each key, as long as its file has its name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_client.hosts import HostFile, OpenFiles, open_files
from tests.support.forked_child import in_child
from tests.support.polling import eventually


@pytest.fixture
def things() -> Iterator[OpenFiles[str]]:
    found: OpenFiles[str] = OpenFiles("a test's")
    yield found
    found.close()


def opened(path: Path) -> HostFile:
    path.touch()
    return HostFile(path, os.open(path, os.O_RDONLY))


def is_closed(file: HostFile) -> bool:
    return file._descriptor == -1


def test_a_forked_child_forgets_what_it_has_used_of_its_parents_things(
    things: OpenFiles[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(open_files, "_POLL_SECONDS", 0.01)
    file = opened(tmp_path / "a")
    users = [threading.Lock()]
    things.get("a", lambda: file, lambda _: "thing", users[0])

    def child() -> None:
        assert things.get("a", lambda: None, str) == "thing"
        users.clear()
        eventually(lambda: is_closed(file), expected=True, deadline_seconds=10)

    in_child(child)
    assert not is_closed(file)
