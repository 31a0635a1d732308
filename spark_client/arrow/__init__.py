"""Functions from Arrow batches to Arrow batches, without I/O: coalescing, sorting, sizes, casts, copies."""

from flight_server.keys import array_over, offsets, values, view

from .coalescer import BLOCK_BYTES, Coalescer
from .expression_parts import (
    cannot_fail,
    check_named,
    conjuncts,
    fits,
    folded,
    is_repeatable,
    kept_share,
    needed,
    parts_of,
    renamed,
)
from .html_tables import html_table
from .kept_buffers import KeptBuffers, WriterFile
from .key_codes import group_codes, groupable
from .numbered_rows import SMALL_BYTES, NumberedRows, Picker, cuts, gathered, joined, picked, spread, together
from .one_chunk import OneChunk, counts, fits_one_chunk
from .own_memory import SMALL_ROWS, Lent, aligned, own, own_dictionaries
from .scalar_values import known_zone, printable_values, python_values, shown
from .sizes import (
    batch_bits_before,
    has_dictionary,
    held_buffers,
    inner_types,
    readable_size,
    row_bytes,
)
from .sort_codes import SortCodes, SortKey, check_sortable, ranges_of
from .types import Declared
from .widening import decimal_halves, widened
