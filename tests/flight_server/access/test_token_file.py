"""Token files: which are taken, and what the refusal of the others says."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flight_server.access import ANONYMOUS, Authenticator, Permission, Principal, TokenFileRefused
from flight_server.access.principals import Quotas
from flight_server.protocol import Unauthenticated
from tests.support.token_hashes import hash_of_token

ETL = f"""
[principals.etl]
tokens = ["{hash_of_token("t1")}", "{hash_of_token("t2")}"]
read = ["sales/"]
write = ["exchange/etl/"]
quotas = {{ bytes = "20GiB", streams = 200 }}
"""
LOG = f"""[principals.log]\ntokens = ["{hash_of_token("t3")}"]\nread = [""]\n"""


def test_each_token_of_a_principal_gives_its_permissions(tmp_path: Path) -> None:
    (file := tmp_path / "t.toml").write_text(ETL + LOG)
    known = Authenticator("own", file)
    for token in ("Bearer t1", "Bearer t2"):
        principal = known.principal(token)
        assert principal.quotas == Quotas(bytes=20 << 30, streams=200)
        assert principal.may(Permission.READ, "sales/x")
        assert not principal.may(Permission.WRITE, "sales/x")
        assert principal.sees("exchange/etl/y")
        assert not principal.sees("exchange/other")
        assert not principal.sees_all
    assert known.principal("Bearer t3").sees_all
    assert known.principal("Bearer own").may(Permission.ADMIN, "any")
    assert known.principal("Bearer of-a-proxy", "Bearer t3").name == "log"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no principal"),
        ("[principals]", "no principal"),
        ("principals = 1", "no principal"),
        ("nonsense", "not TOML"),
        ("a = " + "[" * 10_000, "not TOML"),
        ("a = " + "9" * 5_000, "not TOML"),
        ("[other]\n" + LOG, "keys outside of its principals"),
        ('[principals.a]\ntokens = ["S3CR3T"]\nread = [""]', "never as it is"),
        ("[principals.a]\ntokens = []\nread = ['']", "no 'tokens'"),
        (LOG.replace('read = [""]', ""), "may do nothing"),
        (LOG.replace('read = [""]', "read = 'x'"), "list of prefixes"),
        (LOG.replace('read = [""]', "read = ['a~b']"), "begins no dataset's name"),
        (LOG.replace("principals.log", "principals.anyone"), "'anyone' is the server's own"),
        (LOG.replace("principals.log", "principals.token"), "'token' is the server's own"),
        (LOG + "reads = []", "unknown key 'reads'"),
        (LOG + LOG.replace("principals.log", "principals.b"), "also one of 'log'"),
        (LOG + "quotas = { bytes = 'many' }", "no size"),
        (LOG + "quotas = { streams = 0 }", "above zero"),
        (LOG + "quotas = { datasets = true }", "above zero"),
        (LOG + "quotas = { words = 1 }", "table of bytes, datasets, streams"),
        (LOG + "quotas = { datasets = 1" + 5000 * "0" + " }", "not TOML"),
        ("a = " + 100_000 * "[", "not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    (file := tmp_path / "t.toml").write_text(text)
    with pytest.raises(TokenFileRefused, match=words) as refused:
        Authenticator(file=file)
    assert "S3CR3T" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenFileRefused, match="cannot be read"):
        Authenticator(file=tmp_path / "none")


async def test_a_reload_keeps_the_tokens_while_the_file_is_wrong_and_names_who_has_lost_something(
    tmp_path: Path,
) -> None:
    (file := tmp_path / "t.toml").write_text(ETL + LOG)
    known = Authenticator(file=file)
    lost: list[set[str]] = []
    before = [known.principal("Bearer t1"), known.principal("Bearer t3")]
    known.on_reload = lambda has_lost: lost.append({each.name for each in before if has_lost(each)})
    refusals: list[str | None] = []
    known.on_refusal = lambda: refusals.append(known.trouble)
    file.write_text("")
    await known.reload()
    assert "no principal" in str(known.trouble)
    assert known.principal("Bearer t1").name == "etl"
    assert refusals == [known.trouble]
    file.write_text(ETL.replace("sales/", "sales/2026/"))
    await known.reload()
    assert (known.trouble, lost) == (None, [{"etl", "log"}])
    with pytest.raises(Unauthenticated):
        known.principal("Bearer t3")
    assert not known.principal("Bearer t1").sees("sales/x")


@contextmanager
def no_descriptor() -> Iterator[None]:
    """Inside, this process can open nothing, as if it had as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_file_that_could_not_be_read_is_read_when_it_can_be(tmp_path: Path) -> None:
    (file := tmp_path / "t.toml").write_text(ETL + LOG)
    known = Authenticator(file=file)
    refusals: list[str | None] = []
    known.on_refusal = lambda: refusals.append(known.trouble)
    file.write_text(ETL)
    with no_descriptor():
        await known.reload()
        await known.reload()
    assert refusals == [known.trouble]
    assert "Too many open files" in str(known.trouble)
    assert known.principal("Bearer t3").name == "log"
    await known.reload()
    assert known.trouble is None
    with pytest.raises(Unauthenticated):
        known.principal("Bearer t3")


async def test_a_file_that_stays_wrong_or_away_is_refused_once_and_no_trouble_as_it_was(
    tmp_path: Path,
) -> None:
    (file := tmp_path / "t.toml").write_text(LOG)
    known = Authenticator(file=file)
    refusals: list[str | None] = []
    known.on_refusal = lambda: refusals.append(known.trouble)
    changes: list[Callable[[], object]] = [lambda: file.write_text("nonsense"), file.unlink]
    for change in changes:
        change()
        await known.reload()
        await known.reload()
        assert known.trouble == refusals[-1] is not None
        file.write_text(LOG)
        await known.reload()
        assert (known.trouble, known.principal("Bearer t3").name) == (None, "log")
    assert len(refusals) == 2


async def test_a_file_that_was_written_anew_under_its_old_time_is_read(tmp_path: Path) -> None:
    (file := tmp_path / "t.toml").write_text(LOG)
    known = Authenticator(file=file)
    before = file.stat()
    file.write_text(LOG.replace("principals.log", "principals.gol"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    await known.reload()
    assert known.principal("Bearer t3").name == "gol"


async def test_a_file_behind_a_link_that_is_replaced_is_read(tmp_path: Path) -> None:
    """As Kubernetes does it: a new directory for each content."""
    for number, name in enumerate(("log", "gol")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "t.toml").write_text(LOG.replace("principals.log", f"principals.{name}"))
    (link := tmp_path / "..data").symlink_to("..0")
    (file := tmp_path / "t.toml").symlink_to("..data/t.toml")
    known = Authenticator(file=file)
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").replace(link)
    await known.reload()
    assert known.principal("Bearer t3").name == "gol"


async def test_a_principal_is_gone_also_for_calls_that_began_before_its_quotas_changed(
    tmp_path: Path,
) -> None:
    (file := tmp_path / "t.toml").write_text(ETL + LOG)
    known = Authenticator(file=file)
    running: list[Principal] = [known.principal("Bearer t1"), ANONYMOUS]
    lost: list[list[str]] = []
    known.on_reload = lambda has_lost: lost.append([each.name for each in running if has_lost(each)])
    file.write_text(ETL.replace("streams = 200", "streams = 2000") + LOG)
    await known.reload()
    file.write_text(LOG)
    await known.reload()
    assert lost == [[], ["etl"]]
