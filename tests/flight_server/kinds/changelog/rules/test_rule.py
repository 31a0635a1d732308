"""What making a rule loads."""

from __future__ import annotations

import subprocess
import sys

from tests.support.rooms import ROOT

SCRIPT = """
import sys
import pyarrow as pa
from flight_server.kinds.changelog.rules import make_rule
print("pyarrow.compute" in sys.modules)
make_rule(None, pa.schema([("a", pa.int8())]))
print("pyarrow.compute" in sys.modules)
"""


def test_arrows_kernels_are_loaded_with_the_first_changelog_and_not_by_its_first_put() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True"]
