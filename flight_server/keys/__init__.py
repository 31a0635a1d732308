"""Keys: a normal form of Arrow values, and codes made of it: their order, equality and hash."""

from .buffers import array_over, flags, offsets, values, view
from .equality import same
from .hashes import Hashes, key_hashes, row_hashes, unique
from .normal import (
    byte_lists,
    canonical,
    compute,
    elements,
    float_bits,
    has_elements,
    is_bytes,
    is_comparable,
    is_nested,
    is_plain,
    numbers,
    plain,
)
from .value_codes import Codes, codes, falling
