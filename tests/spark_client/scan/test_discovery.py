"""What is found below a path: which files, which columns, and which mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import feather
from pyarrow import parquet as pq

from flight_server.protocol.errors import InvalidRequest, NotFound
from spark_client.scan.discovery import dataset_of, located
from spark_client.scan.folder_values import NULL
from tests.support.scanning import read, splits_of

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
    with pytest.raises(NotFound, match="a pattern is no path: give the list of files"):
        dataset_of(tmp_path / "*.parquet")
    with pytest.raises(NotFound, match="no file with data in"):
        dataset_of(tmp_path)
    for paths in ([], [1]):
        with pytest.raises(InvalidRequest, match="a list of paths has at least one, and texts or Paths only"):
            dataset_of(paths)


def test_all_files_below_a_directory_are_read_but_empty_and_hidden_ones(tmp_path: Path) -> None:
    for folder in ("_temporary", ".hidden", "plain/inner"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(TABLE, tmp_path / folder / "x.parquet")
    pq.write_table(TABLE, tmp_path / "_x.parquet")
    (tmp_path / "0.parquet").touch()
    assert names(dataset_of(tmp_path)) == [f"{tmp_path}/plain/inner/x.parquet"]
    with pytest.raises(NotFound, match=r"names that begin with _ or \. are passed over"):
        dataset_of(tmp_path / "_x.parquet")


@pytest.mark.parametrize("name", ["a b", "a%20b", "a+b", "a#b", "a?b=c", "é"])
def test_a_path_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    pq.write_table(TABLE, tmp_path / name / "x.parquet")
    assert names(dataset_of(tmp_path / name)) == [f"{tmp_path}/{name}/x.parquet"]


def test_paths_are_absolute_and_file_addresses_are_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    pq.write_table(TABLE, tmp_path / "a b" / "x.parquet")
    monkeypatch.chdir(tmp_path)
    found = dataset_of(["a b", f"file://{tmp_path}/a%20b", f"file:{tmp_path}/a%20b/x.parquet"])
    assert names(found) == [f"{tmp_path}/a b/x.parquet"] * 3


def test_addresses_of_a_bucket_have_one_file_system() -> None:
    known: dict[str, Any] = {}
    for scheme in ("s3", "s3a"):
        for name in ("a%20b", "a b/"):
            filesystem, path = located(f"{scheme}://bucket/{name}?region=eu-west-1", known, "scan")
            assert (filesystem.type_name, filesystem.region, path) == ("s3", "eu-west-1", "bucket/a b")
    assert len(known) == 1
    with pytest.raises(InvalidRequest, match=r"for other file systems give pyarrow\.dataset\.dataset"):
        located("nowhere://a/b", known, "scan")


@pytest.mark.parametrize(
    ("folders", "error"),
    [
        (["k=1", "backup"], "give different columns"),
        (["k=1", "j=1"], "give different columns"),
        (["k=1", "k=1/j=1"], "give different columns"),
        (["k=1/k=2"], "give a column twice, or lack"),
        (["k="], "give a column twice, or lack its name or value"),
        (["=1"], "give a column twice, or lack its name or value"),
    ],
)
def test_folders_that_do_not_agree_are_refused(tmp_path: Path, folders: list[str], error: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(TABLE, tmp_path / folder / "x.parquet")
    with pytest.raises(InvalidRequest, match=error):
        dataset_of(tmp_path)


def test_a_folders_column_replaces_the_files_and_a_type_that_is_given_counts(tmp_path: Path) -> None:
    for folder in ("a%20day=x%2Fy%3Dz/year=01", f"a%20day={NULL}/year=2"):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(TABLE, tmp_path / folder / "x.parquet")
    schema = pa.schema([("a", pa.int64()), ("year", pa.string()), ("a day", pa.string())])
    found = dataset_of(tmp_path, types={"year": pa.string()})
    assert found.schema == schema
    rows = read(splits_of(found, filter=pc.field("year") == "01"))
    assert rows.to_pylist() == [{"a": a, "year": "01", "a day": "x/y=z"} for a in (1, 2)]
    assert len(splits_of(found, filter=pc.field("a day").is_null()).pieces(0)) == 1


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


def test_a_damaged_ipc_file_is_not_called_a_stream(tmp_path: Path) -> None:
    (tmp_path / "x.arrow").write_bytes(b"ARROW1\0\0and no more than that")
    with pytest.raises(InvalidRequest, match=r"x\.arrow") as refused:
        dataset_of(tmp_path)
    assert "stream" not in refused.value.message


def test_a_delta_table_is_not_taken_for_its_files(lake: Path) -> None:
    (lake / "_delta_log").mkdir()
    with pytest.raises(InvalidRequest, match=r"is a Delta table, .*to_pyarrow_dataset"):
        dataset_of(lake)


def test_a_first_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("nonsense")
    with pytest.raises(InvalidRequest, match=r"x\.parquet"):
        dataset_of(tmp_path)
