"""Addresses become file systems, no secret of the driver's goes into a task, and no signature into a message."""

from __future__ import annotations

import pickle
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from flight_server.protocol.errors import InvalidRequest, SourceUnavailable
from spark_client.scan.file_systems import hidden, locate, portable


def test_a_path_is_absolute_and_a_file_address_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("a/b", f"{tmp_path}/a/b", f"file://{tmp_path}/a/b"):
        [(filesystem, path)] = locate([text])
        assert filesystem.equals(fs.LocalFileSystem())
        assert path == f"{tmp_path}/a/b"


def test_hadoops_names_of_s3_are_s3_and_one_bucket_has_one_file_system() -> None:
    found = locate(
        f"{scheme}://bucket/a/b{end}?region=eu-west-1" for scheme in ("s3", "s3a") for end in ("", "/")
    )
    for filesystem, path in found:
        assert (filesystem.type_name, filesystem.region, path) == ("s3", "eu-west-1", "bucket/a/b")
        assert filesystem is found[0][0]


def test_every_address_of_a_bucket_is_read_without_its_escapes() -> None:
    found = locate(
        f"s3://bucket/{name}?region=eu-west-1" for name in ("a%20b", "c%20d", "e f", "g+h#i", "%C3%A9")
    )
    assert [path for _, path in found] == [
        "bucket/a b",
        "bucket/c d",
        "bucket/e f",
        "bucket/g+h#i",
        "bucket/é",
    ]


def test_a_pattern_in_an_address_is_one_only_where_it_is_not_quoted() -> None:
    found = locate(f"s3://bucket/{name}?region=eu-west-1" for name in ("a?/b*", "a%3F/b%2A", "day=?"))
    assert [path for _, path in found] == ["bucket/a?/b*", r"bucket/a\?/b\*", "bucket/day=?"]


def test_the_name_of_a_user_in_an_address_is_in_no_path() -> None:
    assert [path for _, path in locate(["gs://anonymous@bucket/a", "gs://anonymous@bucket/b"])] == [
        "bucket/a",
        "bucket/b",
    ]


@pytest.mark.parametrize("text", ["s3://KEY:hidden@bucket/a", "sftp://me:hidden@host/a"])
def test_an_address_with_a_password_is_refused_without_naming_it(text: str) -> None:
    with pytest.raises(InvalidRequest, match="has a password in it; leave it out") as caught:
        locate([text])
    assert "hidden" not in caught.value.message


def test_an_address_that_only_fsspec_may_know_says_so() -> None:
    with pytest.raises(InvalidRequest, match=r"install fsspec|nowhere"):
        locate(["nowhere://a/b"])


SECRET = "only-the-driver-has-it"


@pytest.mark.parametrize(
    "filesystem",
    [
        fs.S3FileSystem(access_key=SECRET, secret_key=SECRET, session_token=SECRET, region="eu-west-1"),
        fs.S3FileSystem(region="eu-west-1", proxy_options=f"http://me:{SECRET}@proxy:8080"),
        fs.SubTreeFileSystem(
            "bucket", fs.S3FileSystem(access_key=SECRET, secret_key=SECRET, region="eu-west-1")
        ),
        fs.AzureFileSystem("account", tenant_id="t", client_id="c", client_secret=SECRET),
        fs.AzureFileSystem("account", sas_token=SECRET),
        fs.GcsFileSystem(access_token=SECRET, credential_token_expiration=datetime(2100, 1, 1, tzinfo=UTC)),
    ],
    ids=["s3", "proxy", "subtree", "azure", "azure sas", "gcs"],
)
def test_secrets_are_not_in_what_a_task_gets(filesystem: Any) -> None:
    assert SECRET.encode() in pickle.dumps(filesystem)
    sent = pickle.dumps(portable(filesystem))
    assert SECRET.encode() not in sent
    assert pickle.loads(sent).type_name == filesystem.type_name


def test_where_the_files_are_is_sent_along() -> None:
    given = fs.S3FileSystem(
        access_key="a", secret_key="b", region="eu-north-1", endpoint_override="127.0.0.1:9", scheme="http"
    )
    _, (options,) = portable(given).__reduce__()
    assert [options[name] for name in ("region", "endpoint_override", "scheme")] == [
        "eu-north-1",
        "127.0.0.1:9",
        "http",
    ]
    assert portable(fs.S3FileSystem(anonymous=True, region="x")).__reduce__()[1][0]["anonymous"]


class Remote:
    """A file system of fsspec, as far as this asks for it."""

    def __init__(self, host: Any = "", account: Any = "", **options: Any) -> None:
        self.storage_args, self.storage_options = (host, account), options


def sent(*places: Any, **options: Any) -> dict[str, Any]:
    """The arguments of what a task gets for a file system of fsspec with these."""
    found = portable(fs.PyFileSystem(fs.FSSpecHandler(Remote(*places, **options)))).handler.fs
    assert SECRET not in str(vars(found))
    return {"host": found.storage_args[0], **found.storage_options}


def test_of_fsspecs_arguments_only_those_that_are_needed_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    unknown: dict[str, Any] = dict.fromkeys(
        ("key", "secret", "apikey", "sas", "sig", "auth", "license"), SECRET
    )
    with caplog.at_level("INFO"):
        found = sent(
            "here",
            SECRET,
            endpoint="e",
            token="anon",
            account_url=f"https://a.blob.core.windows.net/?sv=1&sig={SECRET}",
            endpoint_url=f"https://me:{SECRET}@minio:9000",
            headers={"X-Api-Key": SECRET, "Cookie": SECRET, "Accept": "*"},
            client_kwargs={"headers": {"Ocp-Apim-Subscription-Key": SECRET}},
            fs=fs.S3FileSystem(access_key=SECRET, secret_key=SECRET, region="eu-west-1"),
            **unknown,
        )
    assert found.pop("fs").region == "eu-west-1"
    assert found == {
        "host": "here",
        "endpoint": "e",
        "token": "anon",
        "account_url": "https://a.blob.core.windows.net/",
        "endpoint_url": "https://minio:9000",
        "headers": {"Accept": "*"},
        "client_kwargs": {"headers": {}},
    }
    assert "tasks take account, key, secret, apikey" in caplog.text
    assert SECRET not in caplog.text


def test_an_address_of_a_file_travels_whole() -> None:
    signed = "https://host/a.zip?X-Amz-Signature=abc"
    assert sent(fo=signed)["fo"] == signed


def test_secrets_of_fsspec_are_left_out_at_any_depth() -> None:
    inner = Remote(
        client_kwargs={"aws_access_key_id": SECRET, "aws_secret_access_key": SECRET, "verify": False}
    )
    options = {
        "fs": inner,
        "headers": {"Authorization": f"Bearer {SECRET}", "Accept": "*"},
        "auth": (SECRET,),
    }
    found = portable(fs.PyFileSystem(fs.FSSpecHandler(Remote(**options)))).handler.fs
    assert found.storage_options["fs"].storage_options == {"client_kwargs": {"verify": False}}
    assert found.storage_options["headers"] == {"Accept": "*"}
    assert "auth" not in found.storage_options


def test_headers_that_are_pairs_are_cleaned_as_others() -> None:
    found = sent(
        client_kwargs={"headers": [("Authorization", SECRET), ("Accept", "*")], "timeout": (5, 10)},
        target_options={"proxies": [f"http://me:{SECRET}@proxy:1"]},
    )
    assert found["client_kwargs"] == {"headers": [("Accept", "*")], "timeout": (5, 10)}
    assert found["target_options"] == {"proxies": ["http://proxy:1"]}


def test_a_proxy_and_an_endpoint_without_a_scheme_travel_without_their_user() -> None:
    found = sent(
        proxies={"https": f"me:{SECRET}@proxy:80", "http": f"{SECRET}@proxy:80"},
        endpoint_override=f"me:{SECRET}@minio",
        endpoint=f"me:a/{SECRET}@b@minio:9000",
        username="me@corp.com",
    )
    assert found == {
        "host": "",
        "proxies": {"https": "proxy:80", "http": "proxy:80"},
        "endpoint_override": "minio",
        "endpoint": "minio:9000",
        "username": "me@corp.com",
    }


@pytest.mark.parametrize("text", ["s3://KEY:hid/den@bucket/a", "s3://KEY:hidden@bucket/a?x=hidden"])
def test_what_an_address_hides_is_in_no_error_and_no_cause(text: str) -> None:
    def failing() -> None:
        with hidden():
            locate([text])

    with pytest.raises(InvalidRequest) as caught:
        failing()
    assert "KEY" not in "".join(traceback.format_exception(caught.value))
    assert "hid" not in caught.value.message


def test_an_error_of_another_library_that_shows_a_signature_is_one_of_ours() -> None:
    @hidden()
    def opened(error: Exception) -> None:
        raise error

    with pytest.raises(SourceUnavailable) as caught:
        opened(RuntimeError(f"403, url='https://host/a?X-Amz-Signature={SECRET}'"))
    assert caught.value.message == "scan: RuntimeError: 403, url='https://host/a'"
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(RuntimeError, match="plain"):
        opened(RuntimeError("plain"))
