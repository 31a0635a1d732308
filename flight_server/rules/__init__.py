"""Keep rules: which rows of a changelog are still needed. Arrow and numpy in, Arrow and numpy out; no state, no files.

``changelogs`` calls them. :func:`make_rule` gives the rule that a ``create`` declares.
"""

from .groups import Groups, Kept
from .query_limits import QueryLimits
from .rule import Emitting, EveryRow, Rule, make_rule

__all__ = ["Emitting", "EveryRow", "Groups", "Kept", "QueryLimits", "Rule", "make_rule"]
