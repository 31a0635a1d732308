"""A server's versions, and the limits of its machine and process: in ``statistics``, for ``flight-shuffle doctor``."""

from __future__ import annotations

import platform
import resource
import shutil
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flight_server.host import machine

_PACKAGES = {"flight_shuffle": "flight-shuffle", "pyarrow": "pyarrow", "grpcio": "grpcio"}


def host_facts(data_dir: Path | None, *, lasting: bool) -> dict[str, Any]:
    """Blocking: asks the file system of the data directory for its free bytes, which are None if it does not say them.

    Args:
        lasting: whether the data directory outlives the process.
    """
    return {
        "versions": _versions(),
        "memory_bytes": machine.memory_bytes(),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "disk_free_bytes": _free_bytes(data_dir),
        "lasting": lasting,
    }


@cache
def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:  # a copy of the sources
            found[name] = None
    return found


def _free_bytes(data_dir: Path | None) -> int | None:
    try:
        return None if data_dir is None else shutil.disk_usage(data_dir).free
    except OSError:
        return None
