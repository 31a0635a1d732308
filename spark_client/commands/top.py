"""``top``: pools, throughput, waits, slowest readers and servers, again and again."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from flight_server.protocol import FlightShuffleError
from spark_client import ShuffleClient

from . import ctrl_c
from .connected import NUMBERS_NEED, Link, connected
from .dataset_commands import WAIT_COLUMNS, wait_rows
from .printing import console, print_json, printable, size, table, used

SHOWN = 8
"""How many waits, and how many readers."""
_BAR_CHARACTERS = 20
_RATES = ("bytes_in", "bytes_out", "rows_in", "frames_in", "frames_out", "spilled_bytes", "puts", "gets")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top")(connected(_top))


@dataclass(frozen=True)
class Look:
    """What the servers say at one moment."""

    seconds: float
    statistics: Mapping[str, Any]
    waits: list[dict[str, Any]]

    @classmethod
    def take(cls, client: ShuffleClient) -> Look:
        waits = sorted(client.why(), key=lambda each: -each["seconds"])
        return cls(time.monotonic(), client.statistics(), waits)

    def rates(self, before: Look) -> dict[str, float]:
        """By counter, for each second since; 0 where a server was started again meanwhile."""
        elapsed = max(self.seconds - before.seconds, 1e-9)
        return {
            name: max(0.0, (self.statistics.get(name, 0) - before.statistics.get(name, 0)) / elapsed)
            for name in _RATES
        }


def _top(
    link: Link,
    *,
    interval: Annotated[float, typer.Option(help="seconds between two looks", min=0.05)] = 1.0,
    count: Annotated[
        int | None, typer.Option(help="how many looks; default: until q on a terminal, else 1", min=1)
    ] = None,
) -> None:
    """Show pools, throughput, waits, the slowest readers and all servers, live; q or Ctrl-C ends it."""
    with link.client() as client:
        if link.as_json or not sys.stdout.isatty():
            _print(link, client, interval, count or 1)
        else:
            _live(client, interval, count)


def _print(link: Link, client: ShuffleClient, interval: float, count: int) -> None:
    before = Look.take(client)
    for _ in range(count):
        time.sleep(interval)
        look = Look.take(client)
        if link.as_json:
            print_json(_to_json(look, before))
        else:
            console().print(_shown(look, before))
        before = look


def _to_json(look: Look, before: Look) -> dict[str, Any]:
    said = look.statistics
    return {
        "per_second": {name: round(rate, 1) for name, rate in look.rates(before).items()},
        "waits": look.waits,
        **{name: said.get(name) for name in ("memory", "disk", "slowest_readers", "servers")},
    }


def _live(client: ShuffleClient, interval: float, count: int | None) -> None:
    with _keys() as pressed, Live(console=console(), screen=True, auto_refresh=False) as live:
        before = look = Look.take(client)
        looks = 0
        while True:
            live.update(_shown(look, before), refresh=True)
            looks += 1
            if looks == count or pressed(interval) in ("q", "Q"):
                return
            try:
                before, look = look, Look.take(client)
            except FlightShuffleError as error:
                live.update(Text(f"no answer, asked again: {printable(error.message)}"), refresh=True)
                if pressed(interval) in ("q", "Q"):
                    return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key, which it returns, or an empty text. The terminal does not show
    keys until the block ends, which puts it back as it was.
    """
    if not sys.stdin.isatty():

        def asleep(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield asleep
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        if ctrl_c.seen():
            raise KeyboardInterrupt
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _shown(look: Look, before: Look) -> RenderableType:
    said, rates = look.statistics, look.rates(before)
    parts: list[RenderableType] = []
    if "memory" in said:
        servers = [_server(each) for each in said.get("servers", ())]
        parts += [
            Text(
                f"in {size(round(rates['bytes_in']))}/s  out {size(round(rates['bytes_out']))}/s  "
                f"{rates['puts']:,.0f} puts/s  {rates['gets']:,.0f} gets/s  "
                f"spilled {size(round(rates['spilled_bytes']))}/s"
            ),
            Text(),
            table(("pool", "", ">used", ">waiting"), _pools(said)),
            Text(),
            table(("server", ">memory", ">disk", ">datasets", "state"), servers),
        ]
    else:
        parts.append(Text(NUMBERS_NEED))
    if look.waits:
        title = f"{len(look.waits):,} streams wait"
        parts += [Text(), table(WAIT_COLUMNS, wait_rows(look.waits[:SHOWN]), title)]
    slowest = [each for each in said.get("slowest_readers") or () if each["lag_bytes"]][:SHOWN]
    if slowest:
        rows = [(e["dataset"], e["partition"], size(e["lag_bytes"]), e["peer"]) for e in slowest]
        parts += [Text(), table(("slowest readers", "partition", ">behind", "peer"), rows)]
    return Group(*parts)


def _pools(said: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    pools = {"memory": said["memory"], **said["memory"].get("accounts", {}), "disk": said["disk"]}
    for name, pool in pools.items():
        label = name if name in ("memory", "disk") else f"  {name}"
        yield (
            label,
            _bar(pool["used_bytes"], pool["limit_bytes"]),
            used(pool["used_bytes"], pool["limit_bytes"]),
            pool["waiting"],
        )


def _bar(used_bytes: int, limit_bytes: int | None) -> str:
    full = 0 if not limit_bytes else min(_BAR_CHARACTERS, round(_BAR_CHARACTERS * used_bytes / limit_bytes))
    return "█" * full + "░" * (_BAR_CHARACTERS - full)


def _server(server: Mapping[str, Any]) -> tuple[object, ...]:
    if server["gone"] is not None:
        return server["location"], None, None, None, f"gone: {server['gone']}"
    memory, disk = (
        used(server[f"{part}_used_bytes"], server[f"{part}_limit_bytes"]) for part in ("memory", "disk")
    )
    return (
        server["location"],
        memory,
        disk,
        server["datasets"],
        "draining" if server["draining"] else "serving",
    )
