"""Draws ``open_loop``: ``python plot.py RESULTS.json PLOT.png``, with nothing of ours beside it.

A row for each number of keys and rate, a line for each delay: latency (99th percentile, and the maximum thinner),
resident size and size on disk of each second. The seconds of warm-up are grey.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore] # in an environment of its own

mpl.use("Agg")
from matplotlib import pyplot as plt  # type: ignore[import-not-found, unused-ignore]

MIB = 1 << 20


def main(results: str, plot: str) -> None:
    """Draw."""
    found = json.loads(Path(results).read_text())
    loads = sorted({(each["keys"], each["rate"]) for each in found})
    figure, axes = plt.subplots(
        len(loads), 3, figsize=(15, 3.2 * len(loads)), squeeze=False, layout="constrained"
    )
    for (keys, rate), (latency, ram, disk) in zip(loads, axes, strict=True):
        for each in (each for each in found if (each["keys"], each["rate"]) == (keys, rate)):
            seconds = range(1, len(each["p99"]) + 1)
            name = "no compaction" if each["delay"] == "off" else f"delay {each['delay']}"
            (line,) = latency.plot(seconds, each["p99"], label=name)
            latency.plot(seconds, each["max"], color=line.get_color(), linewidth=0.5)
            for axis, sizes in ((ram, each["ram_bytes"]), (disk, each["disk_bytes"])):
                axis.plot(seconds, [size / MIB for size in sizes], color=line.get_color())
            for axis in (latency, ram, disk):
                axis.axvspan(0, each["warm_up"], color="0.92", linewidth=0)
        latency.set_yscale("log")
        latency.set_title(f"{keys:,} keys, {rate:,} updates/s: latency in ms, p99 and maximum", fontsize=9)
        latency.legend(fontsize=7)
        ram.set_title("server's resident size, MiB", fontsize=9)
        disk.set_title("on disk, MiB", fontsize=9)
        for axis in (ram, disk):
            axis.set_ylim(bottom=0)
    for axis in axes[-1]:
        axis.set_xlabel("second")
    figure.savefig(plot, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
