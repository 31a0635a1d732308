"""How large a changelog without a rule stays while a query of Spark takes back what is not needed any more.

The query is that of the page, as fast as it can; the bids are those of ``tests.support.auctions``, one
round a second. ``rows needed`` is what the model in plain Python keeps of the bids that came, ``rows stored`` what the
server says at that time. Each batch of the query holds the snapshot that it has read for 30 s, so the rows that came
meanwhile are stored, too: ``of the bound`` is the part of 2 x the rows needed and the rows that were put, by producer
and query, in the last ``LAST_SECONDS``. After the last round the rows that are shown are compared with the model's, and
the suite waits for the rows that are left when nothing is held.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.benchmarks.changelogs.settling import settled
from tests.benchmarks.measure import conditions, console, table
from tests.benchmarks.on_spark.engines import Engines
from tests.support.auctions import Auctions, run_page, shown
from tests.support.pages import blocks

LAST_SECONDS = 40.0
AUCTIONS_OF_A_ROUND = 40
COLUMNS = ["seconds", "bids in", "rows put", "rows needed", "rows stored", "of the bound"]


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="feedback")
    parser.add_argument("--seconds", type=int, default=150)
    parser.add_argument("--bids", type=int, default=2000, help="a second")
    parser.add_argument("--every", type=int, default=10, help="seconds from one line to the next")
    options = parser.parse_args(arguments)
    console.print(f"[bold]Feedback[/bold] · {conditions(1)}; {options.bids:,} bids a second")
    with (
        tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-") as directory,
        Engines(server={"data_dir": Path(directory, "data")}, sql__shuffle__partitions="2") as engines,
    ):
        location = engines.server.location
        page = run_page(blocks()["feedback"], location, Path(directory, "settled"))
        changelog = engines.shuffle.changelog("auctions")
        of_page = shown(changelog)
        model = Auctions(
            random.Random(1), delay=page["delay"], bids_of_auction=options.bids // AUCTIONS_OF_A_ROUND
        )
        query, begun = page["start"](), time.perf_counter()
        lines: list[list[str]] = []
        puts: list[tuple[float, int]] = []
        for second in range(1, options.seconds + 1):
            time.sleep(max(0.0, begun + second - time.perf_counter()))
            rows = model.round()
            changelog.put(rows)
            puts.append((time.perf_counter(), rows.num_rows))
            if second % options.every == 0:
                needed = (model.needed() + of_page).total()
                # Each bid that was put can be taken back once.
                since = time.perf_counter() - LAST_SECONDS
                bound = 2 * needed + 2 * sum(count for at, count in puts if at > since)
                stored = int(changelog.statistics()["rows"])
                put = sum(count for _, count in puts)
                counts = (second, model.bids, put, needed, stored)
                lines.append([*(f"{count:,}" for count in counts), f"{stored / bound:.2f}"])
        changelog.put(model.end())
        query.processAllAvailable()
        missing, extra = model.needed() + of_page, shown(changelog)
        missing.subtract(extra)
        wrong = sum(map(abs, missing.values()))
        while any(hold.lease_left_seconds < 60 for hold in changelog.holds()):
            time.sleep(1.0)
        _, left = settled(changelog)
        query.stop()
    table("Rows while bids that lost are taken back", COLUMNS, lines)
    console.print(
        f"at the end {extra.total():,} rows needed, {wrong} of them wrong; {left:,} stored when nothing is held"
    )
