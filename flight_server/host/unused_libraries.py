"""Keeps libraries that nothing uses out of the server's process, and loads Arrow as the server needs it
(``arrow_pages``). Imported for its effect.

**rich.** If it is installed, structlog imports it for tracebacks, which the server prints otherwise: 6 MiB of resident
memory. The command line's help has it all the same.

**pandas.** If it is installed, pyarrow imports it for the first array that is made of numpy's. That takes half a
second, in which the event loop stands still, and 50 MiB of resident memory. The finder below says that it is not
installed; a None in ``sys.modules`` would do for Python's import, and breaks pyarrow's.

**aiohttp's client.** ``import aiohttp.web`` imports it, too, and with it the system's certificates: 4 MiB, and 30 to 80
ms of the start. Here the package is imported without it; the first use of one of its names imports the rest.

Only the command line imports this, before all of them; other processes are not changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from .arrow_pages import load_arrow

NOT_NEEDED = ("pandas",)

load_arrow(kept_milliseconds=0)


class _NotInstalled(MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  # the protocol's arguments
        target: ModuleType | None = None,  # noqa: ARG002  # as above
    ) -> ModuleSpec | None:
        if fullname in NOT_NEEDED:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


sys.meta_path.insert(0, _NotInstalled())
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # Python's way to say that an import fails
    import structlog  # noqa: F401  # only so that it looks for rich now

    del sys.modules["rich"]


class _WithoutClient(ModuleType):
    """The package ``aiohttp`` before its own code has run. Its modules can be imported."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        # ``from aiohttp import web`` asks for the name before it imports the module.
        unknown = name.startswith("__") or find_spec(f"{self.__name__}.{name}") is not None
        if unknown or spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # it is a usual module from now on
        spec.loader.exec_module(self)
        return getattr(self, name)


_spec = find_spec("aiohttp")
if _spec is not None and "aiohttp" not in sys.modules:
    sys.modules["aiohttp"] = module_from_spec(_spec)
    sys.modules["aiohttp"].__class__ = _WithoutClient
    sys.modules["aiohttp"].__version__ = version("aiohttp")  # type: ignore[attr-defined]  # its modules ask for it
