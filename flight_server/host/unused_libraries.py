"""Keeps libraries that nothing uses out of the server's process. Imported for its effect.

**rich.** If it is installed, structlog imports it for tracebacks, which the server prints otherwise: 6 MiB of resident
memory. The command line's help has it all the same.

**pandas.** If it is installed, pyarrow imports it for the first array that is made of numpy's. That takes half a
second, in which the event loop stands still, and 50 MiB of resident memory. The finder below says that it is not
installed; a None in ``sys.modules`` would do for Python's import, and breaks pyarrow's.

**The system's certificates.** aiohttp's client, which no part of the server uses, reads them all when aiohttp is
imported: 2 MiB, and 30 to 80 ms of the start. OpenSSL is told that there are none for that moment.

Only the command line imports this, before all of them; other processes are not changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NOT_NEEDED = ("pandas",)


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

_PLACES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
_given = {name: os.environ.get(name) for name in _PLACES}
os.environ.update(_PLACES)
import aiohttp.web  # noqa: E402, F401  # only so that it looks for certificates now

for _name, _value in _given.items():
    if _value is None:
        del os.environ[_name]
    else:
        os.environ[_name] = _value
