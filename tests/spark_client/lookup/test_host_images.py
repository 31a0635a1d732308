"""A host's images: fetched once, kept current by deltas, merged, removed, and never of another version."""

from __future__ import annotations

import errno
import random
import resource
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.host import HostDirectory, directories
from flight_server.protocol import Compacted, OutOfBudget
from spark_client.hosts import HostFiles
from spark_client.joining import Keys
from spark_client.lookup import host_images
from spark_client.lookup.host_images import HostImages, LayerName, open_layers
from spark_client.lookup.images import Image
from spark_client.lookup.lookup_content import LookupContent
from tests.support.host_copies import directory
from tests.support.lookup_contents import content
from tests.support.polling import eventually
from tests.support.versioned_table import VersionedTable

SCHEMA = pa.schema([("key", pa.int64()), ("rate", pa.float64()), ("note", pa.string())])


def rates(changes: dict[int, float | None] | None = None, count: int = 200) -> pa.Table:
    """One row for each key, but for those whose rate is None."""
    chosen: dict[int, float | None] = {key: float(key) for key in range(count)}
    chosen.update(changes or {})
    rows = [{"key": key, "rate": rate, "note": f"n{key}"} for key, rate in chosen.items() if rate is not None]
    return pa.Table.from_pylist(rows, SCHEMA)


def rows_of(image: Image, keys: range = range(400)) -> Counter[str]:
    found = image.find(Keys.of([pa.array(keys, pa.int64())]))
    return Counter(repr(tuple(row.values())) for row in image.take(found, slice(None)).to_pylist())


def rows_in(table: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


def layers(of: LookupContent) -> list[LayerName]:
    prefix = HostImages(of).prefix
    names = [LayerName.parse(key) for key in HostFiles(of.copies).opened(prefix)]
    return sorted((name for name in names if name), key=lambda name: (name.version, name.after or 0))


def test_the_first_version_is_a_snapshot_and_the_next_ones_are_deltas(
    source: VersionedTable, base: Path
) -> None:
    images = HostImages(content(source, SCHEMA, ["key"], base))
    tables = [rates(), rates({3: 0.5, 4: None}), rates({3: 0.5, 300: 7.0})]
    for table in tables:
        version = source.commit(table)
        image = images.at(version)
        assert image.version == version
        assert rows_of(image) == rows_in(table)
        assert rows_of(images.at(version)) == rows_in(table)
    assert source.asked() == ["snapshot 1", "deltas 1 2", "deltas 2 3"]


def test_an_older_version_than_the_newest_is_still_to_be_had(source: VersionedTable, base: Path) -> None:
    images = HostImages(content(source, SCHEMA, ["key"], base))
    tables = [rates(), rates({3: 0.5}), rates({3: 0.7})]
    for table in tables:
        source.commit(table)
    for version in (3, 1, 2, 3):
        assert rows_of(images.at(version)) == rows_in(tables[version - 1])
    assert source.asked() == ["snapshot 3", "snapshot 1", "deltas 1 2"]


def test_compacted_deltas_are_replaced_by_a_snapshot(source: VersionedTable, base: Path) -> None:
    images = HostImages(content(source, SCHEMA, ["key"], base))
    images.at(source.commit(rates()))
    source.commit(rates({3: 0.5}))
    source.compact(2)
    assert rows_of(images.at(2)) == rows_in(rates({3: 0.5}))
    assert source.asked() == ["snapshot 1", "deltas 1 2", "snapshot 2"]


def test_a_version_that_is_gone_is_an_error_that_says_so(source: VersionedTable, base: Path) -> None:
    source.commit(rates())
    source.commit(rates({3: 0.5}))
    source.compact(2)
    with pytest.raises(Compacted, match="version 1 of changelog 'rates' is gone"):
        HostImages(content(source, SCHEMA, ["key"], base)).at(1)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_many_versions_stay_few_layers_and_equal_the_changelog(
    source: VersionedTable, base: Path, seed: int
) -> None:
    of = content(source, SCHEMA, ["key"], base)
    images, chance = HostImages(of, old_seconds=0.0), random.Random(seed)
    changes: dict[int, float | None] = {}
    for _ in range(40):
        changes |= {
            chance.randrange(300): chance.choice([None, chance.random()])
            for _ in range(chance.randrange(1, 6))
        }
        table = rates(changes)
        image = images.at(source.commit(table))
        assert rows_of(image) == rows_in(table)
        whole, *deltas = image.layers
        assert sum(layer.rows for layer in deltas[:-1]) * host_images.MERGE_PART <= whole.rows
        assert len(image.layers) <= 8
        # What an image no longer needs is removed; the layers that the last merge replaced may still be there.
        assert len(layers(of)) <= 16
    assert sum(each.startswith("snapshot") for each in source.asked()) == 1


def test_a_large_image_is_merged_beside_the_tasks(
    source: VersionedTable, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_images, "INLINE_ROWS", 0)
    of = content(source, SCHEMA, ["key"], base)
    images = HostImages(of)
    images.at(source.commit(rates()))
    changed = rates(dict.fromkeys(range(40), 0.5))
    images.at(source.commit(changed))
    eventually(lambda: LayerName(None, 2) in layers(of), True)
    assert len(images.at(2).layers) == 1
    assert rows_of(images.at(2)) == rows_in(changed)


def test_versions_without_a_change_stay_few_layers(source: VersionedTable, base: Path) -> None:
    images = HostImages(content(source, SCHEMA, ["key"], base))
    for _ in range(10):
        image = images.at(source.commit(rates()))
        assert rows_of(image) == rows_in(rates())
        assert len(images.at(image.version).layers) <= 2


def test_a_read_that_breaks_off_is_begun_again(source: VersionedTable, base: Path) -> None:
    source.commit(rates())
    source.cut_reads(2)
    images = HostImages(content(source, SCHEMA, ["key"], base))
    assert rows_of(images.at(1)) == rows_in(rates())
    source.commit(rates({1: 7.0}))
    source.cut_reads(2)
    assert rows_of(images.at(2)) == rows_in(rates({1: 7.0}))


def test_a_full_disk_is_an_error_that_says_what_to_do(source: VersionedTable, base: Path) -> None:
    source.commit(rates())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A file that reaches this limit is refused like one on a full disk: with OSError, by the kernel.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_images, "FULL", (errno.EFBIG,))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with pytest.raises(OutOfBudget, match=r"no room for version 1 of changelog 'rates'.*copies.dirs"):
                HostImages(content(source, SCHEMA, ["key"], base)).at(1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_with_a_null_key_are_left_out(source: VersionedTable, base: Path) -> None:
    images = HostImages(content(source, SCHEMA, ["key"], base))
    nothing = pa.Table.from_pylist([{"key": None, "rate": 1.0, "note": "x"}], SCHEMA)
    source.commit(pa.concat_tables([rates(), nothing]))
    assert rows_of(images.at(1)) == rows_in(rates())
    source.commit(rates({1: 9.0}))
    assert rows_of(images.at(2)) == rows_in(rates({1: 9.0}))
    source.commit(pa.concat_tables([rates({1: 9.0}), nothing]))
    assert rows_of(images.at(3)) == rows_in(rates({1: 9.0}))


def test_an_empty_changelog_has_an_image(source: VersionedTable, base: Path) -> None:
    images = HostImages(content(source, SCHEMA, ["key"], base))
    assert rows_of(images.at(source.commit(SCHEMA.empty_table()))) == Counter()
    assert rows_of(images.at(source.commit(rates()))) == rows_in(rates())
    assert rows_of(images.at(source.commit(SCHEMA.empty_table()))) == Counter()


def test_a_damaged_file_is_removed_and_fetched_again(source: VersionedTable, base: Path) -> None:
    of = content(source, SCHEMA, ["key"], base)
    HostImages(of).at(source.commit(rates()))
    open_layers.close()
    (path,) = directory(base).glob("*.arrows")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    other = path.with_name("other")
    other.write_bytes(bytes(data))
    other.replace(path)
    assert rows_of(HostImages(of).at(1)) == rows_in(rates())
    assert source.asked() == ["snapshot 1", "snapshot 1"]


def test_a_removed_file_is_fetched_again(source: VersionedTable, base: Path) -> None:
    of = content(source, SCHEMA, ["key"], base)
    images = HostImages(of)
    image = images.at(source.commit(rates()))
    (path,) = directory(base).glob("*.arrows")
    path.unlink()
    assert rows_of(image) == rows_in(rates())
    assert rows_of(images.at(1)) == rows_in(rates())
    assert source.asked() == ["snapshot 1", "snapshot 1"]


def test_a_host_without_room_says_so(source: VersionedTable, base: Path) -> None:
    of = content(source, SCHEMA, ["key"], base, limit_bytes=1000)
    with pytest.raises(OutOfBudget, match="larger limit_bytes"):
        HostImages(of).at(source.commit(rates()))


def test_two_contents_of_one_changelog_do_not_meet(source: VersionedTable, base: Path) -> None:
    source.commit(rates())
    by_key = HostImages(content(source, SCHEMA, ["key"], base))
    by_note = HostImages(content(source, SCHEMA, ["note"], base))
    assert rows_of(by_key.at(1)) == rows_in(rates())
    found = by_note.at(1).find(Keys.of([pa.array([b"n7", b"n"], pa.binary())]))
    assert by_note.at(1).take(found, slice(1, None)).to_pylist() == [{"key": 7, "rate": 7.0}]


def test_a_file_can_be_removed_for_another_when_no_image_uses_it(
    source: VersionedTable, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_client.hosts.open_files.KEEP_SECONDS", 0.0)
    of = content(source, SCHEMA, ["key"], base)
    image = HostImages(of).at(source.commit(rates()))
    assert not _taken(base)
    assert rows_of(image) == rows_in(rates())
    del image
    eventually(lambda: _taken(base), True)


def _taken(base: Path) -> bool:
    """Remove a file that no process holds, if there is one, as for the room of another one."""
    found = HostDirectory(base)
    with found.changing_names():
        return directories.take_oldest(found.entries(), 1) > 0
