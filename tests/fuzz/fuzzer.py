"""The loop: cases by their numbers until the time is over; each new finding is made small, and printed."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_client import Reading, ShuffleClient

from .cases import Case, Table
from .programs import Found, Run, begun
from .sources import Sources

CASE_SECONDS = 240.0
"""A case that takes longer is a finding: its Spark jobs are cancelled."""
LEFT_SECONDS = 20.0
"""The servers may have bytes of a case for so long after it."""
_TRIES = 60
"""Smaller cases that are tried for a finding."""


class Fuzzer:
    """Runs cases against one session and the servers at ``location``; prints what it finds."""

    def __init__(self, spark: Any, location: str, directory: Path) -> None:
        self.spark = spark
        self.location = location
        self.sources = Sources(spark, directory)
        self.directory = directory
        self.cases = self.comparisons = 0
        self.refusals: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.findings: dict[str, str] = {}
        self.again: Counter[str] = Counter()
        self._clients: dict[tuple[int | None, bool], ShuffleClient] = {}
        self._servers = [ShuffleClient(each) for each in location.split(",")]

    def fuzz(self, seed: int, *, seconds: float | None = None, cases: int | None = None) -> None:
        """Run the cases from number ``seed * 1_000_000`` on, for so long or so many."""
        end = None if seconds is None else time.monotonic() + seconds
        number = seed * 1_000_000
        last = None if cases is None else number + cases
        while (end is None or time.monotonic() < end) and number != last:
            self._one(number)
            number += 1
            if self.cases % 100 == 0:
                print(self.summary().splitlines()[0], flush=True)

    def _one(self, number: int) -> None:
        case, chance = begun(number)
        run = self._run(case)
        self.cases += 1
        try:
            with self._deadline():
                run.random(chance)
            self._check_nothing_left()
        except Found as found:
            self._note(run.case, found)
        self.comparisons += run.comparisons
        self.refusals.update(_template(each) for each in run.refusals)
        self.accepted.update(_template(each) for each in run.accepted)

    def found(self, case: Case) -> Found | None:
        """What the case finds. A case that is refused has not run: that is an error here."""
        run = self._run(case)
        try:
            with self._deadline():
                run.whole()
            self._check_nothing_left()
        except Found as found:
            return found
        return Found("refused", run.refusals[0]) if run.refusals else None

    def _check_nothing_left(self) -> None:
        """A case has released all that it wrote. Raises Found; then it is dropped, for the cases after it."""
        left: list[str] = []
        for server in self._servers:
            deadline = time.monotonic() + LEFT_SECONDS
            while (used_bytes := server.statistics()["memory"]["used_bytes"]) and time.monotonic() < deadline:
                time.sleep(0.05)
            names = [each.name for each in server.datasets()]
            if used_bytes or names:
                left.append(f"{used_bytes} bytes and {names} on {server.location}")
            for name in names:
                server.drop(name)
        if left:
            raise Found("left", "; ".join(left))

    def _run(self, case: Case) -> Run:
        # Every other case is run by tasks alone.
        kind = held, in_driver = case.held_bytes, case.seed % 2 == 0
        client = self._clients.get(kind)
        if client is None:
            reading = Reading(
                scratch_dir=str(self.directory), driver_bytes=Reading.driver_bytes if in_driver else 0
            )
            if held is not None:
                reading = replace(reading, budget_bytes=held, gathered_bytes=held)
            client = self._clients[kind] = ShuffleClient(self.location, reading=reading)
        return Run(self.sources, client, case)

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        timer = threading.Timer(CASE_SECONDS, self.spark.interruptAll)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _note(self, case: Case, found: Found) -> None:
        mark = _template(f"{found.kind} {case.ending[0]} {[name for name, _ in case.steps][-1:]} {found}")[
            :160
        ]
        self.again[mark] += 1
        if mark in self.findings:
            return
        print(f"found by {case!r}\n    {found}", flush=True)
        small = self._smaller(case, found)
        self.findings[mark] = f"{found}\n    {small!r}"
        print(f"FINDING {len(self.findings)}: {self.findings[mark]}", flush=True)

    def _smaller(self, case: Case, found: Found) -> Case:
        """A case that finds the same, with fewer steps, rows, columns."""
        tries = 0
        progress = True
        while progress and tries < _TRIES:
            progress = False
            for smaller in _reduced(case):
                tries += 1
                if tries > _TRIES:
                    break
                other = self.found(smaller)
                if other is not None and _mark(other) == _mark(found):
                    case, progress = smaller, True
                    break
        return case

    def summary(self) -> str:
        refused, theirs = (sum(each.values()) for each in (self.refusals, self.accepted))
        done = f"{self.cases} cases, {self.comparisons} comparisons, {refused} refused"
        lines = [f"{done}, {theirs} refused by Spark alone, {len(self.findings)} findings"]
        for what, counts in (("refused", self.refusals), ("refused by Spark alone", self.accepted)):
            lines += [f"{what} {times} times: {text}" for text, times in counts.most_common(40)]
        for mark, text in self.findings.items():
            lines.append(f"FOUND {self.again[mark]} times: {text}")
        return "\n".join(lines)

    def close(self) -> None:
        for client in [*self._clients.values(), *self._servers]:
            client.close()


def _reduced(case: Case) -> Iterator[Case]:
    for number in range(len(case.steps)):
        yield replace(case, steps=case.steps[:number] + case.steps[number + 1 :])
    if case.ending[0] != "rows":
        yield replace(case, ending=("rows", {}))
    for plainer in ({"held_bytes": None}, {"as_frame": False}, {"zone": "UTC"}):
        smaller = replace(case, **plainer)
        if smaller != case:
            yield smaller
    for table in _reduced_table(case.table):
        yield replace(case, table=table)
    for number, (name, given) in enumerate(case.steps):
        if isinstance(given.get("table"), Table):
            for table in _reduced_table(given["table"]):
                step = name, {**given, "table": table}
                yield replace(case, steps=(*case.steps[:number], step, *case.steps[number + 1 :]))
        wanted = given.get("wanted", [])
        for at in range(len(wanted) if len(wanted) > 1 else 0):
            step = name, {**given, "wanted": wanted[:at] + wanted[at + 1 :]}
            yield replace(case, steps=(*case.steps[:number], step, *case.steps[number + 1 :]))


def _reduced_table(table: Table) -> Iterator[Table]:
    if table.rows > 1:
        yield replace(table, rows=table.rows // 4)
        yield replace(table, rows=table.rows * 3 // 4)
    for plainer in ({"form": "frame"}, {"parts": 1}, {"keys": ()}):
        smaller = replace(table, **plainer)
        if smaller != table:
            yield smaller
    columns = re.findall(r"(?:^|, )(\w+ .*?)(?=, [a-h][0-9] |$)", table.schema)
    for number in range(len(columns) if len(columns) > 1 else 0):
        yield replace(table, schema=", ".join(columns[:number] + columns[number + 1 :]))


def _mark(found: Found) -> str:
    return _template(str(found))[:60]


def _template(text: str) -> str:
    """The text without names and numbers, to count what is alike."""
    return re.sub(r"'[^']*'", "'…'", re.sub(r"\b[a-h]?[0-9]+_?\b", "0", text.splitlines()[0]))[:300]
