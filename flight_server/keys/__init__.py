"""Keys: a normal form of Arrow values, codes and columns of codes made of it, and their order, equality and hash."""

from .buffers import array_over, flags, offsets, values, view
from .equality import same
from .group_codes import group_codes, groupable
from .hashes import HEAD_WORDS, TAIL_WORDS, Hashes, key_hashes, row_hashes, unique
from .normal import canonical, compute, float_bits, is_comparable, is_nested, is_plain, numbers, plain
from .ranges import ranges_of
from .sort_codes import SortCodes, SortKey, check_sortable
from .value_codes import NULL, Codes, codes, falling
