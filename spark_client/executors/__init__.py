"""What executors need before a task can run."""

from .interpreter import check_interpreter
from .shipping import Portable, ship, zipped

__all__ = [
    "Portable",
    "check_interpreter",
    "ship",
    "zipped",
]
