"""An interpreter with all packages that this one has, but not the one that is tested: what an executor is."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path


def bare_python(directory: Path) -> Path:
    """A virtual environment in ``directory``; its interpreter.

    It sees this one's packages as a folder of modules. Python follows no ``.pth`` file of such a folder, and so
    does not find the editable install.
    """
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory / "bin" / "python"
