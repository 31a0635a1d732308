"""Functions from Arrow batches to Arrow batches, without I/O: coalescing, sorting, sizes, casts, copies.

For ``pipeline``, ``broadcast``, ``jobs``, ``placement`` and ``lanes``.
"""

from .buffers import array_over, offsets, values, view
from .coalescer import Coalescer
from .expression_columns import fits, needed
from .numbered_rows import SMALL_BYTES, NumberedRows, cuts, together
from .one_chunk import OneChunk, counts, fits_one_chunk
from .own_memory import SMALL_ROWS, Lent, own, own_dictionaries
from .range_search import ranges_of
from .row_picking import Picker, spread
from .scalar_values import known_zone, python_values, shown
from .sizes import batch_row_bits, has_dictionary, held_buffers, held_dictionaries, own_bytes
from .sort_codes import SortCodes, check_sortable
from .sort_keys import SortKey, is_pair, sort_key
from .types import Declared
from .widening import widened

__all__ = [
    "SMALL_BYTES",
    "SMALL_ROWS",
    "Coalescer",
    "Declared",
    "Lent",
    "NumberedRows",
    "OneChunk",
    "Picker",
    "SortCodes",
    "SortKey",
    "array_over",
    "batch_row_bits",
    "check_sortable",
    "counts",
    "cuts",
    "fits",
    "fits_one_chunk",
    "has_dictionary",
    "held_buffers",
    "held_dictionaries",
    "is_pair",
    "known_zone",
    "needed",
    "offsets",
    "own",
    "own_bytes",
    "own_dictionaries",
    "python_values",
    "ranges_of",
    "shown",
    "sort_key",
    "spread",
    "together",
    "values",
    "view",
    "widened",
]
