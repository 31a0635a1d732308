"""The stage of ``mapInArrow``: a function over the batches of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_client.arrow import Declared, Lent, own

from .one_pass import Pass, expect, iterable, noted


@dataclass(frozen=True)
class MapStage:
    """``mapInArrow``: one call of ``fn`` over all batches of the task."""

    fn: Callable[[Iterator[Any]], Iterable[Any]]
    declared: Declared

    divisible = True
    ours = False

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        name = self.declared.stage
        lent = Lent()
        given = lent.each(how.limits.cut(batches))
        for batch in noted(name, lambda: iter(iterable(self.fn(given), name, "an iterator"))):
            expect(batch, pa.RecordBatch, name)
            if batch.num_rows:
                cast = self.declared.cast(batch)
                yield own(cast, lent) if how.keeps(cast) else cast
