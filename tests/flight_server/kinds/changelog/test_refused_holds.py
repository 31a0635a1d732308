"""Holds whose write the disk refuses, or that are being written: they are what they were, and no fold passes them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from flight_server.protocol import HoldRequest, Unavailable
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine
from tests.support.keep_model import SCHEMA
from tests.support.no_room import no_room
from tests.support.ram_directory import ram_directory

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}


@pytest.fixture
def engine() -> Iterator[Engine]:
    """With three versions, holds at the first and the second, and one at the second that has lapsed."""
    with ram_directory() as path:
        made = Engine(path, SCHEMA, LATEST)
        for number in range(3):
            made.commit([(("key", number, "bid", number), 1)])
        made.run(hold(made, "lapsed", version=2, lease_seconds=1e-9))
        made.store.expire_holds()
        made.run(hold(made, "reader", version=1))
        made.run(hold(made, "other", version=2))
        yield made
        made.close()
        vars(made).clear()  # the fixture's value outlives the look for what is left


async def hold(engine: Engine, name: str, **request: Any) -> dict[str, object]:
    asked = HoldRequest(NAME, name, **{"lease_seconds": 60.0, "owner": "job 1", **request})
    return await engine.store.hold(engine.catalogue.find(NAME), asked, anyone(engine.catalogue))


def held(engine: Engine) -> tuple[dict[str, tuple[object, ...]], dict[str, int]]:
    holds = engine.changelog.holds
    named: dict[str, tuple[object, ...]] = {
        name: (each.version, each.until, each.since, each.owner) for name, each in holds.named.items()
    }
    return named, {name: each.version for name, each in holds.lapsed.items()}


def versions(engine: Engine) -> dict[str, object]:
    named, _ = held(engine)
    return {name: named[name][0] for name in ("reader", "other") if name in named}


def held_after_a_crash(engine: Engine) -> dict[str, object]:
    """The versions of the two holds in a store that starts with a copy of the files."""
    copy = engine.directory / "copy"
    engine.copy_to(copy)
    again = Engine(copy, SCHEMA, LATEST)
    try:
        return versions(again)
    finally:
        again.close()


@contextmanager
def waiting_writes(engine: Engine) -> Iterator[None]:
    """Inside, no hold is written."""
    go_on = threading.Event()
    engine.catalogue.records.submit(lambda connection: go_on.wait(30.0))
    try:
        yield
    finally:
        go_on.set()


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "renewed": ("reader", {"lease_seconds": 90.0, "owner": "job 2"}),
    "moved": ("reader", {"version": 3, "owner": "job 2"}),
    "moved, and another released": ("reader", {"version": 3, "releases": "other"}),
    "new": ("new", {"version": 2}),
    "asked for again": ("lapsed", {}),
    "moved, and one forgotten that has lapsed": ("reader", {"version": 3, "releases": "lapsed"}),
    "released": ("reader", {"release": True}),
    "forgotten": ("lapsed", {"release": True}),
}


@pytest.mark.parametrize(("name", "request_body"), REQUESTS.values(), ids=REQUESTS)
def test_the_holds_are_what_they_were_when_the_disk_refuses_one(
    name: str, request_body: dict[str, Any], engine: Engine
) -> None:
    before = held(engine)
    with no_room(), pytest.raises(Unavailable, match="ask again"):
        engine.run(hold(engine, name, **request_body))
    assert held(engine) == before
    assert engine.changelog.holds.followers == 0
    assert held_after_a_crash(engine) == {"reader": 1, "other": 2}
    engine.run(hold(engine, name, **request_body))
    assert held(engine) != before


@pytest.mark.parametrize("refuses", [False, True])
def test_no_fold_passes_the_versions_before_and_after_while_a_hold_is_moved(
    refuses: bool, engine: Engine
) -> None:
    changelog = engine.changelog

    async def work() -> None:
        with no_room() if refuses else nullcontext():
            with waiting_writes(engine):
                moving = asyncio.ensure_future(hold(engine, "reader", version=2, releases="other"))
                await asyncio.sleep(0.01)
                assert changelog.advanced_since(time.monotonic()) == 1
                changelog.holds.expire(time.monotonic() + 61.0, 3)
                assert changelog.advanced_since(time.monotonic()) == 1, (
                    "no lease ends while its change is written"
                )
            with pytest.raises(Unavailable) if refuses else nullcontext():
                await moving

    engine.run(work())
    if refuses:
        changelog.holds.expire(time.monotonic() + 61.0, 3)
    assert held(engine)[1].get("reader") == (1 if refuses else None)
    assert changelog.advanced_since(time.monotonic()) == (3 if refuses else 2)


def test_a_hold_whose_lease_ends_while_it_is_renewed_is_there_after_a_crash(engine: Engine) -> None:
    async def work() -> None:
        await hold(engine, "reader", version=1, lease_seconds=0.05)
        with waiting_writes(engine):
            renewing = asyncio.ensure_future(hold(engine, "reader", lease_seconds=600.0))
            await asyncio.sleep(0.1)
            engine.store.expire_holds()
        assert (await renewing)["version"] == 1

    engine.run(work())
    assert held_after_a_crash(engine) == {"reader": 1, "other": 2}


def test_a_hold_that_has_lapsed_is_taken_again_after_a_start(engine: Engine) -> None:
    engine.commit([(("key", 4, "bid", 4), 1)])
    copy = engine.directory / "copy"
    engine.copy_to(copy)
    again = Engine(copy, SCHEMA, LATEST)
    again.run(hold(again, "reader", release=True))
    again.run(hold(again, "other", release=True))
    assert again.run(hold(again, "lapsed"))["version"] == 2
    again.run(hold(again, "lapsed", release=True))
    again.close()


def test_a_hold_that_a_cancelled_call_has_moved_is_moved_in_memory_too(engine: Engine) -> None:
    async def work() -> None:
        with waiting_writes(engine):
            moving = asyncio.ensure_future(hold(engine, "reader", version=3, releases="other"))
            await asyncio.sleep(0.01)
            moving.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await moving

    engine.run(work())
    assert versions(engine) == held_after_a_crash(engine) == {"reader": 3}
