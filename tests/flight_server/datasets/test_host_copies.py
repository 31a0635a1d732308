"""Hosts' copies: a host is listed until it has said that its file is gone."""

from __future__ import annotations

import pytest

from flight_server.datasets import host_copies
from flight_server.datasets.host_copies import HOST_BYTES, HostCopies
from flight_server.memory import MemoryPool, Metadata
from flight_server.protocol.errors import OutOfBudget

ONE, TWO = ("one", "g1"), ("two", "g2")


class Rig:
    """Copies of two datasets, which live until they are taken out of ``alive``."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.alive = {ONE, TWO}
        self.now = 0.0
        self.pool = MemoryPool(limit_bytes, "metadata")
        self.copies = HostCopies(
            Metadata(self.pool), lambda *content: content in self.alive, lambda: self.now
        )


def test_a_withdrawn_copy_is_listed_until_its_host_has_removed_it() -> None:
    rig = Rig()
    for host in ("a", "b"):
        assert rig.copies.keep(ONE, host, "file1") == []
        assert rig.copies.keep(ONE, host, "file1") == []
    rig.copies.withdraw(ONE)
    assert rig.copies.which(ONE) == ([], ["a", "b"])
    rig.copies.removed("a", "file1")
    rig.copies.removed("a", "file1")
    assert rig.copies.which(ONE) == ([], ["b"])
    assert rig.copies.keep(ONE, "a", "file1") == [], "it was fetched again"
    assert rig.copies.which(ONE) == (["a"], ["b"])
    rig.copies.removed("b", "file1")
    assert rig.copies.which(ONE) == (["a"], [])
    rig.copies.withdraw(TWO)


def test_a_host_learns_of_its_withdrawn_files_when_it_keeps_another() -> None:
    rig = Rig()
    rig.copies.keep(ONE, "a", "file1")
    rig.copies.withdraw(ONE)
    assert rig.copies.keep(TWO, "a", "file2") == ["file1"]
    assert rig.copies.keep(TWO, "b", "file2") == []
    rig.copies.removed("a", "file1")
    assert rig.copies.keep(TWO, "a", "file2") == []


def test_files_of_a_dropped_dataset_are_to_be_removed_without_a_word() -> None:
    rig = Rig()
    rig.copies.keep(ONE, "a", "file1")
    rig.alive.remove(ONE)
    assert rig.copies.which(ONE) == ([], ["a"])
    assert rig.copies.keep(TWO, "a", "file2") == ["file1"]


def test_memory_is_counted_for_each_host_and_refused_beyond_the_account() -> None:
    rig = Rig(3 * HOST_BYTES)
    for host in ("a", "b", "c"):
        rig.copies.keep(ONE, host, "file1")
    assert rig.pool.used_bytes == 3 * HOST_BYTES
    with pytest.raises(OutOfBudget, match="another copy of dataset 'two'"):
        rig.copies.keep(TWO, "a", "file2")
    for host in ("a", "b", "c"):
        rig.copies.removed(host, "file1")
    assert rig.pool.used_bytes == len(rig.copies) == 0
    rig.copies.keep(TWO, "a", "file2")


def test_a_dataset_has_copies_on_so_many_hosts_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "MAX_HOSTS", 1)
    rig = Rig()
    rig.copies.keep(ONE, "a", "file1")
    with pytest.raises(OutOfBudget, match="on 1 hosts"):
        rig.copies.keep(ONE, "b", "file1")


def test_kept_hosts_of_one_file_fetch_from_each_other() -> None:
    rig = Rig()
    for host in "abcd":
        rig.copies.keep(ONE, host, "file1")
    assert [rig.copies.fetch(ONE, host, "file1", host.upper()) for host in "abc"] == [None, None, "A"]
    assert rig.copies.fetch(ONE, "c", "file1", "C", lost="A") is None
    rig.copies.fetched(ONE, "b")
    rig.copies.fetched(TWO, "b")
    rig.copies.removed("c", "file1")
    assert rig.copies.fetch(ONE, "d", "file1", "D") is None, "the place of C"
    rig.copies.keep(ONE, "f", "file2")
    assert rig.copies.fetch(ONE, "f", "file2", "F") is None, "another application's"
    assert rig.copies.fetch(ONE, "g", "file1", "G") is None, "it is not listed"
    assert rig.copies.fetch(TWO, "d", "file1", "D") is None
    rig.copies.fetched(ONE, "f")
    for host in "hijk":
        rig.copies.keep(ONE, host, "file1")
    given = [rig.copies.fetch(ONE, host, "file1", host.upper()) for host in "hijk"]
    assert not {"F", "G"} & set(given)


def test_hosts_that_never_come_back_are_forgotten_when_their_dataset_is_long_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_copies, "_MIN_CONTENTS", 2)
    rig = Rig()
    rig.copies._forget_at = 2
    rig.copies.keep(ONE, "a", "file1")
    rig.copies.keep(TWO, "a", "file2")
    rig.alive.remove(ONE)
    rig.copies.keep(TWO, "b", "file2")
    assert rig.copies.which(ONE) == ([], ["a"]), "it went just now"
    rig.now = host_copies.FORGET_SECONDS + 1
    rig.copies._forget_at = 2
    assert rig.copies.keep(TWO, "b", "file2") == []
    assert rig.copies.which(ONE) == ([], [])
    assert rig.copies.which(TWO) == (["a", "b"], []), "its dataset lives"
