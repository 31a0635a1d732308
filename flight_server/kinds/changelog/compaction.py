"""Compaction: folds the old updates of a range into its new base, and rewrites recent runs as one.

Guarantee: neither changes a snapshot or deltas of a version that can be asked for. Both work in slices of whole keys in
a thread, hold no lock while they do, and change nothing until their result is published: one that did not come so far
begins again. They know contents and run files alone.

Folding
    :class:`Fold` takes all updates of some ranges up to ``since``, lets the rule say which it needs, and writes these
    to files as the bases of new ranges of about ``RANGE_ROWS`` or ``RANGE_BYTES``. Later updates stay in the recent
    runs. It ends after ``STEP_ROWS`` or ``STEP_BYTES``, behind a whole key; the rest of its last range is a range of
    its own then, with the old base. A :class:`Rewrite` of all rows there are, all in memory, may fold them, too.

Late retractions
    A commit that comes while a fold works may retract rows, so that one shows which the rule has left out. A reader may
    have seen it, so the keys of which the rule left something out, and something was retracted since (if
    ``any_update_counts``, anything was put), are folded again with these commits, and their range is written again
    (:meth:`Fold.catch_up`). While commits wait, up to ``FEW_KEYS`` of a range are written to a file of their own, for
    which the range is cut; if there are more, one range is written again at most, and others are left as they were.

Large keys
    A hash that is too large for a slice is folded in pieces (``large_keys``), to a range of its own. Of late commits
    count only those with rows that are not above all of its old ones. If there are some, it is folded again with rows
    to spare for more of them, if the rule can (``Rule.spares``): then its fold ends, however often they come. Else a
    fold ends that is done before the next one comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from flight_server.keys import Hashes, unique
from flight_server.memory import MemoryPool

from . import views
from .contents import Contents, Range
from .folding import PieceTotals, added_up, compacted
from .large_keys import in_pieces, pieces, rows_upto
from .rules import Rule
from .runs import DELETE, MAX_HASH, MemoryRun, Run, RunFile, RunWriter, Updates
from .views import slice_end

RANGE_ROWS = 64 << 10
RANGE_BYTES = 8 << 20
STEP_ROWS = 4 * RANGE_ROWS
STEP_BYTES = 4 * RANGE_BYTES
FEW_KEYS = 32
SPARE = 4
"""So many times the late copies of a large key's fold may come during the next one."""

_EVER, _NEVER = -1, np.iinfo(np.int64).max
"""Versions before and behind all others."""

NewFile = Callable[[], RunWriter]


def range_rows(contents: Contents) -> int:
    """How many rows a range is to have: fewer if they are large."""
    size_bytes = contents.bases.size_bytes + sum(run.size_bytes for run in contents.recent)
    return min(RANGE_ROWS, RANGE_BYTES * contents.rows // max(1, size_bytes))


class Work:
    """A fold or a rewrite: iterate over ``steps``, each of which blocks for one slice and says how many rows it read;
    then publish. One that is given up leaves no file (``runs.run_files``).

    Args:
        since, rule: of a fold. ``since`` is not below that of its ranges.
        new_file: makes the writer of a file; None for a result in memory.
    """

    def __init__(self, contents: Contents, since: int, rule: Rule, new_file: NewFile | None) -> None:
        self.contents = contents
        self.layout = contents.bases.layout
        self.since = since
        self.to_file = new_file is not None
        self._rule = rule
        self._new_file = new_file
        self._writer: RunWriter | None = None
        self._began = self._caught_up = max((run.last_version for run in contents.recent), default=0)

    def steps(self) -> Iterator[int]:
        """Raises Damaged, DiskTrouble, OSError."""
        raise NotImplementedError

    def catch_up(self, contents: Contents, *, briefly: bool = False) -> bool:
        """Let the result be right beside these contents, too, which have further commits; whether it was not. Blocks.
        ``briefly``: because commits wait; it is published next. Raises as ``steps``.
        """
        del contents, briefly
        return False

    def published(self, contents: Contents) -> Contents:
        """These contents with the result, which has caught up with them."""
        raise NotImplementedError

    def _new_updates(self, contents: Contents, low: int, high: int) -> list[Updates]:
        """Those that came since it last caught up; now it has."""
        late = [run for run in contents.recent if run.last_version > self._caught_up]
        parts = [part for run in late for part in run.parts_between(low, high)]
        parts = [part.where(part.versions > self._caught_up) for part in parts]
        self._caught_up = max((run.last_version for run in late), default=self._caught_up)
        return parts

    def _asking(self, parts: Iterable[Updates]) -> Hashes:
        """The hashes of those that may make rows needed which the rule has left out."""
        every = self._rule.any_update_counts
        return unique(*(part.unique_hashes if every else part.retracted for part in parts))

    def _writing(self, parts: Iterable[Updates]) -> Iterator[int]:
        """Write parts, which follow each other; how many rows each has."""
        for part in parts:
            if len(part):
                if self._writer is None:
                    assert self._new_file is not None
                    self._writer = self._new_file()
                self._writer.add(part)
            yield len(part)

    def _written(self) -> RunFile | None:
        writer, self._writer = self._writer, None
        return None if writer is None else writer.finish()


@dataclass
class _Made:
    """A new range.

    Args:
        changed: the hashes of which the rule left something out.
        last: the greatest old row of a large key, if it has one; None of other keys.
        late: how many copies of such a key late commits have changed.
        spare: how many they may change beside those that its fold knew.
    """

    range: Range
    changed: Hashes
    last: Updates | None = None
    late: int = 0
    spare: int = 0


class Fold(Work):
    """See "Folding".

    Args:
        first, last: the places of the ranges, both included.
    """

    def __init__(
        self, contents: Contents, first: int, last: int, *, since: int, rule: Rule, new_file: NewFile
    ) -> None:
        super().__init__(contents, since, rule, new_file)
        self.low, self.high = contents.bases.ranges[first].low, contents.bases.ranges[last].high
        self._sources = contents.sources
        self._made: list[_Made] = []
        self._next = self.low  # where the next range begins
        self._kept: list[Updates] = []
        self._changed: list[Hashes] = []

    def steps(self) -> Iterator[int]:
        low, rows, size_bytes = self.low, 0, 0
        while low <= self.high and rows < STEP_ROWS and size_bytes < STEP_BYTES:
            wanted_rows = min(views.SLICE_ROWS, max(1, RANGE_ROWS // 2))
            high, large = slice_end(self._sources, wanted_rows, low, 2 * views.SLICE_BYTES)
            high = min(high, self.high)
            if large:
                if self._next < low:
                    self._end_range(low - 1)
                runs = [each.parts_between(low, low) for each in self._sources]
                yield from self._add_large(low, runs)
                size_bytes += STEP_BYTES // 2
            else:
                updates = Updates.joined(self.layout, [each.between(low, high) for each in self._sources])
                self._kept.append(self._folded(updates))
                if self._is_full():
                    self._end_range(high)
                rows, size_bytes = rows + len(updates), size_bytes + updates.size_bytes
                yield len(updates)
            low = high + 1
        self.high = low - 1
        if self._next <= self.high:
            self._end_range(self.high)

    def _is_full(self) -> bool:
        """Whether what the rule has left of the last slices is enough for a range."""
        return (
            sum(map(len, self._kept)) >= RANGE_ROWS
            or sum(part.size_bytes for part in self._kept) >= RANGE_BYTES
        )

    def _folded(self, updates: Updates) -> Updates:
        left, changed = compacted(updates, self.since, self._rule)
        self._changed.append(changed)
        return left.where(left.versions <= self.since)

    def _end_range(self, high: int) -> None:
        self._made.append(_Made(self._range(self._next, high, self._kept), unique(*self._changed)))
        self._kept, self._changed, self._next = [], [], high + 1

    def _range(self, low: int, high: int, parts: Iterable[Updates]) -> Range:
        for _ in self._writing(parts):
            pass
        base = self._written()
        return Range(low, high, self.since, base, 0 if base is None else base.rows)

    def _add_large(self, hash_: int, runs: Sequence[Sequence[Updates]], late: int = 0) -> Iterator[int]:
        rows, last, changed = 0, Updates.empty(self.layout), [np.zeros(0, np.uint64)]

        def of_piece(piece: Updates, totals: PieceTotals | None) -> Updates:
            nonlocal rows, last
            rows += len(piece)
            old = np.flatnonzero(piece.versions <= self.since)
            last = piece.take(old[-1:]) if len(old) else last
            left, hashes = compacted(piece, self.since, self._rule, totals, SPARE * late)
            changed.append(hashes)
            return left.where(left.versions <= self.since)

        made = partial(pieces, self.layout, runs, self.since, _NEVER, views.SLICE_BYTES)
        for left in in_pieces(made, self._rule.rounds, of_piece):
            yield from self._writing([] if left is None else [left])
            read, rows = rows, 0
            yield read
        self._made.append(_Made(self._range(hash_, hash_, []), unique(*changed), last, late, SPARE * late))
        self._next = hash_ + 1

    def catch_up(self, contents: Contents, *, briefly: bool = False) -> bool:
        parts = self._new_updates(contents, self.low, self.high)
        asking = self._asking(parts)
        self._sources = contents.sources
        before, self._made = self._made, []
        again = 0
        for made in before:
            hashes = asking[np.isin(asking, made.changed)]
            large = made.last is not None
            if not len(hashes) or (large and self._is_spared(parts, made)):
                self._made.append(made)
            elif briefly and len(hashes) <= FEW_KEYS and not large:
                self._cut_out(made, hashes)
            elif not briefly or not (again or large):
                again += 1
                self._add_again(made, hashes)
        return again > 0

    def _is_spared(self, parts: Iterable[Updates], made: _Made) -> bool:
        """Whether the large key has rows to spare for those of these updates that are not above its old rows."""
        assert made.last is not None
        if not len(made.last):
            return True
        spared = True
        for part in parts:
            new = part.between(made.range.low, made.range.high)
            new = new.slice(0, rows_upto(self.layout, new, made.last))
            # The fold may leave out what a later tombstone deletes anyway: a tombstone needs no rows to spare.
            new = new.where((new.diffs != DELETE) & ((new.diffs < 0) | self._rule.any_update_counts))
            made.late += int(np.abs(new.diffs).sum())
            made.spare -= int(np.abs(new.diffs).sum())
            spared &= bool(self._rule.spares(new.rows, new.diffs).all())
        return spared and made.spare >= 0

    def _add_again(self, made: _Made, hashes: Hashes) -> None:
        """Add the range, of which these keys are folded again, unless too much of them is needed."""
        low, high, base = made.range.low, made.range.high, made.range.base
        if made.last is not None:
            runs = [each.parts_between(low, low) for each in self._sources]
            for _ in self._add_large(low, runs, made.late):
                pass
            return
        self._changed = [made.changed]
        parts = self._folded_again(hashes)
        if parts is not None:
            others = [] if base is None else base.parts_between(low, high)
            others = [part.where(~np.isin(part.hashes, hashes)) for part in others]
            kept = Updates.joined(self.layout, [*others, *parts])
            self._made.append(_Made(self._range(low, high, [kept]), unique(*self._changed)))

    def _cut_out(self, made: _Made, hashes: Hashes) -> None:
        """Add the range, with others for these keys, which are folded again, unless too much of them is needed."""
        parts = self._folded_again(hashes)
        if parts is None:
            return
        few = self._range(made.range.low, made.range.high, parts)
        low, ranges = made.range.low, []
        for hash_ in hashes.tolist():
            ranges += [made.range.part(low, hash_ - 1)] if low < hash_ else []
            ranges.append(few.part(hash_, hash_))
            low = hash_ + 1
        ranges += [made.range.part(low, made.range.high)] if low <= made.range.high else []
        self._made += [_Made(each, made.changed) for each in ranges]

    def _folded_again(self, hashes: Hashes) -> list[Updates] | None:
        """What the rule needs of these keys beside late commits; None if it is more than two ranges have."""
        again: list[Updates] = []
        for updates in self._slices_of(hashes):
            again.append(self._folded(updates))
            if sum(part.size_bytes for part in again) > 2 * RANGE_BYTES:
                return None
        return again

    def _slices_of(self, hashes: Hashes) -> Iterator[Updates]:
        sizes = np.cumsum(np.sum([each.bytes_of(hashes) for each in self._sources], axis=0))
        start, before = 0, 0.0
        while start < len(hashes):
            stop = max(start + 1, int(np.searchsorted(sizes, before + 2 * views.SLICE_BYTES, "right")))
            some = hashes[start:stop]
            yield Updates.joined(self.layout, [each.of_hashes(some) for each in self._sources])
            start, before = stop, float(sizes[stop - 1])

    def published(self, contents: Contents) -> Contents:
        return contents.folded([each.range for each in self._made])


class Rewrite(Work):
    """Recent runs become one, without dead rows.

    Args:
        runs: recent ones; of a fold all rows that there are, all in memory.
        fold: whether to fold them.
        memory: counts a result in memory.
    """

    def __init__(
        self,
        contents: Contents,
        runs: Sequence[Run],
        *,
        since: int,
        rule: Rule,
        new_file: NewFile | None,
        memory: MemoryPool,
        fold: bool = False,
    ) -> None:
        super().__init__(contents, since, rule, new_file)
        self.runs = runs
        self._fold = fold
        self._memory = memory
        self._sources = replace(contents, recent=tuple(runs)).alive
        self._changed: Hashes = np.zeros(0, np.uint64)
        self._result: list[Run] = []

    def steps(self) -> Iterator[int]:
        if self.to_file:
            yield from self._to_file()
            return
        yield self._in_memory([])

    def _to_file(self) -> Iterator[int]:
        low = 0
        while low <= MAX_HASH:
            high, large = slice_end(self._sources, views.SLICE_ROWS, low, 2 * views.SLICE_BYTES)
            runs = [each.parts_between(low, high) for each in self._sources]
            low = high + 1
            if large:
                yield from self._writing(pieces(self.layout, runs, _EVER, _NEVER, views.SLICE_BYTES))
            else:
                updates = Updates.joined(self.layout, [part for run in runs for part in run])
                yield from self._writing([added_up(updates)])
        file = self._written()
        self._result = [] if file is None else [file]

    def _in_memory(self, late: Sequence[Updates]) -> int:
        parts = [each.between(0, MAX_HASH) for each in self._sources]
        whole = Updates.joined(self.layout, [*parts, *late])
        left = added_up(whole)
        if self._fold:
            left, changed = compacted(whole, self.since, self._rule)
            left, self._changed = left.where(left.versions <= self._began), unique(self._changed, changed)
        self._result = []
        if len(left):
            # Of all rows that these runs stand for, also of those that an earlier fold has left out: what made them
            # garbage stays in the records as long as they do.
            first = min(run.first_version for run in self.runs)
            last = min(self._began, int(whole.versions.max()))
            room = self._memory.reserve(left.size_bytes)
            self._result = [MemoryRun(left, first, last, room)]
        return len(whole)

    def catch_up(self, contents: Contents, *, briefly: bool = False) -> bool:
        del briefly
        asking = self._asking(self._new_updates(contents, 0, MAX_HASH)) if self._fold else self._changed
        if not self._fold or not np.isin(asking, self._changed).any():
            return False
        late = [run.between(0, MAX_HASH) for run in contents.recent if run.last_version > self._began]
        self._in_memory([part.where(part.versions > self._began) for part in late])
        return True

    def published(self, contents: Contents) -> Contents:
        return contents.rewritten(self.runs, self._result, self.since if self._fold else 0)


@dataclass(eq=False)
class Going:
    """Work that was begun.

    Args:
        in_memory: whether it works on runs in memory.
        alone: whether no other work goes on meanwhile.
        busy: its next slice is being done.
    """

    work: Work | None
    steps: Iterator[int]
    in_memory: bool
    alone: bool
    busy: bool = False

    def take(self) -> Work:
        """The work, once, to be released."""
        work, self.work, self.steps = self.work, None, iter(())
        assert work is not None
        return work
