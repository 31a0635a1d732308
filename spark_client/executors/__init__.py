"""Makes executors able to run our tasks: checks the interpreter, ships the package, wraps functions, spares workers."""

from .interpreter import check_interpreter
from .settling import settle
from .shipping import Portable, portable, ship, zipped
from .shown_errors import ShownFromUsers
