"""Whether the Python and the Java that Spark would use can run this package's tasks."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spark_client import __version__

from .findings import Finding, bad, ok, warn

OLDEST_JAVA = 17
_SECONDS = 60.0
_NEEDED = ("pyarrow", "numpy", "google-crc32c")
_PROBE = """
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for name in %r:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
try:
    from spark_client.version import __version__
    found["flight-shuffle"] = __version__
except ImportError:
    pass
print(json.dumps(found))
"""


def python_of_tasks(named: str | None) -> Iterator[Finding]:
    """Check the interpreter that Spark starts for tasks on this host: the one that is named, else ``python3``."""
    check = "Spark's Python"
    if named is None and find_spec("pyspark") is None:
        yield ok(check, "this Python has no PySpark, and PYSPARK_PYTHON is not set: not checked")
        return
    name = named or "python3"
    here = f"export PYSPARK_PYTHON={sys.executable}, or that of another Python with the package"
    said = f"PYSPARK_PYTHON is {name}" if named else "PYSPARK_PYTHON is not set, so Spark takes python3"
    path = shutil.which(name)
    if path is None:
        yield bad(check, f"{said}, which is not there", here)
        return
    found = _asked(path)
    if found is None:
        yield bad(check, f"{said}, which does not run", here)
        return
    missing = [each for each in (*_NEEDED, "flight-shuffle") if each not in found]
    ours, theirs = platform.python_version_tuple()[:2], tuple(found["python"].split(".")[:2])
    if ours != theirs:
        yield bad(
            check,
            f"{said}: it is Python {found['python']}, and the driver's would be {platform.python_version()}",
            "let both be the same minor version: Spark refuses others",
        )
    elif missing == ["flight-shuffle"]:
        yield bad(
            check,
            f"{said}, which has no flight-shuffle",
            f"{path} -m pip install flight-shuffle; or ship the zip of 'flight-shuffle zip' by --py-files",
        )
    elif missing:
        yield bad(
            check, f"{said}, which has no {', '.join(missing)}", f"{path} -m pip install flight-shuffle"
        )
    elif found["flight-shuffle"] != __version__:
        yield bad(
            check,
            f"{said}: it has flight-shuffle {found['flight-shuffle']}, and the driver would have {__version__}",
            f"{path} -m pip install flight-shuffle=={__version__}",
        )
    elif found["pyarrow"] != version("pyarrow"):
        yield warn(
            check,
            f"{said}: it has pyarrow {found['pyarrow']}, and the driver would have {version('pyarrow')}",
            "install one version of pyarrow in both",
        )
    else:
        yield ok(
            check,
            f"{path}: {', '.join(f'{each} {found[each]}' for each in ('python', 'flight-shuffle', 'pyarrow'))}",
        )


def _asked(path: str) -> dict[str, Any] | None:
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that Spark itself would start
            [path, "-c", _PROBE % (_NEEDED,)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
            cwd="/",  # not a folder that may have the package's sources
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return found


def java(home: str | None) -> Iterator[Finding]:
    """Check the Java of a driver on this host, where this Python has PySpark."""
    check = "Spark's Java"
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return
    remedy = f"install Java {OLDEST_JAVA} or later, and let JAVA_HOME name its directory"
    path = shutil.which("java") if home is None else shutil.which(str(Path(home) / "bin" / "java"))
    if path is None:
        yield bad(check, "there is no java" + ("" if home is None else f" in JAVA_HOME {home}"), remedy)
        return
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark itself would start
            [path, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        yield bad(check, f"{path} does not run", remedy)
        return
    matched = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    number = 0 if matched is None else int(matched[1])
    if number < OLDEST_JAVA:
        yield bad(
            check,
            f"{path} is Java {number or 'of an unknown version'}: PySpark {spark} needs {OLDEST_JAVA}",
            remedy,
        )
    else:
        yield ok(check, f"{path} is Java {number}, for PySpark {spark}")
