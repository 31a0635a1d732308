"""What the watched servers of a test run have written of the steps of their event loops; see ``watched_server``.

Guarantee: each step above the limit is found once, by the test in which it was made, or by a later one of the same
process if the server had not written it yet. The longest step of the whole run is known to the process that began it,
also when pytest-xdist's workers ran the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .watched_server import DIRECTORY

SLACK = 2.0
"""CPU time grows when both threads of a core, or its caches, are shared with other tests: by half and more."""
FAILING_SECONDS = 0.05 * SLACK

_RECEIVING = "receive (receiving.py"

longest: dict[str, Any] = {"seconds": 0.0}
_found: dict[Path, int] = {}
_stamps: dict[str, tuple[int, int]] = {}


def begin() -> None:
    """Have servers watched that are started from now on."""
    os.environ[DIRECTORY] = tempfile.mkdtemp(prefix="loop-steps-")


def end() -> None:
    """Remove what the servers have written."""
    directory = os.environ.pop(DIRECTORY, None)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def long_steps(test: str) -> list[str]:
    """The steps that took too long, since the last call."""
    found = []
    for path in _changed(os.environ[DIRECTORY]):
        written = json.loads(path.read_text())
        compare({**written["longest"], "test": test})
        new = written["listed"][_found.get(path, 0) :]
        _found[path] = len(written["listed"])
        found += [described(each) for each in new if each["seconds"] > FAILING_SECONDS]
    return found


def _changed(directory: str) -> list[Path]:
    """The files that a server has written since the last call: a run has hundreds of servers, and most have ended."""
    changed = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                written = entry.stat()
                stamp = written.st_mtime_ns, written.st_ino
                if _stamps.get(entry.path) != stamp:
                    _stamps[entry.path] = stamp
                    changed.append(Path(entry.path))
    return changed


def compare(step: dict[str, Any]) -> None:
    """Keep the longest step of all."""
    if step["seconds"] > longest["seconds"]:
        longest.clear()
        longest.update(step)


def described(step: dict[str, Any]) -> str:
    where = f", in {step['stack']}" if step["stack"] else ""
    return f"{step['seconds'] * 1000:.0f} ms of CPU time in {step['step']}{where}"


def may_be_grpcs(step: str) -> bool:
    """Whether a step, as described, may be gRPC's copy of a large message into one object.

    The copy holds Python's global lock, so the watcher sees the step only behind it, or never.
    """
    return _RECEIVING in step or ", in " not in step
