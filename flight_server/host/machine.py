"""The memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def memory_bytes(cgroups: Path = _CGROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """The machine's memory, or less if one of the process's cgroups has a lower limit.

    A container sees its limit at the root of the cgroup file system, a service in its own group or one above. So the
    limits are read from the process's group up to the root, in both versions of cgroups.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        lines = []
    for line in ["0::/", ":memory:/", *lines]:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = root / group.strip("/")
        for directory in (place, *place.parents):
            total = min(total, _limit_bytes(directory / name) or total)
            if directory == root:
                break
    return total


def _limit_bytes(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) > 0 else None
