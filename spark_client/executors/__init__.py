"""Makes executors able to run our tasks: checks the interpreter, ships the package, wraps functions, spares workers.

For ``jobs``, ``pipeline``, ``broadcast``, ``client`` and ``cli``.
"""

from .interpreter import check_interpreter
from .settling import settle
from .shipping import Portable, portable, ship, zipped

__all__ = [
    "Portable",
    "check_interpreter",
    "portable",
    "settle",
    "ship",
    "zipped",
]
