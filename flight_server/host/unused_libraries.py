"""Keeps numpy, which nothing uses, out of the server's process. Imported for its effect.

pyarrow imports numpy when it finds it, which takes 11 MiB of resident memory. A module that is None in ``sys.modules``
counts as not installed. Only the command line imports this, before pyarrow; other processes are not changed.
"""

from __future__ import annotations

import sys

NOT_NEEDED = ("numpy",)

for _name in NOT_NEEDED:
    if _name not in sys.modules:
        sys.modules[_name] = None  # type: ignore[assignment]  # typeshed knows only modules there; None is documented
