"""``sql``: a query of the user's own over ``input`` says which rows are kept.

``input`` has the declared columns, and each row as often as it is there. The result has the declared columns; it need
not be rows of the input. Equal rows of the result are one row with a count.

The query must be idempotent: keep(keep(a) + b) = keep(a + b) for all rows a and b, exactly. Then the result of the
query is all that is needed. That cannot be proved, so it is tested on real rows (:meth:`Query.check_idempotent`). Sums
of floating point numbers fail, because they depend on the order; sums of decimals do not. With a key the query must
treat each key's rows by themselves and give rows of that key; without one all rows are one group.

Needed are the result of the query over the rows with a count above zero, and the counts below zero, because these take
away other rows later. Of the keys in which a row that is there has later retractions, every row.

All that runs the query blocks until a process has answered (``query_processes``). Nothing here
needs DuckDB.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import KeepRule, Unsupported

from .query_errors import too_large
from .query_messages import Work
from .query_processes import QueryProcesses
from .ranked import Counts, Groups, Kept, of_rows, sums


class Query:
    """The rule ``sql``. Raises Unsupported if the server has no DuckDB. Its methods also raise

    OutOfBudget: the query needs more memory than the processes' limit.
    Unavailable: it did not end before the deadline; or no process can be started; or the server goes down.
    """

    whole_keys = False
    in_parts = False
    greatest_rows = None

    def __init__(self, spec: KeepRule, schema: pa.Schema, processes: QueryProcesses) -> None:
        assert spec.query is not None
        if find_spec("duckdb") is None:
            raise Unsupported(
                "keep: the rule 'sql' needs DuckDB on the server: install flight-shuffle[server,sql] there"
            )
        self._spec, self._schema, self._processes = spec, schema, processes

    def check(self) -> None:
        """Raise InvalidRequest if the query must not be run, cannot be run over the schema, or does not give it."""
        self._asked(Work.CHECK, pa.RecordBatch.from_pylist([], self._schema), np.zeros(0, np.int64))

    def kept(self, groups: Groups) -> Kept:
        """See ``rule.Rule``. Raises InvalidRequest if the query fails on the rows."""
        return self._kept(groups.rows, groups.counts, groups.counts > 0)

    def needed(self, groups: Groups, later_retractions: Counts) -> Kept:
        """As :meth:`kept`."""
        counts = groups.counts
        awaited = of_rows(groups, sums(groups, (counts > 0) & (later_retractions < 0)) > 0)
        # Without a key there is one group, and a query over nothing may give a row.
        if awaited.all():
            return Kept(groups.rows, counts)
        settled = self._kept(groups.rows, counts, ~awaited & (counts > 0))
        rest = np.flatnonzero((awaited & (counts != 0)) | (counts < 0))
        others = self._declared(groups.rows.take(pa.array(rest)))
        return Kept(pa.concat_batches([settled.rows, others]), np.concatenate([settled.counts, counts[rest]]))

    def check_rows(self, rows: pa.RecordBatch, counts: Counts) -> None:
        """Raise InvalidRequest, with a row that shows it, if the query fails on these rows. Counts are above zero."""
        self._asked(Work.CHECK_ROWS, rows, counts)

    def check_idempotent(self, sample: pa.RecordBatch) -> None:
        """Raise InvalidRequest, with rows that show it, if compaction would change what the rule keeps. Runs the query
        about thirty times.
        """
        self._asked(Work.CHECK_IDEMPOTENT, sample, np.ones(sample.num_rows, np.int64))

    def _kept(self, rows: pa.RecordBatch, counts: Counts, chosen: NDArray[np.bool_]) -> Kept:
        if not chosen.all():
            places = np.flatnonzero(chosen)
            rows, counts = rows.take(pa.array(places)), counts[places]
        return self._asked(Work.KEPT, rows, counts)

    def _asked(self, work: Work, rows: pa.RecordBatch, counts: Counts) -> Kept:
        assert self._spec.query is not None
        copies, limits = int(counts.sum()), self._processes.limits
        # By the mean size of a row: the limit is one of order, not of bytes.
        if copies * rows.nbytes > limits.memory_limit_bytes * max(rows.num_rows, 1):
            raise too_large(self._spec.query, limits, f"{copies} rows of its input")
        return self._processes.ask(work, self._spec, self._schema, Kept(self._declared(rows), counts))

    def _declared(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without the metadata that their schema may have more than the declared one."""
        return pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)
