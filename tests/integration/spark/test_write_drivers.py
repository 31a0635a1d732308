"""Drivers that are killed as they write: the next write there leaves the old rows or the new ones, and no more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from spark_client import ShuffleClient
from spark_client.writing.folder_write import HIDDEN
from spark_client.writing.parquet_folder import ParquetFolder
from spark_client.writing.storage_place import Place
from tests.support.driver_process import DriverProcess, say, session
from tests.support.polling import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]


def doomed_driver(path: str, where: str) -> None:
    """Overwrites 10 rows by 100, and waits for ever at a point of the write."""

    def wait(*_: Any) -> None:
        say("waits", where)
        while True:
            time.sleep(1)

    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if where == "before":
                Path(path, "_writing").touch()
                time.sleep(60)

    def some(place: Place, names: Any) -> None:
        for name, new in [*names][:2]:
            place.move(name, new)
        wait()

    if where == "in":
        mock.patch.object(Place, "move_all", some).start()
    elif where == "after":
        mock.patch.object(ParquetFolder, "_finish", wait).start()
    with session("local[2]", {}) as spark, ShuffleClient.embedded() as client:
        say("begins", where)
        rows = client.pipeline(spark.range(0, 100, 1, 2)).repartition(4, "id").mapInArrow(waits, "id long")
        rows.write.mode("overwrite").parquet(path)


@pytest.mark.parametrize("where", ["before", "in", "after"])
def test_a_driver_that_is_killed_leaves_the_old_or_the_new(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path, where: str
) -> None:
    path = tmp_path / "out"
    client.pipeline(spark.range(10)).write.parquet(path)
    with DriverProcess(doomed_driver, str(path), where) as driver:
        driver.wait_for("begins")
        if where == "before":
            eventually((path / "_writing").exists, True, deadline_seconds=120)
            eventually(lambda: any(path.glob(f"{HIDDEN}/*/*")), True)
        else:
            driver.wait_for("waits")
        driver.kill()
        eventually(driver.running, list[str]())

    def ids() -> list[int]:
        return sorted(row.id for row in spark.read.parquet(str(path)).collect())

    if where == "before":
        assert ids() == [*range(10)]
        (path / "_writing").unlink()
    assert (path / HIDDEN).exists()
    client.pipeline(spark.range(5)).write.mode("ignore").parquet(path)
    assert ids() == [*range(100 if where == "after" else 10)]
    assert {each.name for each in path.iterdir() if each.name.startswith("_")} == {"_SUCCESS"}
    client.pipeline(spark.range(10, 12)).write.mode("append").parquet(path)
    assert len(ids()) == (102 if where == "after" else 12)
