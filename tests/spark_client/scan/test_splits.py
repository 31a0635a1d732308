"""Splits have every row once, are of about one size, and leave out what the filter excludes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset as ds
from pyarrow import feather
from pyarrow import parquet as pq

from flight_server.protocol.errors import InvalidRequest
from spark_client.jobs import SplitSizes
from spark_client.scan.discovery import dataset_of
from spark_client.scan.pieces import File, FilePiece
from spark_client.scan.splits import Splits
from tests.support.python_program import output_of
from tests.support.scanning import read, splits_of

TABLE = pa.table({"a": range(1000), "s": [f"{number:>100}" for number in range(1000)]})
SMALL = SplitSizes(target_bytes=30_000, open_bytes=1)


def shape(splits: Splits) -> list[list[tuple[str, int]]]:
    return [
        [(Path(piece.file.path).name, piece.unit) for piece in splits.pieces(number)]
        for number in range(len(splits))
    ]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in "ab":
        pq.write_table(TABLE, tmp_path / f"{name}.parquet", row_group_size=200, use_dictionary=False)
    return tmp_path


def test_every_row_is_in_one_split_in_the_order_of_files_and_rows(lake: Path) -> None:
    splits = splits_of(lake, sizes=SMALL)
    assert len(splits) == 8
    assert [unit for pieces in shape(splits) for unit in pieces] == [
        (f"{name}.parquet", group) for name in "ab" for group in range(5)
    ]
    assert read(splits) == pa.concat_tables([TABLE, TABLE])


@pytest.mark.parametrize("form", ["parquet", "feather"])
@pytest.mark.parametrize("cores", [1, 2])
def test_a_file_that_is_listed_twice_is_read_twice_by_one_task_or_two(
    tmp_path: Path, form: str, cores: int
) -> None:
    ds.write_dataset(TABLE.select(["a"]), tmp_path, format=form)
    [path] = tmp_path.iterdir()
    splits = splits_of(dataset_of([path, path]), sizes=SplitSizes(open_bytes=1, parallelism=cores))
    assert len(splits) == cores
    assert read(splits) == pa.concat_tables([TABLE.select(["a"])] * 2)


def test_sizes_count_only_the_columns_that_are_read(lake: Path) -> None:
    assert len(splits_of(lake, names=["a"], schema=TABLE.select(["a"]).schema, sizes=SMALL)) == 1


def test_small_files_are_read_together_and_each_costs_its_opening(tmp_path: Path) -> None:
    for number in range(10):
        pq.write_table(TABLE.slice(0, 1), tmp_path / f"{number}.parquet")
    sizes = SplitSizes(target_bytes=4 << 20, open_bytes=1 << 20)
    assert [len(pieces) for pieces in shape(splits_of(tmp_path, sizes=sizes))] == [3, 4, 3]


def test_a_large_ipc_file_is_read_by_several_tasks(tmp_path: Path) -> None:
    feather.write_feather(TABLE, tmp_path / "x.feather", compression="uncompressed", chunksize=100)
    splits = splits_of(tmp_path, sizes=SMALL)
    assert len(splits) == 4
    assert read(splits) == TABLE
    assert read(splits_of(tmp_path, names=["s"], schema=TABLE.select(["s"]).schema)) == TABLE.select(["s"])


def test_row_groups_that_the_statistics_exclude_are_not_read(lake: Path) -> None:
    splits = splits_of(lake, filter=(pc.field("a") > 350) & (pc.field("a") < 500))
    assert shape(splits) == [[(f"{name}.parquet", group) for name in "ab" for group in (1, 2)]]
    assert read(splits)["a"].to_pylist() == 2 * list(range(351, 500))


def test_partitions_that_the_filter_excludes_are_not_even_opened(tmp_path: Path) -> None:
    table = TABLE.append_column("day", pa.array([number % 3 for number in range(1000)], pa.int32()))
    pq.write_to_dataset(table, tmp_path, partition_cols=["day"])
    for damaged in (tmp_path / "day=1").iterdir():
        data = damaged.read_bytes()
        damaged.write_bytes(data[:-8] + bytes(8))
    splits = splits_of(tmp_path, filter=pc.field("day") != 1)
    assert read(splits).sort_by("a") == table.filter(pc.field("day") != 1)
    with pytest.raises(InvalidRequest, match=r"day=1/.*cannot be read"):
        splits_of(tmp_path)


def test_without_any_row_there_is_one_empty_split(lake: Path) -> None:
    splits = splits_of(lake, filter=pc.field("a") > 5000)
    assert shape(splits) == [[]]
    assert list(splits.read(0)) == []


def test_a_dataset_of_several_kinds_of_files_is_read_in_its_order(lake: Path, tmp_path: Path) -> None:
    feather.write_feather(TABLE, tmp_path / "x.feather")
    union = ds.dataset([ds.dataset(tmp_path / "x.feather", format="ipc"), ds.dataset(lake / "a.parquet")])
    splits = splits_of(union)
    assert len(splits.reading.homes) == 2
    assert read(pickle.loads(pickle.dumps(splits))) == pa.concat_tables([TABLE, TABLE])


def test_a_dataset_in_memory_or_with_a_filter_says_what_to_do(lake: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be sent to tasks .* write it to files"):
        splits_of(ds.dataset(TABLE))
    with pytest.raises(InvalidRequest, match="a filter or projection of its own; give it without"):
        splits_of(ds.dataset(lake).filter(pc.field("a") > 1))


def test_a_task_that_reads_parquet_or_ipc_loads_no_scanner(lake: Path, tmp_path: Path) -> None:
    feather.write_feather(TABLE, tmp_path / "x.feather")
    both = [splits_of(what) for what in (lake / "a.parquet", tmp_path / "x.feather")]
    (tmp_path / "splits").write_bytes(pickle.dumps(both))
    code = (
        "import pickle, sys; both = pickle.load(open(sys.argv[1], 'rb'));"
        "assert [sum(batch.num_rows for batch in splits.read(0)) for splits in both] == [1000, 1000];"
        "assert not {'pyarrow.dataset', 'pyarrow._dataset', 'pyarrow.compute'} & set(sys.modules)"
    )
    output_of(code, tmp_path / "splits")


def test_a_task_unpacks_only_its_own_split_of_a_plan_of_many_files(tmp_path: Path) -> None:
    folder = tmp_path / "a_table_of_the_lake" / "day=2024-05-31"
    folder.mkdir(parents=True)
    pq.write_table(TABLE.slice(0, 1), folder / "0.parquet")
    file = splits_of(tmp_path).pieces(0)[0].file
    assert isinstance(file, File)
    pieces = [
        FilePiece(replace(file, path=f"{file.path}-{number:036}"), 0, 1, 9000, 9000) for number in range(5000)
    ]
    reading = splits_of(tmp_path).reading
    splits = pickle.loads(pickle.dumps(Splits.of(pieces, SplitSizes(128 << 20, 4 << 20, 2), reading)))
    assert len(splits) > 100
    assert splits.pieces(7)[0] in pieces
    assert [piece for number in range(len(splits)) for piece in splits.pieces(number)] == pieces
    assert sum(map(len, splits.packed)) < 40 * len(pieces)
    assert max(map(len, splits.packed)) < 1000


def test_statistics_that_arrow_does_not_compare_with_the_filter_prune_nothing(tmp_path: Path) -> None:
    here = pa.timestamp("us", "UTC")
    for name, kind in (("a", here), ("b", pa.timestamp("ms", "America/New_York"))):
        times = pa.array(range(0, 1_000_000, 1000), here).cast(kind)
        pq.write_table(pa.table({"t": times}), tmp_path / f"{name}.parquet", row_group_size=200)
    later = pc.field("t") >= pa.scalar(900_000, here)
    splits = splits_of(tmp_path, schema=pa.schema([("t", here)]), filter=later, lenient=True)
    groups = [piece for pieces in shape(splits) for piece in pieces]
    assert groups == [("a.parquet", 4), *(("b.parquet", group) for group in range(5))]
    assert read(splits) == pa.table({"t": pa.array([*range(900_000, 1_000_000, 1000)] * 2, here)})
