"""Whether a server's limits fit its machine, and its version this one's, from what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spark_client import __version__
from spark_client.arrow import readable_size

from .findings import Finding, bad, ok, warn

PROCESS_BYTES = 512 << 20
"""What a server's process needs beside its memory limit."""
FEW_FILES = 4096


def limits(statistics: Mapping[str, Any]) -> Iterator[Finding]:
    """Of the server's answer ``statistics``; nothing where it does not show its machine to this token."""
    servers = statistics.get("servers") or []
    host = servers[0].get("host") if servers else None
    if host is None:
        return
    memory_bytes = sum(each.get("memory_limit_bytes") or 0 for each in servers)
    there = host["memory_bytes"]
    text = f"--memory-limit is {readable_size(memory_bytes)}, and its container or machine has {readable_size(there)}"
    fits = f"--memory-limit {max(1, (there - PROCESS_BYTES) >> 20)}MiB or less, or give the container more memory"
    if memory_bytes > there:
        yield bad("memory limit", f"{text}: the kernel will end the server", fits)
    elif memory_bytes + PROCESS_BYTES > there:
        yield warn("memory limit", f"{text}: too little is left for the process itself", fits)
    else:
        yield ok("memory limit", text)
    disk, free = statistics["disk"], host["disk_free_bytes"]
    limit = disk["limit_bytes"]
    text = f"--disk-limit is {'none' if limit is None else readable_size(limit)}"
    text += (
        ""
        if free is None
        else f", {readable_size(disk['used_bytes'])} are used and {readable_size(free)} are free"
    )
    if disk.get("trouble"):
        yield bad("disk", f"it fails: {disk['trouble']}", "make room, or repair the volume of --data-dir")
    elif free is not None and limit is not None and limit > disk["used_bytes"] + free:
        yield warn(
            "disk", text, "lower --disk-limit, or enlarge the volume: it will be full before the limit is"
        )
    else:
        yield ok("disk", text)
    kept = (
        "outlives the server"
        if host["lasting"]
        else "is temporary: nothing outlives the server without --data-dir"
    )
    yield ok("data directory", kept)
    files = host["open_files_limit"]
    if 0 <= files < FEW_FILES:
        yield warn(
            "open files", f"the server may open {files:,}", "ulimit -n 65536, or LimitNOFILE= in its unit"
        )
    else:
        yield ok("open files", f"the server may open {'any number' if files < 0 else f'{files:,}'}")
    if statistics.get("draining"):
        yield warn("state", "the server drains: it takes no new datasets, and ends", "name another server")
    if statistics.get("quarantine"):
        yield warn(
            "state",
            f"{len(statistics['quarantine'])} datasets are in quarantine, because their files are damaged",
            "see 'quarantine' of the statistics, and the operator's page",
        )
    yield _versions(host["versions"])


def _versions(there: Mapping[str, str | None]) -> Finding:
    text = ", ".join(
        f"{name.replace('_', '-')} {number}" for name, number in there.items() if number is not None
    )
    if there.get("flight_shuffle") not in (None, __version__):
        return warn(
            "versions there",
            f"{text}; here flight-shuffle {__version__}",
            "install one version on both sides",
        )
    return ok("versions there", text)
