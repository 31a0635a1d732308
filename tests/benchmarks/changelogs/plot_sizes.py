"""Draws ``sizes``: ``python plot_sizes.py RESULTS.json PLOT.png``, with nothing of ours beside it.

A row for each pattern: the rows that are stored and their bound, MiB on disk, MiB in memory. What a hold keeps is grey.
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
    figure, axes = plt.subplots(
        len(found), 3, figsize=(15, 3 * len(found)), squeeze=False, layout="constrained"
    )
    for each, (rows, disk, ram) in zip(found, axes, strict=True):
        seconds = [second - each["seconds"][0] for second in each["seconds"]]
        rows.plot(seconds, each["bound"], color="0.6", label="2 x needed + rows of the last delays")
        rows.plot(seconds, each["rows"], label="rows")
        rows.set_title(f"{each['name']}: rows, {each['keys']:,} keys", fontsize=9)
        rows.legend(fontsize=7)
        for axis, sizes, name in (
            (disk, "disk_bytes", "MiB on disk"),
            (ram, "ram_bytes", "MiB of runs in memory"),
        ):
            axis.plot(seconds, [size / MIB for size in each[sizes]])
            axis.set_title(name, fontsize=9)
        for axis in (rows, disk, ram):
            axis.set_ylim(bottom=0)
            low, high = axis.get_ylim()
            axis.fill_between(seconds, low, high, where=each["held"], color="0.92", linewidth=0)
    for axis in axes[-1]:
        axis.set_xlabel("second")
    figure.savefig(plot, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
