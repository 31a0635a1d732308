"""Whether a user's rule survives compaction, tried on real rows.

A rule ``keep`` of multisets of rows is tried with eight random splits of the sample into a and b, one of them with an
empty b, and each in another order of rows:

    keep(keep(a) + b) = keep(a + b)

and, if the changelog has a key, with as many random splits of its keys into A and B:

    keep(A) + keep(B) = keep(A + B), and keep(A) has only keys of A

The splits come from a fixed seed: the same sample gives the same answer. Rows are compared exactly, nulls with nulls.
Passing is no proof. A sample without two rows of one key shows little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flight_server.protocol import InvalidRequest

from .query_errors import shown
from .sandbox import Sandbox

_SEED, _SPLITS, _SHOWN_ROWS, _SHOWN_CHARACTERS = 8, 8, 5, 70


@dataclass(frozen=True)
class Trial:
    """Tries one rule.

    Args:
        query: the user's.
        keep: runs it.
        key: the changelog's; empty if it has none.
    """

    query: str
    keep: Callable[[pa.RecordBatch], pa.RecordBatch]
    key: Sequence[str]
    sandbox: Sandbox

    def check(self, sample: pa.RecordBatch) -> None:
        """Raises InvalidRequest with up to five rows that only one side has, of each side; and as ``keep``."""
        random = np.random.default_rng(_SEED)
        whole = self.keep(sample)
        for split in range(_SPLITS):
            order = random.permutation(sample.num_rows)
            cut = sample.num_rows if split == 0 else int(random.integers(0, sample.num_rows, endpoint=True))
            kept = self.keep(sample.take(pa.array(order[:cut])))
            again = self.keep(pa.concat_batches([kept, sample.take(pa.array(order[cut:]))]))
            self._compare({"keep(keep(a) + b)": again, "keep(a + b)": whole}, "is not idempotent")
        if not self.key:
            return
        numbers = _key_numbers(sample, self.key)
        for split in range(_SPLITS):
            chosen = random.random(int(numbers.max(initial=0)) + 1) < split / _SPLITS
            sides = [sample.filter(pa.array(mask)) for mask in (chosen[numbers], ~chosen[numbers])]
            results = [self.keep(side) for side in sides]
            self._check_keys(results[0], sides[0])
            both = {"keep(A) + keep(B)": pa.concat_batches(results), "keep(A + B)": whole}
            self._compare(both, "does not treat each key by itself: for different keys A and B")

    def _compare(self, sides: dict[str, pa.RecordBatch], why: str) -> None:
        """Raises InvalidRequest unless both sides have the same rows equally often."""
        (left, left_rows), (right, right_rows) = sides.items()
        more = self._only_in(left_rows, right_rows), self._only_in(right_rows, left_rows)
        if more[0].num_rows or more[1].num_rows:
            raise InvalidRequest(
                f"the rule's query {shown(self.query)} {why}: only in {left}: {_text(more[0])}; only in {right}: "
                f"{_text(more[1])}. Write it so that its result can stand for the rows that it was computed from: "
                "whole rows, min, max or exact sums"
            )

    def _only_in(self, one: pa.RecordBatch, other: pa.RecordBatch) -> pa.Table:
        query = f"(FROM one) EXCEPT ALL (FROM other) LIMIT {_SHOWN_ROWS}"
        return self.sandbox.run(query, {"one": one, "other": other}, users=self.query)

    def _check_keys(self, kept: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        one, other = (each.select(list(self.key)) for each in (kept, rows))
        foreign = self.sandbox.run(
            f"(FROM one) EXCEPT (FROM other) LIMIT {_SHOWN_ROWS}",
            {"one": one, "other": other},
            users=self.query,
        )
        if foreign.num_rows:
            raise InvalidRequest(
                f"the rule's query {shown(self.query)} gives rows of keys that are not in its input: "
                f"{_text(foreign)}"
            )


def _key_numbers(rows: pa.RecordBatch, key: Sequence[str]) -> NDArray[np.int64]:
    """For each row the number of its key, from 0."""
    numbers = np.zeros(rows.num_rows, np.int64)
    for name in key:
        encoded = pc.dictionary_encode(rows.column(name), null_encoding="encode")
        codes = encoded.indices.to_numpy().astype(np.int64)
        numbers = np.unique(numbers * len(encoded.dictionary) + codes, return_inverse=True)[1].astype(
            np.int64
        )
    return numbers


def shown_row(row: dict[str, object]) -> str:
    """A row in a message."""
    text = ascii(row)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _text(rows: pa.Table) -> str:
    return ", ".join(map(shown_row, rows.to_pylist())) or "none"
