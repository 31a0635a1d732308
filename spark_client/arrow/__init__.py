"""Functions from Arrow batches to Arrow batches, without I/O: coalescing, sorting, sizes, casts, copies.

For ``pipeline``, ``broadcast``, ``jobs``, ``placement`` and ``lanes``.
"""

from .buffers import array_over, offsets, values, view
from .coalescer import Coalescer
from .own_memory import Lent, own, own_dictionaries
from .row_picking import Picker
from .sizes import batch_row_bits, has_dictionary
from .types import Declared

__all__ = [
    "Coalescer",
    "Declared",
    "Lent",
    "Picker",
    "array_over",
    "batch_row_bits",
    "has_dictionary",
    "offsets",
    "own",
    "own_dictionaries",
    "values",
    "view",
]
