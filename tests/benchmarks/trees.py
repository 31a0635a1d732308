"""A broadcast of 1 GiB to many hosts over links of 10 Gbit/s, simulated by the real tree; no server runs.

``last`` is when the last living host had all frames. ``server`` and ``host`` are the copies that the server, and the
busiest host, sent.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random

from tests.benchmarks.measure import table
from tests.support.simulated_tree import NOTICE_SECONDS, SimulatedBroadcast

HOSTS = 50


def cases() -> dict[str, Callable[[], SimulatedBroadcast]]:
    """The broadcasts, by what happens in them."""
    random = Random(1)
    at_once = [0.0] * HOSTS
    spread = [random.random() for _ in range(HOSTS)]
    deaths = {number: random.random() for number in random.sample(range(HOSTS), 5)}
    few = random.sample(range(HOSTS), HOSTS // 2)
    return {
        "none can be read: all from the server": lambda: SimulatedBroadcast(at_once, silent=range(HOSTS)),
        "all at once": lambda: SimulatedBroadcast(at_once),
        "within a second": lambda: SimulatedBroadcast(spread),
        "half of them cannot be read": lambda: SimulatedBroadcast(at_once, silent=few),
        "the first dies at once": lambda: SimulatedBroadcast(at_once, deaths={0: 0.0003}),
        "five die within a second": lambda: SimulatedBroadcast(at_once, deaths=deaths),
        "500 hosts": lambda: SimulatedBroadcast([0.0] * 500),
    }


def main(options: list[str]) -> None:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m tests.benchmarks trees --", description=__doc__).parse_args(
        options
    )
    rows = []
    for name, make in cases().items():
        broadcast = make()
        last = broadcast.run()
        rows.append(
            [
                name,
                f"{last:.2f} s",
                f"{broadcast.server.sent_frames / broadcast.frames:.1f}",
                f"{max(host.sent_frames for host in broadcast.hosts) / broadcast.frames:.1f}",
            ]
        )
    columns = ["50 hosts", "last", "server", "host"]
    table(f"1 GiB, 10 Gbit/s, 0.2 ms; a loss is seen after {NOTICE_SECONDS:g} s", columns, rows)
