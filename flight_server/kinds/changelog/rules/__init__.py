"""Keep rules: which rows of a changelog are still needed. Arrow and numpy in, Arrow and numpy out; no state, no files.

:func:`make_rule` gives the rule that a ``create`` declares. The queries of the rule ``sql``
run in processes of their own, which :class:`QueryProcesses` has.
"""

from .queries import Query
from .query_errors import QueryLimits
from .query_processes import QueryProcesses
from .ranked import Groups, Kept
from .rule import Emitting, EveryRow, Rule, make_rule
from .samples import SAMPLE_BYTES, Sample
