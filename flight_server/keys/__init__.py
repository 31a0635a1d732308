"""Keys as numbers: codes that order and equal like Arrow values, and hashes that are the same in every process."""

from .hashes import HEAD_WORDS, TAIL_WORDS, Hashes, key_hashes, unique
from .value_codes import (
    NULL,
    Codes,
    codes,
    compute,
    falling,
    is_comparable,
    is_nested,
    is_plain,
    numbers,
    plain,
)
