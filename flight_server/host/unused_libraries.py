"""Keeps out of the server's process what a library would load and nothing here uses. Imported for its effect.

pyarrow imports numpy when it finds it, which is 11 MiB of resident memory in every server. A module that is
None in ``sys.modules`` counts as not installed, and pyarrow is made to work without numpy. Only the command
line imports this, before anything that imports pyarrow; a process that uses the package as a library does not.
"""

from __future__ import annotations

import sys

NOT_NEEDED = ("numpy",)

for _name in NOT_NEEDED:
    if _name not in sys.modules:
        sys.modules[_name] = None  # type: ignore[assignment]  # typeshed knows only modules there; None is documented
