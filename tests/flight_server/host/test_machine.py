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


def test_without_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "none", tmp_path / "neither") == MACHINE_BYTES


def test_no_limit_is_the_machines(tmp_path: Path) -> None:
    group(tmp_path, "", "memory.max", "max")
    assert memory_bytes(tmp_path, own(tmp_path, "0::/")) == MACHINE_BYTES


def test_a_container_has_its_limit_at_the_root(tmp_path: Path) -> None:
    group(tmp_path, "", "memory.max", str(64 * MIB))
    assert memory_bytes(tmp_path, own(tmp_path, "0::/")) == 64 * MIB


def test_a_service_has_the_smallest_limit_on_the_way_up(tmp_path: Path) -> None:
    group(tmp_path, "system.slice", "memory.max", str(32 * MIB))
    group(tmp_path, "system.slice/flight.service", "memory.max", str(48 * MIB))
    assert memory_bytes(tmp_path, own(tmp_path, "0::/system.slice/flight.service")) == 32 * MIB


def test_a_group_that_cannot_be_seen_from_inside_is_passed_over(tmp_path: Path) -> None:
    group(tmp_path, "", "memory.max", str(64 * MIB))
    assert memory_bytes(tmp_path, own(tmp_path, "0::/kubepods/pod1/container2")) == 64 * MIB


def test_the_first_version_of_cgroups_counts_too(tmp_path: Path) -> None:
    group(tmp_path / "memory", "job", "memory.limit_in_bytes", str(16 * MIB))
    lines = ("11:cpu,cpuacct:/job", "5:memory:/job", "0::/")
    assert memory_bytes(tmp_path, own(tmp_path, *lines)) == 16 * MIB


def test_the_unlimited_number_of_the_first_version_is_no_limit(tmp_path: Path) -> None:
    group(tmp_path / "memory", "", "memory.limit_in_bytes", "9223372036854771712")
    assert memory_bytes(tmp_path, own(tmp_path, "5:memory:/")) == MACHINE_BYTES


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
