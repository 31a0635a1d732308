"""The memory and the cores that this process may use.

A container sees its limits at the root of the cgroup file system, a service in its own group or one above. So the
limits are read from the process's group up to the root, in both versions of cgroups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def memory_bytes(cgroups: Path = _CGROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """The machine's memory, or less if one of the process's cgroups has a lower limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for directory, version in _groups("memory", cgroups, own_groups):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        total = min([total, *_numbers(directory / name)[:1]])
    return total


def cores(cgroups: Path = _CGROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """The cores of the process's affinity, or fewer whole ones if a cgroup has a lower quota; at least one."""
    count: float = len(os.sched_getaffinity(0))
    for directory, version in _groups("cpu", cgroups, own_groups):
        if version == 2:
            limits = _numbers(directory / "cpu.max")
        else:
            limits = [
                *_numbers(directory / "cpu.cfs_quota_us"),
                *_numbers(directory / "cpu.cfs_period_us"),
            ]
        if len(limits) == 2:
            count = min(count, limits[0] / limits[1])
    return max(1, int(count))


def _groups(controller: str, cgroups: Path, own_groups: Path) -> Iterator[tuple[Path, int]]:
    """The directories of the process's groups with this controller, and the version of cgroups of each."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        lines = []
    for line in ["0::/", f":{controller}:/", *lines]:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            root, version = cgroups, 2
        elif controller in controllers.split(","):
            root, version = cgroups / controller, 1
        else:
            continue
        place = root / group.strip("/")
        for directory in (place, *place.parents):
            yield directory, version
            if directory == root:
                break


def _numbers(path: Path) -> list[int]:
    """The positive numbers in the file; none if the first one is not such a number, which is no limit."""
    try:
        texts = path.read_text().split()
    except OSError:
        return []
    return [int(text) for text in texts] if all(text.isdecimal() and int(text) > 0 for text in texts) else []
