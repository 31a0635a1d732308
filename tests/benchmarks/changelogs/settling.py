"""When a changelog has nothing more to compact."""

from __future__ import annotations

import time

from spark_client import Changelog

POLL_SECONDS = 0.1
QUIET_LOOKS = 10
DEADLINE_SECONDS = 900.0


def settled(changelog: Changelog) -> tuple[float, int]:
    """Wait until nothing is merged, and no row has gone, for ``QUIET_LOOKS``; when that began, on the clock of
    ``time.perf_counter``, and the rows that the server then has.

    Raises:
        RuntimeError: it goes on.
    """
    before, since, looks = -1, time.perf_counter(), 0
    deadline = time.monotonic() + DEADLINE_SECONDS
    while looks < QUIET_LOOKS:
        said = changelog.statistics()
        if said["merging"] or said["rows"] != before:
            before, since, looks = said["rows"], time.perf_counter(), 0
        else:
            looks += 1
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {DEADLINE_SECONDS} s the changelog is still compacted: {said}")
        time.sleep(POLL_SECONDS)
    return since, before
