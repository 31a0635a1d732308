"""No way out of the roots: not by dots, links, URLs or devices, and not between the look and the opening."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flight_server.kinds.source.roots import Roots
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


def read(roots: Roots, path: str) -> bytes:
    opened = roots.open(path)
    try:
        return bytes(opened.stream.read())
    finally:
        opened.close()


def test_a_file_is_found_by_its_absolute_path_and_relative_to_a_root(root: Path, tmp_path: Path) -> None:
    roots = Roots([tmp_path / "not there", root])
    expected = [str(root / "sales" / "a.csv")]
    assert roots.files(str(root / "sales" / "a.csv")) == expected
    assert roots.files("sales/a.csv") == expected
    assert roots.files("sales") == expected
    assert roots.files(str(root)) == expected
    assert read(roots, expected[0]) == b"n\n1\n"


def test_dots_that_stay_inside_are_fine(root: Path) -> None:
    assert Roots([root]).files("sales/../sales/./a.csv") == [str(root / "sales" / "a.csv")]


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
        Roots([root]).files(path)
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
        Roots([root]).files(url)


@pytest.mark.parametrize("path", ["", "sales\0/a.csv"])
def test_what_is_no_path_at_all_is_refused(root: Path, path: str) -> None:
    with pytest.raises(InvalidRequest):
        Roots([root]).files(path)


def test_without_roots_there_is_nothing_to_read(root: Path) -> None:
    with pytest.raises(Forbidden, match="no --source-roots"):
        Roots([]).files(str(root))


def test_what_is_not_there_is_an_error_that_names_the_roots(root: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no file or directory 'sales/b\.csv'") as caught:
        Roots([root]).files("sales/b.csv")
    assert str(root) in str(caught.value)


def test_a_link_that_leads_out_is_refused_as_a_path_and_in_a_directory(root: Path) -> None:
    (root / "sales" / "b.csv").symlink_to("../../root-secrets/secret.csv")
    for path in ("sales/b.csv", "sales"):
        with pytest.raises(Forbidden, match="does not lie in the roots"):
            Roots([root]).files(path)


def test_a_linked_directory_that_leads_out_is_refused(root: Path) -> None:
    (root / "other").symlink_to(root.parent / "root-secrets")
    for path in ("other", "other/secret.csv", "."):
        with pytest.raises(Forbidden, match="does not lie in the roots"):
            Roots([root]).files(path)


def test_a_link_that_stays_inside_is_followed_to_a_file_and_refused_to_a_directory(root: Path) -> None:
    (root / "latest.csv").symlink_to("sales/a.csv")
    assert Roots([root]).files("latest.csv") == [str(root / "sales" / "a.csv")]
    (root / "again").symlink_to("sales")
    assert Roots([root]).files("again") == [str(root / "sales" / "a.csv")]
    with pytest.raises(InvalidRequest, match="symbolic link to a directory"):
        Roots([root]).files(".")


def test_a_root_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert Roots([tmp_path / "link"]).files("sales") == [str(root / "sales" / "a.csv")]


def test_a_file_that_becomes_a_link_after_the_look_is_not_opened(root: Path) -> None:
    roots = Roots([root])
    (path,) = roots.files("sales")
    Path(path).unlink()
    Path(path).symlink_to(root.parent / "root-secrets" / "secret.csv")
    with pytest.raises(Forbidden, match="symbolic link has come into"):
        roots.open(path)


def test_a_directory_that_becomes_a_link_after_the_look_is_not_gone_through(root: Path) -> None:
    roots = Roots([root])
    (path,) = roots.files("sales")
    (root / "sales").rename(root / "moved")
    (root / "sales").symlink_to(root.parent / "root-secrets")
    (root.parent / "root-secrets" / "a.csv").write_text("n\n42\n")
    with pytest.raises(Forbidden, match="symbolic link has come into"):
        roots.open(path)


def test_a_path_that_was_never_looked_at_is_not_opened_outside(root: Path) -> None:
    for path in ("/etc/passwd", f"{root}/../root-secrets/secret.csv"):
        with pytest.raises(Forbidden, match="does not lie in the roots"):
            Roots([root]).open(path)


def test_a_pipe_is_refused_and_holds_up_no_task(root: Path) -> None:
    os.mkfifo(root / "pipe")
    roots = Roots([root])
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
    assert Roots([root]).files(".") == [
        str(root / n) for n in ("a/3.csv", "b/1.csv", "b/2.csv", "sales/a.csv")
    ]
