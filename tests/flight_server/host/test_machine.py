"""The memory and the cores that a process may use, from groups laid out as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flight_server.host.machine import cores, memory_bytes

MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MIB = 1 << 20


def group(root: Path, path: str, name: str, limit: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    (root / path / name).write_text(limit + "\n")


def own(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "own"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("groups", "lines", "expected"),
    [
        ({}, [], MACHINE_BYTES),
        ({"memory.max": "max"}, ["0::/"], MACHINE_BYTES),
        ({"memory.max": f"{64 * MIB}"}, ["0::/"], 64 * MIB),
        (
            {
                "system.slice/memory.max": f"{32 * MIB}",
                "system.slice/flight.service/memory.max": f"{48 * MIB}",
            },
            ["0::/system.slice/flight.service"],
            32 * MIB,
        ),
        ({"memory.max": f"{64 * MIB}"}, ["0::/kubepods/pod1/container2"], 64 * MIB),
        (
            {"memory/job/memory.limit_in_bytes": f"{16 * MIB}"},
            ["11:cpu,cpuacct:/job", "5:memory:/job", "0::/"],
            16 * MIB,
        ),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, ["5:memory:/"], MACHINE_BYTES),
    ],
    ids=[
        "no groups",
        "no limit",
        "at the root",
        "on the way up",
        "unseen",
        "version 1",
        "unlimited of version 1",
    ],
)
def test_memory_is_the_smallest_limit_of_the_groups_or_the_machines(
    tmp_path: Path, groups: dict[str, str], lines: list[str], expected: int
) -> None:
    for path, limit in groups.items():
        group(tmp_path, *path.rpartition("/")[::2], limit)
    assert memory_bytes(tmp_path, own(tmp_path, *lines) if lines else tmp_path / "neither") == expected


def test_the_cores_are_those_of_the_affinity_or_of_a_quota_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    file = own(tmp_path, "0::/job")
    assert cores(tmp_path / "none", file) == 16
    group(tmp_path, "job", "cpu.max", "max 100000")
    assert cores(tmp_path, file) == 16
    group(tmp_path, "", "cpu.max", "850000 100000")
    assert cores(tmp_path, file) == 8
    group(tmp_path, "job", "cpu.max", "50000 100000")
    assert cores(tmp_path, file) == 1


def test_a_quota_of_the_first_version_of_cgroups_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    file = own(tmp_path, "3:cpu,cpuacct:/job")
    group(tmp_path / "cpu", "job", "cpu.cfs_period_us", "100000")
    group(tmp_path / "cpu", "job", "cpu.cfs_quota_us", "-1")
    assert cores(tmp_path, file) == 16
    group(tmp_path / "cpu", "job", "cpu.cfs_quota_us", "400000")
    assert cores(tmp_path, file) == 4
