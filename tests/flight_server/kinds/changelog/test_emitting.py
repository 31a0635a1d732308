"""What a rule emits: each pair once in the other changelog, also after a crash at any step, or the reason why not."""

from __future__ import annotations

import asyncio
import base64
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog import emitting, views, writes
from flight_server.kinds.changelog.changelog import Changelog
from flight_server.kinds.changelog.runs import RunFile, run_files
from flight_server.protocol import CreateRequest, KeepRule, Kind, Unavailable
from flight_server.records import DiskTrouble
from tests.support.background_tasks import idle
from tests.support.changelog_store import NAME, Engine, snapshot_of
from tests.support.crash_points import CrashPoints, Image
from tests.support.stored_rows import damage, put_back, rows_of

TARGET = "latencies"
SCHEMA = pa.schema([("message", pa.int64()), ("kind", pa.string()), ("at", pa.int64())])
PAIR = {
    "rule": "pair",
    "key": ["message"],
    "kind": "kind",
    "values": ["send", "recv"],
    "order_by": ["at"],
    "emit": TARGET,
}
REQUEST = CreateRequest(
    NAME,
    Kind.CHANGELOG,
    schema=base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(),
    keep=KeepRule.parse(PAIR),
    delay_seconds=0.0,
)


class Emitted(Engine):
    """An engine whose changelog emits."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SCHEMA, PAIR)
        self.run(self.store.emit_again())

    @property
    def target(self) -> Changelog:
        changelog: Changelog = self.store.of(self.catalogue.find(TARGET))
        return changelog

    def put(self, kind: str, *messages: int) -> int:
        at = 10 if kind == "recv" else 3
        return self.commit([((message, kind, at), 1) for message in messages])

    def idle(self) -> None:
        """Until the emitter has done all, and has marked it."""
        self.run(idle(self.background))

    def pairs(self) -> Counter[int]:
        """The messages that the target has."""
        found: Counter[int] = Counter()
        for batch in snapshot_of(self.target.view(), self.target.upper):
            found.update(batch.column("message").to_pylist())
        return found

    def compact(self) -> None:
        """Fold everything, as far as holds let it."""
        self.fold()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 4)
    monkeypatch.setattr(views, "SLICE_ROWS", 4)
    monkeypatch.setattr(run_files, "BLOCK_ROWS", 16)
    monkeypatch.setattr(writes, "CHUNK_ROWS", 20)
    monkeypatch.setattr(emitting, "MARK_SECONDS", 0.01)
    monkeypatch.setattr(emitting, "TROUBLE_SECONDS", 0.01)


@pytest.fixture
def engine(base: Path) -> Iterator[Emitted]:
    made = Emitted(base)
    yield made
    made.close()
    vars(made).clear()  # the fixture's value outlives the look for what is left


# What is put, version by version: the kind and its messages.
PUTS = [
    ("send", range(3)),
    ("recv", range(1, 5)),
    ("send", range(10, 13)),  # emits nothing
    ("recv", range(10, 60)),  # in a run file
    ("send", range(13, 60)),  # 47 pairs, in run files
    ("recv", range(1)),
]


def wanted(upper: int) -> Counter[int]:
    kinds: dict[str, set[int]] = {"send": set(), "recv": set()}
    for kind, messages in PUTS[:upper]:
        kinds[kind].update(messages)
    return Counter(kinds["send"] & kinds["recv"])


def check(image: Image) -> None:
    engine = Emitted(image.path)
    try:
        assert engine.disk.quarantine.entries == [], image.step
        upper = engine.changelog.upper
        assert upper >= image.acknowledged, image.step
        if engine.catalogue.get(TARGET) is None:
            create_again(engine)
        engine.idle()
        assert engine.pairs() == wanted(upper), image.step
        engine.put("send", 99)
        engine.compact()
        engine.put("recv", 99)
        engine.idle()
        assert engine.pairs() == wanted(upper) + Counter([99]), image.step
        assert engine.changelog.not_emitting is None, image.step
    finally:
        engine.close()


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_crash_at_any_step_emits_each_pair_once(base: Path, thorough: bool) -> None:
    root = base / "root"
    root.mkdir()
    with CrashPoints(root, base) as points:
        engine = Emitted(root)
        for number, (kind, messages) in enumerate(PUTS, 1):
            assert engine.put(kind, *messages) == number
            points.acknowledged = number
            if number != 2:  # the next emission is of two versions
                engine.idle()
                engine.compact()
        assert engine.pairs() == wanted(len(PUTS))
        assert any(isinstance(run, RunFile) for run in engine.target.contents.runs)
        engine.close()
    assert len(points.images) > 60
    for image in points.of_each_kind(thorough=thorough):
        check(image)
        shutil.rmtree(image.path)


def test_what_was_not_emitted_is_kept_however_late_it_is(engine: Emitted) -> None:
    async def held() -> None:
        async with engine.target.turn:
            for kind in ("send", "recv"):
                for message in range(10):
                    rows = pa.RecordBatch.from_pylist([{"message": message, "kind": kind, "at": 1}], SCHEMA)
                    write = engine.store.write(engine.catalogue.find(NAME))
                    await write.add(rows, engine.catalogue.budget.frames.reserve(rows.nbytes))
                    await write.commit()
            for late in (1e6, 2e6):  # the first look finds that it is out of date
                engine.changelog.holds.expire(time.monotonic() + late, engine.changelog.upper)
            assert engine.changelog.advanced_since(time.monotonic()) < 20

    engine.run(held())
    engine.compact()
    engine.idle()
    assert engine.pairs() == Counter(range(10))


def test_it_marks_how_far_it_has_come_while_writes_go_on_that_emit_nothing(engine: Emitted) -> None:
    end = time.monotonic() + 60.0
    message = 0
    while engine.changelog.advanced_since(time.monotonic()) < 20:
        assert time.monotonic() < end, "nothing can be compacted"
        message += 1
        engine.put("send", message)
    assert engine.target.upper > 0
    assert engine.pairs() == Counter()


def create_again(engine: Emitted) -> None:
    engine.run(engine.store.create(REQUEST, SchemaMessage.of(SCHEMA)))


def not_emitting(engine: Emitted) -> str:
    return str(engine.changelog.statistics()["not_emitting"])


def test_an_emitter_whose_mark_was_compacted_says_so_until_the_target_is_made_anew(base: Path) -> None:
    engine = Emitted(base)
    engine.put("send", 1, 2)
    engine.put("recv", 1)
    engine.idle()
    row = engine.target.records.row
    assert row is not None
    old = rows_of(engine.catalogue.records, row)
    engine.put("recv", 2)
    engine.put("send", 3)
    engine.idle()
    engine.compact()
    engine.close()
    put_back(base, row, old)

    engine = Emitted(base)
    assert "what came in between is lost" in not_emitting(engine)
    assert engine.changelog.holds.oldest() is None
    engine.put("recv", 3)
    create_again(engine)
    engine.idle()
    assert engine.pairs() == Counter([1])
    assert "what came in between is lost" in not_emitting(engine)
    engine.run(engine.catalogue.remove(TARGET))
    since = engine.changelog.since
    create_again(engine)
    engine.idle()
    assert since < engine.changelog.upper
    assert engine.pairs() == Counter([3])
    assert engine.changelog.not_emitting is None
    engine.close()


def test_a_target_that_was_dropped_is_shown_and_holds_nothing(engine: Emitted) -> None:
    engine.put("send", 1, 2)
    engine.idle()
    engine.run(engine.catalogue.remove(TARGET))
    engine.store.expire_holds()
    assert f"{TARGET!r} was dropped; create {NAME!r} again" in not_emitting(engine)
    assert engine.changelog.holds.oldest() is None
    engine.put("recv", 1)
    engine.compact()
    create_again(engine)
    assert engine.changelog.not_emitting is None
    engine.put("recv", 2)
    engine.idle()
    assert engine.pairs() == Counter([2])


@pytest.mark.parametrize("lost", ["dropped", "damaged"])
def test_a_start_does_not_replace_a_target_that_is_not_there(base: Path, lost: str) -> None:
    engine = Emitted(base)
    engine.put("send", 1)
    engine.idle()
    row = engine.target.records.row
    assert row is not None
    if lost == "dropped":
        engine.run(engine.catalogue.remove(TARGET))
    engine.close()
    if lost == "damaged":
        damage(base, row, "UPDATE changelog SET upper = 7 WHERE dataset = ?")
    engine = Emitted(base)
    assert engine.catalogue.get(TARGET) is None
    assert f"then create {NAME!r} again" in not_emitting(engine)
    assert engine.changelog.holds.oldest() is None
    engine.put("recv", 1)
    create_again(engine)
    engine.idle()
    assert engine.changelog.not_emitting is None
    engine.close()


def test_a_target_that_is_damaged_is_shown_and_holds_nothing(engine: Emitted) -> None:
    engine.put("send", 1)
    engine.idle()
    engine.target.step("damage")
    engine.put("recv", 1)
    engine.idle()
    assert f"{TARGET!r} is damaged and takes nothing more" in not_emitting(engine)
    assert engine.changelog.holds.oldest() is None
    create_again(engine)
    assert "is damaged" in not_emitting(engine)


def test_a_target_that_refuses_is_shown_and_gets_everything_once_when_it_takes_rows_again(
    engine: Emitted,
) -> None:
    refused = asyncio.Event()

    async def refusing(*arguments: Any, **options: Any) -> None:
        refused.set()
        raise DiskTrouble("no space left on device", full=True)

    disk_refuses = pytest.MonkeyPatch()
    disk_refuses.setattr(engine.target.records, "add", refusing)
    for number in range(3):
        engine.put("send", number)
        engine.put("recv", number)
        engine.run(refused.wait())
        refused.clear()
    marked = engine.changelog.holds.oldest()
    assert "no space left on device" in not_emitting(engine)
    assert f"versions from {marked} on are kept for it" in not_emitting(engine)
    engine.compact()
    assert engine.changelog.since == marked
    disk_refuses.undo()
    engine.idle()
    assert engine.pairs() == Counter(range(3))
    assert engine.changelog.not_emitting is None


def test_a_target_that_cannot_be_made_now_gets_everything_when_it_is(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Emitted(base)
    engine.run(engine.catalogue.remove(TARGET))
    engine.store.expire_holds()
    made = engine.store._made

    async def refusing(*arguments: Any) -> Any:
        raise Unavailable("the disk refuses")

    monkeypatch.setattr(engine.store, "_made", refusing)
    with pytest.raises(Unavailable):
        create_again(engine)
    assert "the disk refuses" in not_emitting(engine)
    engine.put("send", 1)
    engine.put("recv", 1)
    engine.compact()
    monkeypatch.setattr(engine.store, "_made", made)
    create_again(engine)
    engine.idle()
    assert engine.pairs() == Counter([1])
    engine.close()


def test_creates_at_once_make_one_emitter(base: Path) -> None:
    engine = Emitted(base)
    engine.put("send", 1)
    engine.idle()
    engine.run(engine.catalogue.remove(TARGET))
    engine.store.expire_holds()

    async def many() -> None:
        creates = (engine.store.create(REQUEST, SchemaMessage.of(SCHEMA)) for _ in range(4))
        await asyncio.gather(*creates)

    engine.run(many())
    assert engine.changelog.holds.followers == 1
    engine.put("recv", 1)
    engine.idle()
    assert engine.pairs() == Counter([1])
    engine.close()
