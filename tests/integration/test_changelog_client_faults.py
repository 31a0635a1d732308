"""Writers and followers of changelogs over broken connections and a killed server, on both lanes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import (
    Draining,
    Unavailable,
)
from spark_client import Changelog, Reading, ShuffleClient, Timeouts, Writing, latest
from spark_client.changelogs import gathered_puts
from spark_client.changelogs.version_follower import Follower
from spark_client.connection import RemoteServer
from spark_client.lanes.put_stream import _known
from spark_client.merge import Portion
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.rates import (
    BY,
    LANES,
    MOST_LANES,
    RATES,
    WAIT_SECONDS,
    Row,
    counted,
    folded,
    next_of,
    rates_of,
    rows_of,
)
from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")


def test_versions_of_a_writer_share_a_put_which_ends_when_it_rests(
    rates: Changelog, empty_server: ServerProcess
) -> None:
    def open_puts() -> list[Any]:
        with RawFlight(empty_server.location) as raw:
            return [each for each in raw.action("why")["waits"] if each["waiting_for"] == "writer"]

    with rates.writer() as writer:
        for version in (1, 2):
            assert writer.add(rates_of(("EUR", version, 1.1))).result(WAIT_SECONDS) == version
        assert len(open_puts()) == 1
        retracted = rates_of(("EUR", 2, 1.1)).append_column("_diff", pa.array([-1]))
        assert writer.add(retracted).result(WAIT_SECONDS) == 3
        eventually(open_puts, [])
        assert writer.add(rates_of(("EUR", 3, 1.2))).result(WAIT_SECONDS) == 4
    assert open_puts() == []
    assert rows_of(rates.snapshot().table) == [("EUR", 3, 1.2)]


@pytest.mark.parametrize("lane", MOST_LANES)
def test_a_writer_goes_on_after_its_server_was_killed_and_started_again(
    lane: Any, tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    server = flight_server_process(data_dir=tmp_path)
    port, http_port = (int(where.rpartition(":")[2]) for where in (server.location, server.http or ""))
    patient = Timeouts(tries=60)
    with ShuffleClient(server.location, timeouts=patient, writing=Writing(lane=lane)) as shuffle:
        rates = shuffle.changelog("rates", RATES, keep=latest(), delay_seconds=3600.0, **BY)
        with rates.writer() as writer:
            assert writer.add(rates_of(("EUR", 1, 1.1))).result(WAIT_SECONDS) == 1
            server.kill()
            flight_server_process(data_dir=tmp_path, port=port, http_port=http_port)
            assert writer.add(rates_of(("EUR", 2, 1.2))).result(WAIT_SECONDS) == 2


@pytest.mark.parametrize("lane", MOST_LANES)
def test_a_writer_begins_no_version_on_a_server_that_drains(
    lane: Any, monkeypatch: pytest.MonkeyPatch, flight_server_process: Callable[..., ServerProcess]
) -> None:
    monkeypatch.setattr(gathered_puts, "REST_SECONDS", 3600.0)
    server = flight_server_process(drain_grace_seconds=60)
    once = Timeouts(tries=0)
    with ShuffleClient(server.location, timeouts=once, writing=Writing(lane=lane)) as shuffle:
        rates = shuffle.changelog("rates", RATES, keep=latest(), **BY)
        with rates.writer() as writer, RawFlight(server.location) as raw:
            assert writer.add(rates_of(("EUR", 1, 1.1))).result(WAIT_SECONDS) == 1
            raw.action("drain")
            refused = writer.add(rates_of(("EUR", 2, 1.2))).exception(WAIT_SECONDS)
    assert isinstance(refused, Draining)
    assert server.process.wait(WAIT_SECONDS) == 0


@pytest.mark.parametrize("lane", LANES)
def test_a_follower_whose_connection_breaks_in_a_step_gets_each_change_once(
    lane: Any, empty_server: ServerProcess
) -> None:
    target = empty_server.location if lane == "grpc" else str(empty_server.http)
    patient = Timeouts()
    with ShuffleClient(empty_server.location) as direct, Proxy.to(target) as proxy:
        rates = direct.changelog("rates", RATES, keep=latest(), delay_seconds=3600.0, **BY)
        location = proxy.location if lane == "grpc" else empty_server.location
        server = RemoteServer(location, timeouts=patient, reading=Reading(lane=lane))
        follower = Follower(replace(rates.ref, server=server, portions=(Portion((proxy.http,)),)), 0)
        found: Counter[Row] = Counter()
        for time in range(1, 6):
            proxy.cut_after(50_000)
            version = rates.put(rates_of(*((f"C{n:05}", time, 1.0) for n in range(5000))))
            for table in next_of(follower, version):
                found = folded(found, table)
        assert proxy.cuts == 5
        assert found == counted(rates.snapshot().table)
        follower.close()
        server.close()


def test_a_flipped_bit_is_noticed_and_the_step_comes_again(empty_server: ServerProcess) -> None:
    patient = Timeouts()
    with ShuffleClient(empty_server.location) as direct, Proxy.to(str(empty_server.http)) as proxy:
        rates = direct.changelog("rates", RATES, keep=latest(), delay_seconds=3600.0, **BY)
        server = RemoteServer(empty_server.location, timeouts=patient, reading=Reading(lane="bulk"))
        follower = Follower(replace(rates.ref, server=server, portions=(Portion((proxy.http,)),)), 0)
        found: Counter[Row] = Counter()
        for time in range(1, 6):
            proxy.flip_back(20_000 * time, bit=time)
            version = rates.put(rates_of(*((f"C{n:05}", time, 1.0) for n in range(5000))))
            for table in next_of(follower, version):
                found = folded(found, table)
        assert proxy.flips == 5
        assert found == counted(rates.snapshot().table)
        follower.close()
        server.close()


@pytest.fixture
def cut_puts(empty_server: ServerProcess) -> Iterator[tuple[Changelog, Proxy]]:
    """A changelog whose puts go through a proxy, the first of which has been committed."""
    server = RemoteServer(
        empty_server.location,
        timeouts=Timeouts(),
        writing=Writing(lane="bulk"),
    )
    with Proxy.to(str(empty_server.http)) as proxy:
        known = _known(server)
        known.places = tuple(
            place.replace(str(empty_server.http), proxy.http)
            for place in server.action("locations")["put_locations"]
        )
        rates = Changelog.declare(server, "rates", RATES, keep=latest(), delay_seconds=3600.0, **BY)
        assert rates.put(rates_of(("EUR", 1, 1.1))) == 1
        yield rates, proxy
        server.close()


def test_a_put_that_breaks_before_its_commit_is_sent_again(cut_puts: tuple[Changelog, Proxy]) -> None:
    rates, proxy = cut_puts
    proxy.cut_after(1)
    assert rates.put(rates_of(("EUR", 2, 1.2))) == 2
    assert proxy.cuts == 1


def test_a_put_whose_answer_is_lost_is_sent_again_only_as_a_transaction(
    cut_puts: tuple[Changelog, Proxy],
) -> None:
    rates, proxy = cut_puts
    answer_bytes = proxy.bytes_back
    proxy.cut_after(answer_bytes - 1)
    with pytest.raises(Unavailable):
        rates.put(rates_of(("EUR", 2, 1.2)))
    # It was committed, which this client cannot know.
    eventually(lambda: rates.upper, 2)
    proxy.cut_after(answer_bytes - 1)
    assert rates.put(rates_of(("EUR", 3, 1.3)), transaction=("job", 1)) == 3
    assert proxy.cuts == 2
    assert rates.upper == 3
    proxy.cut_after(answer_bytes - 1)
    with pytest.raises(Unavailable):
        rates.put(iter(rates_of(("EUR", 4, 1.4)).to_batches()), transaction=("job", 2))
    assert rates.put(rates_of(("EUR", 4, 1.4)), transaction=("job", 2)) == 4


@pytest.mark.long
def test_a_server_that_is_killed_again_and_again_loses_and_repeats_nothing(
    tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    server = flight_server_process(data_dir=tmp_path)
    port, http_port = (int(where.rpartition(":")[2]) for where in (server.location, server.http or ""))
    patient = Timeouts(tries=200)
    with ShuffleClient(server.location, timeouts=patient) as shuffle:
        rates = shuffle.changelog("rates", RATES, keep=latest(), delay_seconds=0.0, **BY)
        hold = rates.hold(0, lease_seconds=600.0)
        follower = rates.follow(after=0)
        versions: list[int] = []

        def put() -> None:
            for _ in range(15):
                number = len(versions) + 1
                rows = rates_of(("EUR", number, 1.0), (f"C{number % 7}", number, 2.0))
                versions.append(rates.put(rows, transaction=("job", number)))

        def has_put(wanted: int) -> bool:
            return len(versions) >= wanted

        found: Counter[Row] = Counter()
        for killed in range(4):
            thread = threading.Thread(target=put)
            thread.start()
            eventually(partial(has_put, 15 * killed + 5), expected=True)
            server.kill()
            server = flight_server_process(data_dir=tmp_path, port=port, http_port=http_port)
            thread.join(WAIT_SECONDS)
            for table in next_of(follower, versions[-1]):
                found = folded(found, table)
        assert versions == list(range(1, 61))
        assert found == counted(rates.snapshot(as_of=60).table)
        hold.close()
        follower.close()
