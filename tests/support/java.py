"""Find Java 17 or later, which Spark needs; standard library only, so it runs before anything is installed.

`python -m tests.support.java` prints the Java home, or says in one sentence what to install and exits
with 1. With `--install`, Debian's headless JRE is installed first when there is none, if that needs no
password.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support import debian

OLDEST_VERSION = 17
# Newest first: Debian 12 has only 17, Debian 13 only 21, Ubuntu both.
_DEBIAN_PACKAGES = ("openjdk-21-jre-headless", "openjdk-17-jre-headless")
SYSTEM_JAVAS = Path("/usr/lib/jvm")
MISSING = (
    f"Spark needs Java {OLDEST_VERSION} or later: install a JRE (Debian: apt-get install "
    "openjdk-17-jre-headless, or openjdk-21-jre-headless) or set JAVA_HOME."
)


def find_java_home() -> Path | None:
    """Return the home of the first Java that is new enough: JAVA_HOME, PATH, then the system's own."""
    for home in _candidates():
        version = _major_version(home)
        if version is not None and version >= OLDEST_VERSION:
            return home
    return None


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    # In order of their names: the oldest that will do has been in use with Spark the longest.
    yield from sorted(path for path in SYSTEM_JAVAS.glob("*") if path.is_dir())


def _major_version(home: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 called itself 1.8.
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else None


def main() -> int:
    """Print the Java home and return the exit status."""
    home = find_java_home()
    if home is None and "--install" in sys.argv[1:]:
        debian.install("a Java runtime", _DEBIAN_PACKAGES)
        home = find_java_home()
    if home is None:
        print(MISSING, file=sys.stderr)
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
