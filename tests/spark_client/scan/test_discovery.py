"""What is found below a path: which files, which columns, and which mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import feather
from pyarrow import parquet as pq

from flight_server.protocol.errors import InvalidRequest, NotFound
from spark_client.scan.discovery import dataset_of

TABLE = pa.table({"a": [1, 2], "year": [2020, 2021]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    pq.write_to_dataset(TABLE, tmp_path / "lake", partition_cols=["year"])
    (tmp_path / "lake" / "_SUCCESS").touch()
    (tmp_path / "lake" / "year=2020" / ".x.crc").touch()
    (tmp_path / "lake" / "_tmp").mkdir()
    (tmp_path / "lake" / "_tmp" / "half.parquet").touch()
    return tmp_path / "lake"


def names(dataset: Any) -> list[str]:
    return [fragment.path for fragment in dataset.get_fragments()]


def test_a_directory_gives_its_files_in_order_with_the_columns_of_its_folders(lake: Path) -> None:
    found = dataset_of(lake)
    assert found.schema == pa.schema([("a", pa.int64()), ("year", pa.int32())])
    assert [Path(name).parent.name for name in names(found)] == ["year=2020", "year=2021"]


def test_a_file_that_was_given_by_itself_has_no_columns_from_its_path(lake: Path) -> None:
    one = next(lake.glob("year=2021/*.parquet"))
    assert dataset_of(str(one)).schema.names == ["a"]
    assert names(dataset_of([one, f"file://{one}"])) == [str(one), str(one)]


def test_a_list_keeps_its_order_and_may_mix_files_and_directories(lake: Path, tmp_path: Path) -> None:
    pq.write_table(TABLE.select(["a"]), tmp_path / "z.parquet")
    pq.write_table(TABLE.select(["a"]), tmp_path / "b.parquet")
    found = names(dataset_of([tmp_path / "z.parquet", lake / "year=2020", tmp_path / "b.parquet"]))
    assert [Path(name).name for name in (found[0], found[-1])] == ["z.parquet", "b.parquet"]
    assert len(found) == 3


@pytest.mark.parametrize("name", ["x.parquet", "x.PQ", "x.feather", "x.arrow", "x.ipc"])
def test_the_format_is_that_of_the_names(tmp_path: Path, name: str) -> None:
    write = pq.write_table if name in ("x.parquet", "x.PQ") else feather.write_feather
    write(TABLE, tmp_path / name)
    assert dataset_of(tmp_path).to_table() == TABLE


def test_files_of_two_formats_or_of_another_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(
        InvalidRequest, match=r"a\.csv is neither Parquet .* pyarrow.dataset.dataset\(…, format="
    ):
        dataset_of(tmp_path)
    (tmp_path / "a.csv").rename(tmp_path / "a.arrow")
    (tmp_path / "b.parquet").write_text("x")
    with pytest.raises(InvalidRequest, match=r"a\.arrow and .*b\.parquet are of two formats"):
        dataset_of(tmp_path)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no file or directory .*/x\.parquet$"):
        dataset_of(tmp_path / "x.parquet")
    with pytest.raises(NotFound, match=r"nothing matches the pattern .*/\*\.parquet; a backslash takes"):
        dataset_of(tmp_path / "*.parquet")
    with pytest.raises(NotFound, match="write % as %25"):
        dataset_of(f"file://{tmp_path}/a%20b")
    with pytest.raises(NotFound, match="no file with data below"):
        dataset_of(tmp_path)
    with pytest.raises(InvalidRequest, match="the list of paths is empty"):
        dataset_of([])
    with pytest.raises(InvalidRequest, match="a list of paths has int in it"):
        dataset_of([1])


def test_what_spark_passes_over_is_passed_over_and_nothing_else(tmp_path: Path) -> None:
    for folder in ("_year=2020", "_temporary", ".hidden"):
        pq.write_to_dataset(TABLE.select(["a"]), tmp_path / folder)
    (tmp_path / "_year=2020" / "0.parquet").touch()
    (tmp_path / "_year=2020" / "x.parquet._COPYING_").write_text("half")
    found = dataset_of(tmp_path)
    assert len(names(found)) == 1
    assert found.to_table()["_year"].to_pylist() == [2020, 2020]


def test_plain_folders_are_passed_over_unless_all_files_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "k=1").mkdir()
    pq.write_table(TABLE, tmp_path / "backup" / "x.parquet")
    with pytest.raises(
        NotFound, match=r"only in its subfolders; give them by a pattern .*, or recursive=True"
    ):
        dataset_of(tmp_path)
    pq.write_table(TABLE, tmp_path / "x.parquet")
    assert names(dataset_of(tmp_path)) == [f"{tmp_path}/x.parquet"]
    pq.write_table(TABLE, tmp_path / "k=1" / "x.parquet")
    found = dataset_of([tmp_path, tmp_path / "x.parquet"], recursive=True)
    assert [Path(name).parent.name for name in names(found)] == ["backup", "k=1", tmp_path.name]
    assert found.schema == TABLE.schema


def test_a_directory_that_is_listed_twice_comes_twice_unless_its_folders_give_columns(
    lake: Path, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    pq.write_table(TABLE, tmp_path / "plain" / "x.parquet")
    assert len(names(dataset_of([tmp_path / "plain", tmp_path / "plain"]))) == 2
    assert len(names(dataset_of([lake, lake]))) == len(names(dataset_of(lake))) == 2


def test_a_path_may_be_a_pattern(lake: Path) -> None:
    assert len(names(dataset_of(lake / "year=202?"))) == 2
    assert dataset_of(f"file://{lake}/year=20{{20,21}}/*").schema.names == ["a"]


@pytest.mark.parametrize("name", ["a b", "a%20b", "a+b", "a#b", "a?b=c", "é"])
def test_any_name_may_be_given_as_a_path_or_quoted_in_an_address(tmp_path: Path, name: str) -> None:
    for other in ("a b", "a%20b", name):
        (tmp_path / other).mkdir(exist_ok=True)
        pq.write_table(TABLE, tmp_path / other / "x.parquet")
    found = dataset_of(
        [tmp_path / name, f"file://{tmp_path}/{quote(name)}", f"file:{tmp_path}/{quote(name)}"]
    )
    assert names(found) == [f"{tmp_path}/{name}/x.parquet"] * 3


def test_several_directories_have_one_schema(lake: Path, tmp_path: Path) -> None:
    pq.write_to_dataset(TABLE, tmp_path / "other", partition_cols=["year"])
    assert dataset_of([lake, tmp_path / "other"]).to_table().num_rows == 4
    (tmp_path / "other" / "year=x").mkdir()
    pq.write_table(TABLE.select(["a"]), tmp_path / "other" / "year=x" / "x.parquet")
    assert set(dataset_of([lake, tmp_path / "other"]).to_table()["year"].to_pylist()) == {"2020", "2021", "x"}


def test_an_ipc_stream_says_that_it_is_no_file(tmp_path: Path) -> None:
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE)
    with pytest.raises(InvalidRequest, match=r"x\.arrow.*; an IPC stream or a file of Feather V1 must be"):
        dataset_of(tmp_path)


def test_a_delta_table_is_not_taken_for_its_files(lake: Path) -> None:
    (lake / "_delta_log").mkdir()
    with pytest.raises(InvalidRequest, match=r"is a Delta table, .*to_pyarrow_dataset"):
        dataset_of(lake)


def test_a_first_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("nonsense")
    with pytest.raises(InvalidRequest, match=r"x\.parquet"):
        dataset_of(tmp_path)
