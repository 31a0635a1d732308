"""Draws cases, and runs them.

An error of ours that says what to do is a refusal: the case goes on without the step, or ends. Any other error of ours
is a finding, and so are rows that differ, and rows where Spark has an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa

from flight_server.protocol.errors import FlightShuffleError
from spark_client import ShuffleClient

from . import endings, kinds, pair_steps, row_steps
from .cases import Case, State, Step, Table
from .endings import Differs
from .pools import Pools
from .sources import Sources

_ROW_STEPS = ["filtered", "select", "mapped", "exchange", "persist", "distinct", "groups"]
_PAIR_STEPS = ["join", "join", "union", "asof", "cogroup"]
_OURS = re.compile(r"^flight_server\.protocol\.errors\.\w+: (.*)", re.MULTILINE)
# PySpark's toArrow fails for each column of variants with a null in it.
_NO_NULL_VARIANTS = "nulls in input cannot be viewed as non-nullable"


class Refused(Exception):
    """We refuse what Spark may do, and say so."""


class TheirsFailed(Exception):
    """Spark has an error."""


class Found(Exception):
    """A finding: its kind, and what was seen."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def _refusal(error: BaseException) -> str | None:
    """Our message, if the error is one of ours, also out of a task; None for others."""
    if isinstance(error, FlightShuffleError):
        return error.message if type(error).code != "internal" else None
    found = _OURS.findall(str(error))
    return str(found[-1]) if found else None


class Run:
    """One case against one session; see the module."""

    def __init__(self, sources: Sources, client: ShuffleClient, case: Case) -> None:
        self.sources, self.client, self.case = sources, client, case
        self.pools = Pools(case.seed, tame=case.tame, numbers=case.numbers)
        self.comparisons = 0
        self.refusals: list[str] = []
        self.accepted: list[str] = []
        self._broadcasts: list[Any] = []

    def ours(self, call: Callable[[], Any]) -> Any:
        """What we give. Raises Refused or Found."""
        try:
            return call()
        except (Refused, Found, TheirsFailed, Differs):
            raise
        except Exception as error:
            said = _refusal(error)
            if said is None:
                raise Found("raw error", f"{type(error).__name__}: {_tail(str(error))}") from error
            raise Refused(said) from error

    def theirs(self, call: Callable[[], Any]) -> Any:
        """What Spark gives. Raises TheirsFailed."""
        try:
            return call()
        except Exception as error:
            raise TheirsFailed(_tail(str(error))) from error

    def table(self, table: Table, **changes: Any) -> State:
        return self.sources.state(self.client, replace(table, **changes), self.pools)

    def broadcast(self, state: State) -> Any:
        rows = state.ours.toDF if state.rows is None else lambda: state.rows
        found = self.ours(lambda: self.client.broadcast(rows()))
        self._broadcasts.append(found)
        return found

    def count_before(self, pipeline: Any) -> None:
        self.ours(pipeline.count)

    def read(self, pipeline: Any) -> pa.Table:
        if self.case.as_frame:
            return pipeline.toDF().toArrow()
        return self.client.collect(pipeline).read_all()

    def both(self, ours: Any, theirs: Any) -> tuple[pa.Table, pa.Table]:
        return self._two(lambda: self.read(ours), theirs.toArrow)

    def tables(self, ours: Any, theirs: Any) -> tuple[pa.Table, pa.Table]:
        return self._two(ours.toArrow, theirs.toArrow)

    def _two(self, ours: Callable[[], pa.Table], theirs: Callable[[], pa.Table]) -> tuple[pa.Table, pa.Table]:
        try:
            mine = self.ours(ours)
        except (Refused, Found) as error:
            try:
                self.theirs(theirs)
            except TheirsFailed as failed:
                if isinstance(error, Refused) or str(failed) in str(error):
                    raise Refused("as Spark: " + str(error)) from failed
            raise
        try:
            expected = self.theirs(theirs)
        except TheirsFailed as failed:
            if _NO_NULL_VARIANTS in str(failed):
                raise Refused(f"as Spark: {failed}") from failed
            raise
        self.comparisons += 1
        return mine, expected

    def step(self, state: State, step: Step) -> State:
        """The state after the step. Raises Refused: the state may have changed."""
        name, given = step
        apply = getattr(row_steps, name, None) or getattr(pair_steps, name)
        copy = replace(state, columns=list(state.columns))
        return self._planned(lambda: apply(self, copy, given))  # type: ignore[no-any-return]

    def end(self, state: State, ending: Step) -> None:
        name, given = ending
        self._planned(lambda: getattr(endings, name)(self, state, given))

    def _planned(self, call: Callable[[], Any]) -> Any:
        """Planning calls both sides' methods: an error is Spark's unless it is ours."""
        try:
            return call()
        except (Refused, Found, TheirsFailed):
            raise
        except Differs as error:
            raise Found("differs", str(error)) from error
        except FlightShuffleError as error:
            raise Refused(error.message) from error
        except Exception as error:
            if type(error).__module__.startswith("pyspark"):
                said = _refusal(error)
                raise (Refused(said) if said else TheirsFailed(_tail(str(error)))) from error
            raise Found("raw error while planning", f"{type(error).__name__}: {_tail(str(error))}") from error

    def whole(self) -> None:
        """Run the case. Raises Found."""
        self._run(self._replayed)

    def _replayed(self, state: State) -> State:
        for step in self.case.steps:
            state = self.step(state, step)
        return state

    def random(self, chance: Random) -> None:
        """Draw steps and an ending for the case, and run it; ``case`` is then the whole one. Raises Found."""
        self._run(lambda state: self._drawn(state, chance))

    def _drawn(self, state: State, chance: Random) -> State:
        for number in range(chance.choice([0, 1, 1, 2, 2, 3, 4])):
            step = _step(chance, state, number, tame=self.case.tame)
            if step is None:
                continue
            before, self.case = self.case, self.case.with_step(step)
            try:
                state = self.step(state, step)
            except Refused as error:
                self.case = before
                self.refusals.append(str(error))
            except TheirsFailed as error:
                self.case = before
                self.accepted.append(str(error))
        self.case = replace(self.case, ending=endings.draw(chance, state))
        return state

    def _run(self, steps: Callable[[State], State]) -> None:
        settings = self.sources.spark.conf
        settings.set("spark.sql.session.timeZone", self.case.zone)
        settings.set("spark.sql.autoBroadcastJoinThreshold", "10MB" if self.case.holds else "-1")
        with self.client.scope():
            try:
                state = steps(self._planned(lambda: self.table(self.case.table)))
                self.end(state, self.case.ending)
            except Refused as error:
                self.refusals.append(str(error))
            except TheirsFailed as error:
                raise Found("Spark has an error", str(error)) from error
            finally:
                for each in self._broadcasts:
                    each.destroy()


def _tail(text: str) -> str:
    """The end of an error's text, without the JVM's stack."""
    text = re.split(r"\n\nJVM stacktrace|\n\tat ", text, maxsplit=1)[0].strip()
    return text[-1500:]


def begun(seed: int) -> tuple[Case, Random]:
    """A case without steps, and the chance to draw them from."""
    chance = Random(seed)
    columns = [
        kinds.any_kind(chance) if chance.random() < 0.4 else kinds.flat(chance)
        for _ in range(chance.randint(1, 4))
    ]
    form = chance.choice(["frame", "parquet", "ipc"]) if set(columns) <= kinds.SCANNED else "frame"
    rows = chance.choice([0, 1, 7, 40, 40, 200, 1500])
    table = Table("a", kinds.schema(chance, "a", columns), rows, form, chance.choice([1, 2, 3]))
    case = Case(
        seed,
        table,
        tame=chance.random() < 0.4,
        held_bytes=chance.choice([None, 1000, 4000, 16_000, 16_000]),
        holds=seed % 10 < 7,
        as_frame=chance.random() < 0.5,
        zone=chance.choice(["UTC", "Europe/Berlin", "GMT+2", "+05:30"]),
    )
    return case, chance


def _step(chance: Random, state: State, number: int, *, tame: bool) -> Step | None:
    name = chance.choice([*_ROW_STEPS, *_PAIR_STEPS, *_PAIR_STEPS, "aggregate", "aggregate", "aggregate"])
    if name == "aggregate":
        given = row_steps.draw_aggregate(chance, state, tame=tame)
    elif name in _PAIR_STEPS:
        draw = getattr(pair_steps, f"draw_{name}")
        given = draw(chance, state, "bcdefgh"[number], chance.choice([0, 1, 30, 60]))
    else:
        given = getattr(row_steps, f"draw_{name}")(chance, state)
    return None if given is None else (name, given)
