"""Keep rules: which rows of a changelog are still needed. Arrow and numpy in, Arrow and numpy out; no state, no files.

:func:`make_rule` gives the rule that a ``create`` declares.
"""

from .making import make_rule
from .ranked import Counts, Groups, Kept
from .rule import Rule
