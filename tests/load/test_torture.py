"""The torture: a server that is killed, loses its power or finds a broken disk again and again under random calls
loses, doubles and mixes no row, brings nothing back that is gone, and never stands still.

Some seconds in the suite; ``make torture SECONDS=3600`` for the long form, with a seed of its own that it prints.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.torture import Torture


@pytest.mark.load(seconds=15)
@pytest.mark.timeout(0)  # each of its waits has a deadline
@pytest.mark.parametrize("seconds", [10.0, pytest.param(120.0, marks=pytest.mark.long)])
def test_what_was_acknowledged_is_there_and_what_was_given_up_changes_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, seconds: float
) -> None:
    seconds = request.config.getoption("--torture-seconds") or seconds
    torture = Torture(tmp_path, seconds=seconds, seed=int(request.config.getoption("--torture-seed")))
    print(f"seed {torture.seed}", flush=True)
    torture.run()
    print(torture.summary())
    assert not torture.faults, "\n\n".join(torture.faults)
    assert sum(torture.kills.values()) > 0
    for what in ("put", "seal", "stage", "drop", "read", "commit", "read log"):
        assert torture.done[what] > 0, f"no {what} was answered"
