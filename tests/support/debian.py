"""Install Debian's packages for tests, where that needs no password; standard library only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence


def install(what: str, packages: Sequence[str]) -> None:
    """Install the first of the packages that there is.

    Does nothing where that would need a password or another system. Standard output is left to the caller, who
    prints one line that ``make`` reads.

    Args:
        what: the packages' common name in the sentence that says what is going on.
    """
    if shutil.which("apt-get") is None:
        return
    command = ["apt-get"]
    if os.geteuid() != 0:
        if shutil.which("sudo") is None or _run(["sudo", "-n", "true"]) != 0:
            return
        # sudo passes no variables on by itself.
        command = ["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    print(f"Installing {what} with apt-get ...", file=sys.stderr)
    _run([*command, "update", "-qq"])
    for package in packages:
        if _run([*command, "install", "-y", "-qq", "--no-install-recommends", package]) == 0:
            return


def _run(command: list[str]) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, stdout=sys.stderr, env=environment, check=False).returncode
