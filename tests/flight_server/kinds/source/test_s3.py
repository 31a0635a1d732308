"""Objects in S3. There is none here: a local file system stands for it, behind the same interface of Arrow.

So what is tested is which URLs are taken, what is listed, identity and reading; not S3's own behaviour.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from flight_server.kinds.source.s3 import S3Files
from flight_server.protocol.errors import InvalidRequest


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    bucket = tmp_path / "bucket"
    for key in ("a/2.csv", "a/1.csv", "a/_SUCCESS", "a/_temporary/x.csv", "b.csv"):
        (bucket / key).parent.mkdir(parents=True, exist_ok=True)
        (bucket / key).write_text(key)
    return bucket


@pytest.fixture
def files(bucket: Path) -> S3Files:
    return S3Files(fs.SubTreeFileSystem(str(bucket.parent), fs.LocalFileSystem()))


def test_a_url_means_an_object_or_all_below_it_without_hidden_ones(files: S3Files) -> None:
    assert files.files("s3://bucket/b.csv") == ["s3://bucket/b.csv"]
    assert files.files("s3://bucket/a") == ["s3://bucket/a/1.csv", "s3://bucket/a/2.csv"]
    assert files.files("s3://bucket/a/") == ["s3://bucket/a/1.csv", "s3://bucket/a/2.csv"]
    assert len(files.files("s3://bucket")) == 3


def test_nothing_below_a_url_is_an_error(files: S3Files) -> None:
    with pytest.raises(InvalidRequest, match="no object at or below"):
        files.files("s3://bucket/c")


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/a",
        "s3://bucket/a?endpoint_override=http://127.0.0.1:1",
        "s3://bucket/a#x",
        "s3:///a",
        "s3://UPPER/a",
        "https://bucket/a",
    ],
)
def test_a_url_says_bucket_and_key_and_nothing_else(files: S3Files, url: str) -> None:
    with pytest.raises(InvalidRequest, match="not s3://bucket/key"):
        files.files(url)


def test_an_object_is_read_and_has_another_identity_when_it_was_written_again(
    files: S3Files, bucket: Path
) -> None:
    opened = files.open("s3://bucket/b.csv")
    try:
        assert opened.stream.read() == b"b.csv"
        before = opened.identity()
        assert opened.identity() == before
        os.utime(bucket / "b.csv", ns=(1, 1))
        assert opened.identity() != before
        (bucket / "b.csv").unlink()
        with pytest.raises(FileNotFoundError):
            opened.identity()
    finally:
        opened.close()
