"""The tests of the state machine find each change of a cell of its tables."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import mutants


@pytest.mark.long
@pytest.mark.timeout(0)  # some minutes
def test_no_mutant_of_the_machine_survives() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", mutants.__name__], capture_output=True, text=True, check=True, cwd=mutants.ROOT
    )
    assert "find all but 0\n" in ran.stdout, ran.stdout
