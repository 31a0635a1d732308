"""Options of the data source: what each one takes, and how a wrong one is named."""

from __future__ import annotations

import pytest

from flight_server.protocol import InvalidRequest
from spark_client.connection import RemoteServer, Unreachable
from spark_client.datasource.batch_read import find
from spark_client.datasource.source_options import SourceOptions
from spark_client.settings import (
    ANY_READ,
    BATCH_READ,
    BATCH_WRITE,
    STREAM_READ,
    STREAM_WRITE,
)

NEEDED = {"location": "grpc://localhost:1", "path": "countries"}


def read(**given: str) -> SourceOptions:
    return SourceOptions(NEEDED | given, BATCH_READ)


def test_an_unknown_option_is_named_with_the_ones_that_there_are() -> None:
    with pytest.raises(
        InvalidRequest, match=r"no option 'colums' \(did you mean 'columns'\?\); it has .*columns"
    ):
        read(colums="a")
    with pytest.raises(InvalidRequest, match=r"no option 'as_of', which is one of spark\.read"):
        SourceOptions(NEEDED | {"as_of": "1"}, BATCH_WRITE)
    with pytest.raises(InvalidRequest, match="takes one dataset"):
        SourceOptions({"location": "grpc://localhost:1", "paths": '["a","b"]'}, BATCH_READ)


def test_server_and_dataset_must_be_named() -> None:
    with pytest.raises(InvalidRequest, match="name the server"):
        SourceOptions({"path": "countries"}, BATCH_READ)
    with pytest.raises(InvalidRequest, match="name the dataset"):
        SourceOptions({"location": "grpc://localhost:1"}, BATCH_READ)


def test_a_schema_is_asked_for_with_the_options_of_either_read() -> None:
    given = NEEDED | {"as_of": "1", "starting": "latest"}
    assert SourceOptions(given, ANY_READ).get("starting") == "latest"
    for use in (BATCH_READ, STREAM_READ):
        with pytest.raises(InvalidRequest, match="has no option"):
            SourceOptions(given, use)


def test_a_token_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    for token in ("", "secret\n", " secret", "secr\u00e9t", "sec\rret"):
        with pytest.raises(InvalidRequest, match="the token is printable ASCII") as refused:
            read(token=token)
        assert "sec" not in str(refused.value)


def test_sparks_own_options_are_passed_over() -> None:
    SourceOptions(NEEDED | {"checkpointLocation": "/tmp/c", "queryName": "q"}, STREAM_WRITE)
    with pytest.raises(InvalidRequest, match="no option 'checkpointLocation'"):
        SourceOptions(NEEDED | {"checkpointLocation": "/tmp/c"}, BATCH_WRITE)


def test_the_server_of_an_embedded_client_is_one_and_another_is_not() -> None:
    own = RemoteServer("grpc://localhost:2", embedded=True)
    assert SourceOptions({"path": "countries"}, BATCH_READ, own).server().embedded
    assert not SourceOptions(NEEDED, BATCH_READ, own).server().embedded


def test_a_server_that_nothing_has_reached_is_asked_once_and_another_one_is_waited_for() -> None:
    own = RemoteServer("grpc://localhost:2")
    for use in (ANY_READ, BATCH_READ, BATCH_WRITE):
        server = SourceOptions(NEEDED | {"tries": "1000000"}, use, own).server()
        with pytest.raises(Unreachable, match="no server answers at grpc://localhost:1:"):
            find(server, "countries")
        server.close()
        assert SourceOptions({"path": "countries"}, use, own).server().patient
    for use in (STREAM_READ, STREAM_WRITE):
        assert SourceOptions(NEEDED, use, own).server().patient


def test_a_name_may_be_spelled_as_spark_spells_its_own() -> None:
    options = SourceOptions(NEEDED | {"startingVersion": "7", "maxVersionsPerTrigger": "2"}, STREAM_READ)
    assert (options.get("starting_version"), options.get("max_versions_per_trigger")) == (7, 2)
    with pytest.raises(InvalidRequest, match="'as_of' is given in two spellings"):
        read(as_of="1", asof="2")
