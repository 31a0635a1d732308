"""Options of the data source: what each one takes, and how a wrong one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flight_server.protocol import InvalidRequest, KeepRule
from spark_client.datasource.source_options import SourceOptions
from spark_client.settings import (
    ANY_READ,
    BATCH_READ,
    BATCH_WRITE,
    OF_PARTITIONS,
    STREAM_READ,
    STREAM_WRITE,
)
from spark_client.settings.texts import EVERY_ROW

NEEDED = {"location": "grpc://localhost:1", "path": "countries"}


def read(**given: str) -> SourceOptions:
    return SourceOptions(NEEDED | given, BATCH_READ)


def test_values_are_parsed_and_names_are_of_any_case() -> None:
    options = read(Columns="a, b", AsOf="0", BUDGET_bytes="1000")
    assert options.dataset == "countries"
    assert options.get("columns") == ("a", "b")
    assert options.get("as_of") == 0
    assert options.server().reading.budget_bytes == 1000
    assert read(columns='["a, b", "c"]').get("columns") == ("a, b", "c")


def test_the_server_gets_token_certificates_lane_and_deadlines(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    given = {"token": "secret", "lane": "GRPC", "stall_seconds": "7.5", "tries": "0"}
    server = read(**given, tls_root_certs=str(file)).server()
    assert (server.token, server.tls_root_certs) == ("secret", file.read_bytes())
    assert (server.reading.lane, server.writing.lane) == ("grpc", "grpc")
    assert (server.timeouts.stall_seconds, server.timeouts.tries) == (7.5, 0)
    pem = "-----BEGIN CERTIFICATE-----\nx"
    assert read(tls_root_certs=pem).server().tls_root_certs == pem.encode()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("as_of", "1.5", "an integer from 0 on"),
        ("stall_seconds", "nan", "a number"),
        ("columns", "a,,b", "different names"),
        ("columns", '["a"', "a JSON list of names"),
        ("location", "localhost:8815", "write 'grpc://localhost:8815'"),
        ("path", "/countries", "not a dataset name"),
    ],
)
def test_a_wrong_value_is_an_error_that_says_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**{name: value})
    assert allowed in str(refused.value)


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
        with pytest.raises(InvalidRequest, match="option 'token' is printable ASCII") as refused:
            read(token=token)
        assert "sec" not in str(refused.value)


def test_sparks_own_options_are_passed_over() -> None:
    SourceOptions(NEEDED | {"checkpointLocation": "/tmp/c", "queryName": "q"}, STREAM_WRITE)
    with pytest.raises(InvalidRequest, match="no option 'checkpointLocation'"):
        SourceOptions(NEEDED | {"checkpointLocation": "/tmp/c"}, BATCH_WRITE)


def test_a_name_may_be_spelled_as_spark_spells_its_own() -> None:
    options = SourceOptions(NEEDED | {"startingVersion": "7", "maxVersionsPerTrigger": "2"}, STREAM_READ)
    assert (options.get("starting_version"), options.get("max_versions_per_trigger")) == (7, 2)
    with pytest.raises(InvalidRequest, match="'as_of' is given in two spellings"):
        read(as_of="1", asof="2")


def test_a_changelog_is_declared_by_its_keep_rule_or_keeps_every_row() -> None:
    def write(**given: str) -> SourceOptions:
        return SourceOptions(NEEDED | given, BATCH_WRITE)

    rule = {"rule": "latest", "key": ["currency"], "order_by": ["time"]}
    assert write(changelog=json.dumps(rule)).get("changelog") == KeepRule.parse(rule)
    assert write(changelog="All", delaySeconds="500ms").get("changelog") == EVERY_ROW
    with pytest.raises(InvalidRequest, match="'all', or a keep rule in JSON"):
        write(changelog="latest")
    with pytest.raises(InvalidRequest, match="'rule' is one of latest, top_k"):
        write(changelog='{"rule": "newest"}')


def test_a_query_starts_at_a_version_or_a_word() -> None:
    for given, expected in (("Latest", "latest"), ("earliest", "earliest"), (" 12 ", 12)):
        options = SourceOptions(NEEDED | {"starting_version": given}, STREAM_READ)
        assert options.get("starting_version") == expected
    with pytest.raises(InvalidRequest, match="'earliest' or 'latest', or a version"):
        SourceOptions(NEEDED | {"starting_version": "first"}, STREAM_READ)


def test_options_of_another_kind_of_dataset_are_refused_by_name() -> None:
    following = SourceOptions(NEEDED | {"starting": "latest"}, STREAM_READ)
    with pytest.raises(InvalidRequest, match="'countries' is a changelog, so it takes no option 'starting'"):
        following.refuse(OF_PARTITIONS, "is a changelog")
    read(columns="a").refuse(OF_PARTITIONS, "is a changelog")
