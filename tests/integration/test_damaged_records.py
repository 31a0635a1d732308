"""A database of records that was damaged on disk: the start says so, keeps it, and serves what is whole.

Of each dataset that was acknowledged a reader gets what was written last, or an error that says that data was lost;
never an older generation, and never that there is no such dataset. What was dropped is never read again. The files of
what is not served are kept.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.damaging import DATABASE, LOG, WITNESS, cut, flip, is_refused, quarantine
from tests.support.durable import action, files, get, names, put, put_attempt, table
from tests.support.faulty_disk import FaultyServer
from tests.support.ram_directory import ram_directory
from tests.support.rates import RATES, rates_of
from tests.support.server_process import ServerProcess

KEPT = 8
PARTITIONS = 3
CHANGELOG = "log"
ASIDE = "records.damaged-*"


@dataclass(frozen=True)
class Image:
    """A data directory, and what its server had acknowledged: tables, None for what was dropped; ``versions`` of the
    changelog, of one row each.
    """

    path: Path
    tables: dict[str, pa.Table | None]
    versions: int


def written(seed: int) -> pa.Table:
    return table(200, seed=1000 * seed)


class Life:
    """A server, and what it acknowledges."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.tables: dict[str, pa.Table | None] = {}
        self.versions = 0

    def __enter__(self) -> Self:
        self._server = FaultyServer.start(self.data_dir)
        self._client = flight.connect(self._server.location)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()
        self._server.close()

    def put(self, name: str, seed: int) -> None:
        overwrites = self.tables.get(name) is not None
        if not overwrites:
            action(self._client, "create", dataset=name, durable=True)
        put(self._client, written(seed), dataset=name, mode="overwrite" if overwrites else "create")
        self.tables[name] = written(seed)

    def shuffle(self, name: str) -> None:
        action(self._client, "create", dataset=name, kind="shuffle", partitions=PARTITIONS, durable=True)
        put_attempt(self._client, name, {number: written(50 + number) for number in range(PARTITIONS)})
        action(self._client, "seal", dataset=name)

    def drop(self, name: str) -> None:
        action(self._client, "drop", dataset=name)
        self.tables[name] = None

    def commit(self, versions: int) -> None:
        if not self.versions:
            changelogs.create(self._client, CHANGELOG, RATES, delay_seconds=3600)
        for _ in range(versions):
            self.versions += 1
            changelogs.put(self._client, CHANGELOG, rates_of(("EUR", self.versions, 1.0)))

    def stop(self) -> None:
        assert self._server.terminate() == 0

    def kill(self) -> None:
        self._server.kill()

    def image(self, path: Path) -> Image:
        shutil.copytree(self.data_dir, path)
        return Image(path, dict(self.tables), self.versions)


@dataclass(frozen=True)
class Images:
    """``clean`` was stopped, so that its log is empty; ``killed`` has its last transactions in the log. ``earlier`` is
    as it was before the last changes of ``clean``.
    """

    earlier: Image
    clean: Image
    killed: Image


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    with ram_directory() as base:
        life = Life(base / "data")
        with life:
            for number in range(KEPT):
                life.put(f"kept-{number}", number)
            life.put("overwritten", 20)
            life.put("dropped", 21)
            life.shuffle("shuffle")
            life.commit(3)
            life.stop()
        earlier = life.image(base / "earlier")
        with life:
            life.put("overwritten", 22)
            life.drop("dropped")
            life.put("new", 23)
            life.commit(3)
            life.stop()
        clean = life.image(base / "clean")
        with life:
            life.put("last-0", 30)
            life.put("overwritten", 31)
            life.drop("kept-7")
            life.put("last-1", 32)
            life.commit(2)
            life.kill()
        yield Images(earlier, clean, life.image(base / "killed"))


Served = Callable[[Image, Callable[[Path], object]], set[str]]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """Damages a copy of an image and starts a server there, twice; the names that it serves whole. The rest is as the
    module's text says.
    """
    data_dir = tmp_path / "data"

    def damage(image: Image, damage: Callable[[Path], object]) -> set[str]:
        shutil.rmtree(data_dir, ignore_errors=True)
        shutil.copytree(image.path, data_dir)
        damage(data_dir)
        with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
            whole = looked_at(client, image, data_dir)
            action(client, "create", dataset="after", durable=True)
            put(client, written(60), dataset="after")
            server.kill()
        with FaultyServer.start(data_dir) as server, closing(flight.connect(server.location)) as client:
            assert get(client, "after") == written(60)
            assert looked_at(client, image, data_dir) == whole
        return whole

    return damage


def looked_at(client: flight.FlightClient, image: Image, data_dir: Path) -> set[str]:
    """The names that are served whole."""
    whole = set()
    for name, data in image.tables.items():
        if data is None:
            with suppress(pa.ArrowKeyError):
                assert is_refused(client, name), f"{name} was dropped"
        elif not is_refused(client, name):
            assert get(client, name) == data, f"{name} has other rows than were written last"
            whole.add(name)
    if not is_refused(client, "shuffle"):
        whole.add("shuffle")
        for number in range(PARTITIONS):
            try:
                assert get(client, "shuffle", number) == written(50 + number)
            except flight.FlightInternalError:
                whole.discard("shuffle")
    if [*data_dir.glob(ASIDE)] and CHANGELOG not in names(client):
        pass  # its small puts were in the database only, which may be none any more
    elif is_whole_changelog(client, image.versions):
        whole.add(CHANGELOG)
    assert names(client) <= {*image.tables, "shuffle", CHANGELOG, "after"}
    listed = quarantine(client)
    refused = {name for name, data in image.tables.items() if data is not None} - whole
    assert refused <= {entry["dataset"] for entry in listed}
    folder = data_dir / "segments"
    kept = {entry["dataset"] for entry in listed if any((folder / name).exists() for name in entry["files"])}
    # An earlier generation's row may be back, but not its files.
    assert refused <= kept
    return whole


def is_whole_changelog(client: flight.FlightClient, versions: int) -> bool:
    """Whether all versions are there. One that lacks the last takes no more."""
    try:
        step = changelogs.read(client, CHANGELOG)
    except flight.FlightInternalError as error:
        if "data loss" in str(error):
            return False
        raise
    assert [time for _, time, _ in sorted(step.rows)] == [*range(1, step.version + 1)]
    assert step.version <= versions
    if step.version < versions:
        with pytest.raises(flight.FlightInternalError, match="damaged"):
            changelogs.put(client, CHANGELOG, rates_of(("EUR", 100, 1.0)))
    return step.version == versions


def flipped(file: Path, place: int) -> Callable[[Path], None]:
    """Flips a bit of that file of a data directory."""
    return lambda data_dir: flip(data_dir / file, place)


def everything(image: Image) -> set[str]:
    return {name for name, data in image.tables.items() if data is not None} | {"shuffle", CHANGELOG}


@pytest.mark.long
def test_what_is_not_damaged_is_served(images: Images, served: Served) -> None:
    for image in (images.clean, images.killed):
        assert served(image, lambda _: None) == everything(image)


@pytest.mark.parametrize("count", [1, pytest.param(120, marks=pytest.mark.long)])
def test_a_flipped_bit_anywhere_in_the_database_costs_no_more_than_it_must(
    images: Images, served: Served, count: int
) -> None:
    size_bytes = (images.clean.path / DATABASE).stat().st_size
    chance = random.Random(count)
    least = len(everything(images.clean))
    for _ in range(count):
        place = chance.randrange(size_bytes)
        whole = served(images.clean, flipped(DATABASE, place))
        least = min(least, len(whole))
    print(f"{least} of {len(everything(images.clean))} datasets were served in the worst case")


@pytest.mark.long
@pytest.mark.parametrize("place", [0, 30, 100, 4096 + 2])
def test_a_database_with_a_broken_head_is_set_aside(images: Images, served: Served, place: int) -> None:
    served(images.clean, flipped(DATABASE, place))


@pytest.mark.long
def test_a_database_that_is_none_is_set_aside_and_no_file_is_deleted(
    images: Images, served: Served, tmp_path: Path
) -> None:
    frames = {path.name for path in files(images.clean.path)}
    for damage in (
        lambda data_dir: (data_dir / DATABASE).write_bytes(b"this is not a database " * 1000),
        lambda data_dir: (data_dir / DATABASE).write_bytes(b""),
        lambda data_dir: (data_dir / DATABASE).unlink(),
    ):
        served(images.clean, damage)
        assert frames <= {path.name for path in files(tmp_path / "data")}


@pytest.mark.parametrize(
    "size_bytes",
    [5_000, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 20_000, 1 << 30))],
)
def test_a_log_that_was_cut_is_noticed(images: Images, served: Served, size_bytes: int) -> None:
    whole = served(images.killed, lambda data_dir: cut(data_dir / LOG, size_bytes))
    assert {f"kept-{number}" for number in range(KEPT - 1)} <= whole


@pytest.mark.long
def test_a_log_that_is_gone_is_noticed(images: Images, served: Served) -> None:
    whole = served(images.killed, lambda data_dir: (data_dir / LOG).unlink())
    assert {f"kept-{number}" for number in range(KEPT - 1)} <= whole
    assert "overwritten" not in whole


@pytest.mark.long
def test_a_flipped_bit_anywhere_in_the_log_is_noticed(images: Images, served: Served) -> None:
    size_bytes = (images.killed.path / LOG).stat().st_size
    chance = random.Random(1)
    for _ in range(40):
        place = chance.randrange(size_bytes)
        served(images.killed, flipped(LOG, place))


def test_an_older_copy_that_was_put_back_is_noticed(images: Images, served: Served) -> None:
    def put_back(data_dir: Path) -> None:
        (data_dir / LOG).unlink(missing_ok=True)
        shutil.copy(images.earlier.path / DATABASE, data_dir / DATABASE)

    whole = served(images.clean, put_back)
    assert {f"kept-{number}" for number in range(KEPT - 1)} <= whole
    assert not {"overwritten", "new"} & whole


@pytest.mark.long
def test_a_witness_that_is_damaged_or_gone_costs_nothing(images: Images, served: Served) -> None:
    for damage in (
        lambda data_dir: (data_dir / WITNESS).unlink(),
        lambda data_dir: (data_dir / WITNESS).write_bytes(b""),
        lambda data_dir: flip(data_dir / WITNESS, 3),
    ):
        assert served(images.killed, damage) == everything(images.killed)


def test_the_start_says_what_is_damaged_and_keeps_it(
    images: Images, tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(images.clean.path, data_dir)
    (data_dir / DATABASE).write_bytes(b"this is not a database " * 1000)
    server = flight_server_process(data_dir=data_dir)
    (aside,) = data_dir.glob(ASIDE)
    assert (aside / DATABASE.name).read_bytes().startswith(b"this is not a database")
    assert any(aside.name in line for line in server.log), server.tail()
    with closing(flight.connect(server.location)) as client:
        listed = {entry["dataset"] for entry in quarantine(client)}
        assert {name for name, data in images.clean.tables.items() if data is not None} <= listed
        (event,) = server.events("records_damaged")
        assert all(name in str(event["quarantined"]) for name in listed)
