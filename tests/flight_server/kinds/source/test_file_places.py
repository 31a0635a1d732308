"""No way out of the roots: not by dots, links, URLs or devices, and not between the look and the opening. And objects
in S3.

There is no S3 here: a local file system stands for it, behind the same interface of Arrow. So what is tested is which
URLs are taken, what is listed, identity and reading; not S3's own behaviour.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow import fs

from flight_server.kinds.source import file_places
from flight_server.kinds.source.file_places import FilePlaces
from flight_server.protocol.errors import Forbidden, InvalidRequest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file, next to a directory with secrets whose name begins like the root's."""
    root = tmp_path / "root"
    (root / "sales").mkdir(parents=True)
    (root / "sales" / "a.csv").write_text("n\n1\n")
    outside = tmp_path / "root-secrets"
    outside.mkdir()
    (outside / "secret.csv").write_text("n\n42\n")
    return root


def read(roots: FilePlaces, path: str) -> bytes:
    opened = roots.open(path)
    try:
        return bytes(opened.stream.read())
    finally:
        opened.close()


def test_a_file_is_found_by_its_absolute_path_and_relative_to_a_root(root: Path, tmp_path: Path) -> None:
    roots = FilePlaces([tmp_path / "not there", root])
    expected = [str(root / "sales" / "a.csv")]
    assert roots.files(str(root / "sales" / "a.csv")) == expected
    assert roots.files("sales/a.csv") == expected
    assert roots.files("sales") == expected
    assert roots.files("sales/../sales/./a.csv") == expected
    assert roots.files(str(root)) == expected
    assert read(roots, expected[0]) == b"n\n1\n"


@pytest.mark.parametrize(
    "path",
    [
        "../root-secrets/secret.csv",
        "sales/../../root-secrets/secret.csv",
        "../root-secrets",
        "..",
        "/etc/passwd",
        "/",
        "/proc/self/environ",
        "/does/not/exist",
        "~/secret.csv/../../../..",
    ],
)
def test_a_path_that_leads_out_is_refused_whether_there_is_something_or_not(root: Path, path: str) -> None:
    with pytest.raises(Forbidden, match="does not lie in the roots") as caught:
        FilePlaces([root]).files(path)
    assert str(root) in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        "s3://bucket/key",
        "gs://b/k",
        "hdfs:x",
        "File:/a",
    ],
)
def test_a_url_is_no_path(root: Path, url: str) -> None:
    with pytest.raises(Forbidden, match="is a URL"):
        FilePlaces([root]).files(url)


@pytest.mark.parametrize("path", ["", "sales\0/a.csv"])
def test_what_is_no_path_at_all_is_refused(root: Path, path: str) -> None:
    with pytest.raises(InvalidRequest):
        FilePlaces([root]).files(path)


def test_without_roots_there_is_nothing_to_read(root: Path) -> None:
    with pytest.raises(Forbidden, match="no --source-roots"):
        FilePlaces([]).files(str(root))


def test_what_is_not_there_is_an_error_that_names_the_roots(root: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no file or directory 'sales/b\.csv'") as caught:
        FilePlaces([root]).files("sales/b.csv")
    assert str(root) in str(caught.value)


def test_a_link_that_leads_out_is_refused_as_a_path_and_in_a_directory(root: Path) -> None:
    (root / "sales" / "b.csv").symlink_to("../../root-secrets/secret.csv")
    (root / "other").symlink_to(root.parent / "root-secrets")
    for path in ("sales/b.csv", "sales", "other", "other/secret.csv", "."):
        with pytest.raises(Forbidden, match="does not lie in the roots"):
            FilePlaces([root]).files(path)


def test_a_link_that_stays_inside_is_followed_to_a_file_and_refused_to_a_directory(root: Path) -> None:
    (root / "latest.csv").symlink_to("sales/a.csv")
    assert FilePlaces([root]).files("latest.csv") == [str(root / "sales" / "a.csv")]
    (root / "again").symlink_to("sales")
    assert FilePlaces([root]).files("again") == [str(root / "sales" / "a.csv")]
    assert FilePlaces([root / "again"]).files(".") == [str(root / "sales" / "a.csv")], "as a root"
    with pytest.raises(InvalidRequest, match="symbolic link to a directory"):
        FilePlaces([root]).files(".")


@pytest.mark.parametrize("linked", ["sales/a.csv", "sales"])
def test_what_becomes_a_link_after_the_look_is_not_opened_or_gone_through(root: Path, linked: str) -> None:
    roots, secrets = FilePlaces([root]), root.parent / "root-secrets"
    (path,) = roots.files("sales")
    (secrets / "a.csv").write_text("n\n42\n")
    (root / linked).rename(root / "moved")
    (root / linked).symlink_to(secrets if linked == "sales" else secrets / "a.csv")
    with pytest.raises(Forbidden, match="symbolic link has come into"):
        roots.open(path)


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = FilePlaces([root])
    (path,) = roots.files("sales")
    system_open = os.open

    def replaced(name: str, flags: int) -> int:
        descriptor = system_open(name, flags)
        if flags & os.O_PATH:
            (root / "new.csv").write_text("n\n2\n")
            (root / "new.csv").replace(path)
        return descriptor

    monkeypatch.setattr(file_places.os, "open", replaced)
    assert read(roots, path) == b"n\n1\n"


def test_a_path_that_was_never_looked_at_is_not_opened_outside(root: Path) -> None:
    for path in ("/etc/passwd", f"{root}/../root-secrets/secret.csv"):
        with pytest.raises(Forbidden, match="does not lie in the roots"):
            FilePlaces([root]).open(path)


def test_a_pipe_is_refused_and_holds_up_no_task(root: Path) -> None:
    os.mkfifo(root / "pipe")
    roots = FilePlaces([root])
    (path,) = roots.files("pipe")
    with pytest.raises(Forbidden, match="not a regular file"):
        roots.open(path)


def test_files_come_in_the_order_of_their_paths_without_hidden_ones(root: Path) -> None:
    for name in (
        "b/2.csv",
        "b/1.csv",
        "a/3.csv",
        ".hidden/x.csv",
        "_temporary/y.csv",
        "b/_SUCCESS",
        "b/.1.crc",
    ):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("n\n1\n")
    assert FilePlaces([root]).files(".") == [
        str(root / n) for n in ("a/3.csv", "b/1.csv", "b/2.csv", "sales/a.csv")
    ]


# S3


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    bucket = tmp_path / "bucket"
    for key in ("a/2.csv", "a/1.csv", "a/_SUCCESS", "a/_temporary/x.csv", "b.csv"):
        (bucket / key).parent.mkdir(parents=True, exist_ok=True)
        (bucket / key).write_text(key)
    return bucket


@pytest.fixture
def files(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> FilePlaces:
    stand_in = fs.SubTreeFileSystem(str(bucket.parent), fs.LocalFileSystem())
    monkeypatch.setattr(file_places, "_bucket", lambda _: stand_in)
    return FilePlaces([], s3=True)


def test_a_url_means_an_object_or_all_below_it_without_hidden_ones(files: FilePlaces) -> None:
    assert files.files("s3://bucket/b.csv") == ["s3://bucket/b.csv"]
    assert files.files("s3://bucket/a") == ["s3://bucket/a/1.csv", "s3://bucket/a/2.csv"]
    assert files.files("s3://bucket/a/") == ["s3://bucket/a/1.csv", "s3://bucket/a/2.csv"]
    assert len(files.files("s3://bucket")) == 3


def test_nothing_below_a_url_is_an_error(files: FilePlaces) -> None:
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
    ],
)
def test_a_url_says_bucket_and_key_and_nothing_else(files: FilePlaces, url: str) -> None:
    with pytest.raises(InvalidRequest, match="not s3://bucket/key"):
        files.files(url)


def test_an_object_is_read_and_has_another_identity_when_it_was_written_again(
    files: FilePlaces, bucket: Path
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
