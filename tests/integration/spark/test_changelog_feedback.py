"""A rule of one's own, as the page has it: a query takes back the bids that lost, over kills and restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_client import ShuffleClient
from tests.support.auctions import Auctions, run_page, shown
from tests.support.pages import blocks
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__shuffle__partitions": "2"}


class Accidents:
    """What befalls the next write of the query: by its name, one for each write, then nothing."""

    def __init__(self, save: Callable[..., None], server: ServerProcess, data: Path) -> None:
        self._save = save
        self._data = data
        self.server = server
        self.coming: list[str] = []

    def save(self, writer: Any, name: str) -> None:
        accident = self.coming.pop(0) if self.coming else ""
        if accident == "killed before":
            self._restart()
        self._save(writer, name)
        if accident == "killed after":
            self._restart()
            raise ConnectionError(accident)
        if accident == "written by two drivers":  # each of which has seen the bids
            self._save(writer, name)

    def _restart(self) -> None:
        self.server = self.server.restart(data_dir=self._data)


@pytest.fixture
def accidents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Accidents]:
    from pyspark.sql.readwriter import DataFrameWriter

    data = tmp_path / "data"
    found = Accidents(DataFrameWriter.save, ServerProcess.start(data_dir=data), data)
    # A bound method would not get the writer.
    monkeypatch.setattr(DataFrameWriter, "save", lambda *given: found.save(*given))  # noqa: PLW0108
    yield found
    found.server.close()


@pytest.mark.long
def test_bids_of_closed_auctions_are_taken_back_once_but_for_the_winner_over_kills_and_restarts(
    spark: SparkSession, accidents: Accidents, tmp_path: Path
) -> None:
    location = accidents.server.location
    page = run_page(blocks()["feedback"], location, tmp_path / "settled")
    model = Auctions(random.Random(35), delay=page["delay"])
    with ShuffleClient(location) as client:
        changelog = client.changelog("auctions")
        of_page = shown(changelog)
        for _ in range(4):  # the first auctions are settled in the next one
            changelog.put(model.round())
        query = page["start"]()
        try:
            for accident in ("killed before", "killed after", "written by two drivers"):
                accidents.coming = [accident]
                changelog.put(model.round())
                if accident == "killed after":
                    with pytest.raises(Exception, match=accident):
                        query.processAllAvailable()
                    query = page["start"]()
                query.processAllAvailable()
                assert shown(changelog) == model.needed() + of_page
                assert not accidents.coming
            changelog.put(model.end())
            query.processAllAvailable()
        finally:
            query.stop()
        assert shown(changelog) == model.needed() + of_page
        needed = (model.needed() + of_page).total()
        assert model.bids > 4 * needed
        for hold in changelog.holds():  # as they would end by themselves
            changelog.release(hold)
        eventually(lambda: changelog.statistics()["rows"] <= 2 * needed, True)
        eventually(lambda: changelog.statistics()["waiting_retractions"], 0)
