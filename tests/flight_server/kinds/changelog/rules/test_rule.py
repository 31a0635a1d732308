"""What making a rule loads."""

from __future__ import annotations

import subprocess
import sys

from tests.support.rooms import ROOT


def test_a_server_without_changelogs_does_not_load_arrows_kernels() -> None:
    code = "import sys, flight_server.kinds.changelog.rules; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.split()
    assert "flight_server.kinds.changelog.rules.rule" in loaded
    assert "pyarrow.compute" not in loaded
