"""What a server's records cost: durable puts, commits to a changelog, a start with many datasets, dropping them, rest.

``--against CLONE`` measures the server of another clone of the repository in turn with this one's: the clone's own
interpreter (``.venv/bin/python``) runs it, and the clients are the same.

    puts        small durable streams a second, a new name each, at 1, 16 and 64 clients at once
    commits     versions of one row a second, all to one changelog
    start       seconds from the start of the process to its ready line, over the data directory of a server that ended
                cleanly: with so many durable datasets, and with one dataset of so many partitions; the resident size
                then, and the seconds until one partition is read first
    drop        seconds until all of these datasets were dropped, by 16 clients, and until the wide one was
    idle        resident size of a server with an empty data directory that does nothing, and of it anonymous

Data directories lie in ``--directory``, by default that for temporary files: take one on the disk that is meant.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from tests.benchmarks.idle import SETTLE_SECONDS, sizes_bytes
from tests.benchmarks.measure import MIB, Subject, conditions, console, measure, table
from tests.benchmarks.record_calls import Clients, first_filled, put_wide
from tests.support.rooms import ROOT
from tests.support.server_process import ServerProcess

CLIENTS = (1, 16, 64)
FILLING_CLIENTS = 16
WIDE = "wide"
PARTS = ("puts", "commits", "datasets", "partitions", "idle")


@dataclass(frozen=True)
class Tree:
    """A clone of the repository whose server is measured."""

    name: str
    directory: Path

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.directory == ROOT else self.directory / ".venv/bin/python"

    def start(self, data_dir: Path, *, datasets: int = 0) -> ServerProcess:
        """A server of this tree that may have so many datasets, and more."""
        return ServerProcess.start(
            command=[self.python, "-m", "flight_server"],
            directory=self.directory,
            data_dir=data_dir,
            memory_limit="2GiB",
            max_datasets=datasets + 100_000,
        )


@dataclass(frozen=True)
class Start:
    """One start over a full data directory."""

    seconds: float
    rss_bytes: int
    first_read_seconds: float


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks records --")
    parser.add_argument("--against", type=Path, help="a clone whose server is measured, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--calls", type=int, default=600, help="puts, and commits, of a round")
    parser.add_argument("--datasets", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--starts", type=int, default=3, help="of each server with each data directory")
    parser.add_argument("--directory", type=Path, help="where the data directories lie")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    trees = [Tree("this tree", ROOT)]
    if options.against is not None:
        trees.append(Tree(options.against.name, options.against.resolve()))
    console.print(f"[bold]Records[/bold] · {conditions(options.rounds)}")
    with tempfile.TemporaryDirectory(prefix="flight-shuffle-bench-", dir=options.directory) as directory:
        if {"puts", "commits"} & {*options.only}:
            _print_rates(trees, Path(directory, "rates"), options)
        if "datasets" in options.only:
            _print_datasets(trees, Path(directory, "datasets"), options.datasets, options.starts)
        if "partitions" in options.only:
            _print_partitions(trees, Path(directory, "partitions"), options.partitions, options.starts)
        if "idle" in options.only:
            _print_idle(trees, Path(directory, "idle"), options.rounds)


# Puts and commits


def _print_rates(trees: Sequence[Tree], directory: Path, options: argparse.Namespace) -> None:
    """Each with the servers of all trees beside each other, of which one is at work."""
    rows: list[list[str]] = []
    for members in options.clients:
        with _servers(trees, directory / str(members)) as servers, ExitStack() as stack:
            crowds = {
                tree: stack.enter_context(Clients(server.location, members))
                for tree, server in servers.items()
            }
            if "puts" in options.only:
                puts = {tree: partial(crowd.durable_puts, options.calls) for tree, crowd in crowds.items()}
                rows += _rates("durable put", members, servers, puts, options.rounds)
            if "commits" in options.only:
                for crowd in crowds.values():
                    crowd.create_changelog("log")
                works = {tree: partial(crowd.commits, "log", options.calls) for tree, crowd in crowds.items()}
                rows += _rates("commit of a row", members, servers, works, options.rounds)
    columns = ["call", "clients", "server", "a second", "x the other", "slowest round", "server CPU ms each"]
    table(f"Durable puts and commits, {options.calls} in each round", columns, rows)


def _rates(
    call: str,
    members: int,
    servers: dict[Tree, ServerProcess],
    works: Mapping[Tree, Callable[[], int]],
    rounds: int,
) -> list[list[str]]:
    subjects = [Subject(tree.name, works[tree], server.pid) for tree, server in servers.items()]
    measure(subjects, rounds)
    rows = []
    for subject in subjects:
        rates = [sample.delivered_bytes / sample.seconds for sample in subject.samples]
        cpu_ms = subject.median(lambda sample: 1e3 * sample.server_cpu_seconds / sample.delivered_bytes)
        others = [each for each in subjects if each is not subject]
        ratios = [
            mine.gb_per_second / theirs.gb_per_second
            for other in others
            for mine, theirs in zip(subject.samples, other.samples, strict=True)
        ]
        rows.append(
            [
                call,
                str(members),
                subject.name,
                f"{statistics.median(rates):.0f}",
                f"{statistics.median(ratios):.2f}" if ratios else "",
                f"{min(rates):.0f}",
                f"{cpu_ms:.2f}",
            ]
        )
    return rows


@contextmanager
def _servers(trees: Sequence[Tree], directory: Path) -> Iterator[dict[Tree, ServerProcess]]:
    with ExitStack() as stack:
        yield {tree: stack.enter_context(tree.start(_data_dir(directory, tree))) for tree in trees}


def _data_dir(directory: Path, tree: Tree) -> Path:
    data_dir = directory / tree.directory.name
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    return data_dir


# Starts with much, and dropping it

_FULL_COLUMNS = ["server", "fill s", "ready s", "slowest", "RSS MiB", "first read ms", "drop s", "disk MiB"]


def _print_datasets(trees: Sequence[Tree], directory: Path, datasets: int, starts: int) -> None:
    fill_seconds: dict[Tree, float] = {}
    for tree in trees:
        data_dir = _data_dir(directory, tree)
        with (
            tree.start(data_dir, datasets=datasets) as server,
            Clients(server.location, FILLING_CLIENTS) as clients,
        ):
            fill_seconds[tree] = _seconds(lambda: clients.fill(datasets))
            server.terminate()
    title = f"A start with {datasets:,} durable datasets of one small frame, and the drop of all of them"
    rows = []
    measured = _starts(trees, directory, datasets, starts, first_filled())
    for tree in trees:
        data_dir = _data_dir(directory, tree)
        disk_bytes = _disk_bytes(data_dir)
        with (
            tree.start(data_dir, datasets=datasets) as server,
            Clients(server.location, FILLING_CLIENTS) as clients,
        ):
            drop_seconds = _seconds(lambda: clients.drop(datasets))
            server.terminate()
        rows.append(_full_row(tree, fill_seconds[tree], measured[tree], drop_seconds, disk_bytes))
    table(title, _FULL_COLUMNS, rows)


def _print_partitions(trees: Sequence[Tree], directory: Path, partitions: int, starts: int) -> None:
    fill_seconds: dict[Tree, float] = {}
    for tree in trees:
        with tree.start(_data_dir(directory, tree)) as server:
            fill = partial(put_wide, server.location, server.http, WIDE, partitions)
            fill_seconds[tree] = _seconds(fill)
            server.terminate()
    rows = []
    measured = _starts(trees, directory, 1, starts, f"{WIDE}/{partitions // 2}")
    for tree in trees:
        data_dir = _data_dir(directory, tree)
        disk_bytes = _disk_bytes(data_dir)
        with tree.start(data_dir) as server, Clients(server.location, 1) as clients:
            drop_seconds = _seconds(lambda: clients.drop_one(WIDE))
            server.terminate()
        rows.append(_full_row(tree, fill_seconds[tree], measured[tree], drop_seconds, disk_bytes))
    table(f"A start with one durable dataset of {partitions:,} partitions, and its drop", _FULL_COLUMNS, rows)


def _starts(
    trees: Sequence[Tree], directory: Path, datasets: int, starts: int, first_read: str
) -> dict[Tree, list[Start]]:
    """Starts of each tree over its full directory, in turn. A server must serve ``datasets``."""
    measured: dict[Tree, list[Start]] = defaultdict(list)
    for number in range(starts):
        turn = number % len(trees)
        for tree in [*trees[turn:], *trees[:turn]]:
            began = time.perf_counter()
            with tree.start(_data_dir(directory, tree), datasets=datasets) as server:
                seconds = time.perf_counter() - began
                rss_bytes = server.rss_bytes()
                with Clients(server.location, 1) as clients:
                    first_read_seconds = clients.read_one(first_read)
                served = _served(server)
                assert served == datasets, f"{tree.name} serves {served} of {datasets} datasets"
                measured[tree].append(Start(seconds, rss_bytes, first_read_seconds))
                server.terminate()
    return measured


def _full_row(
    tree: Tree, fill_seconds: float, starts: list[Start], drop_seconds: float, disk_bytes: int
) -> list[str]:
    return [
        tree.name,
        f"{fill_seconds:.1f}",
        f"{statistics.median(each.seconds for each in starts):.2f}",
        f"{max(each.seconds for each in starts):.2f}",
        f"{statistics.median(each.rss_bytes for each in starts) / MIB:.0f}",
        f"{1e3 * statistics.median(each.first_read_seconds for each in starts):.1f}",
        f"{drop_seconds:.1f}",
        f"{disk_bytes / MIB:.0f}",
    ]


def _served(server: ServerProcess) -> int:
    """How many datasets the server has, by its own count."""
    with urlopen(f"{server.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[1]) for line in lines if line.startswith("flight_shuffle_datasets{")))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _disk_bytes(directory: Path) -> int:
    """What all files take on the disk, with the rest of their last blocks."""
    return sum(512 * path.lstat().st_blocks for path in directory.rglob("*"))


# At rest


def _print_idle(trees: Sequence[Tree], directory: Path, rounds: int) -> None:
    sizes: dict[Tree, list[tuple[int, int]]] = defaultdict(list)
    for number in range(rounds):
        turn = number % len(trees)
        for tree in [*trees[turn:], *trees[:turn]]:
            with tree.start(_data_dir(directory / str(number), tree)) as server:
                time.sleep(SETTLE_SECONDS)
                found = sizes_bytes([server.pid])
                sizes[tree].append((found["Rss"], found["Anonymous"]))
    rows = []
    for tree in trees:
        rss, anonymous = zip(*sizes[tree], strict=True)
        rows.append(
            [
                tree.name,
                *(f"{statistics.median(each) / MIB:.1f}" for each in (rss, anonymous)),
                f"{max(rss) / MIB:.1f}",
            ]
        )
    table(
        "An idle server with a data directory; MiB",
        ["server", "RSS", "anonymous", "largest RSS"],
        rows,
    )
