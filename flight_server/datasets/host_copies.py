"""Which hosts have a file of which dataset, which of them are to remove it, and where they get it. For broadcasts.

Guarantee: a host that said ``keep`` is listed until it says ``removed``, also after the dataset was dropped; then
for ``FORGET_SECONDS`` at least. So a driver that withdraws a dataset's copies learns of every host that may have one.

    keep       the host is listed as *kept*; the answer is the host's withdrawn files, and those of datasets that are
               gone: the host removes them and says so
    fetch      a kept host gets its place in the dataset's tree (``copy_tree``), if its file has the name that the
               dataset's first host gave: another name is another application's
    fetched    its place there is free
    withdraw   every kept host of the dataset is listed as *withdrawn*
    removed    the host is not listed any more

A host that loses its file otherwise (to a bound, or a restart) says nothing, and stays listed.

A host's other files are those of datasets that the caller sees (``sees``).

Memory: ``HOST_BYTES`` for each host of a dataset, in ``metadata``. Nothing of it outlives the server, as the
datasets of broadcasts do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flight_server.memory import Metadata, Reservation
from flight_server.protocol import OutOfBudget

from .copy_tree import CopyTree

HOST_BYTES = 2048
MAX_HOSTS = 10_000
FORGET_SECONDS = 3600.0
_MIN_CONTENTS = 64

Sees = Callable[[str], bool]
Content = tuple[str, str]
"""A dataset's name and generation."""


@dataclass(slots=True)
class _Copy:
    file: str
    withdrawn: bool = False


@dataclass(slots=True)
class _Hosts:
    room: Reservation
    changed_at: float
    file: str
    tree: CopyTree
    copies: dict[str, _Copy] = field(default_factory=dict)


class HostCopies:
    """The table of hosts, of one server. ``lives``: whether a dataset of that name and generation is there."""

    def __init__(
        self, metadata: Metadata, lives: Callable[[str, str], bool], clock: Callable[[], float]
    ) -> None:
        self._metadata = metadata
        self._lives = lives
        self._clock = clock
        self._contents: dict[Content, _Hosts] = {}
        self._of_host: dict[str, set[Content]] = {}
        self._forget_at = _MIN_CONTENTS

    def __len__(self) -> int:
        return sum(len(hosts.copies) for hosts in self._contents.values())

    def keep(self, content: Content, host: str, file: str, sees: Sees = lambda _: True) -> list[str]:
        """Note the host's file; its files that are to be removed. Twice is fine. Raises OutOfBudget: the dataset has
        ``MAX_HOSTS``, or ``metadata`` has no room.

        Args:
            sees: whether the host's principal sees the dataset of a name; it learns of no other one's files.
        """
        self._forget()
        hosts = self._contents.get(content)
        if hosts is None or host not in hosts.copies:
            if hosts is not None and len(hosts.copies) >= MAX_HOSTS:
                raise OutOfBudget.about(
                    content[0], f"has copies on {MAX_HOSTS} hosts, and no more are counted"
                )
            room = self._metadata.pool.empty() if hosts is None else hosts.room
            self._metadata.grow(room, HOST_BYTES, f"another copy of dataset {content[0]!r}")
            if hosts is None:
                hosts = self._contents[content] = _Hosts(room, 0.0, file, CopyTree(self._clock))
        hosts.changed_at = self._clock()
        hosts.copies[host] = _Copy(file)
        of_host = self._of_host.setdefault(host, set())
        of_host.add(content)
        withdrawn = (each for each in of_host if sees(each[0]) and self._is_withdrawn(each, host))
        return [self._contents[each].copies[host].file for each in withdrawn]

    def fetch(
        self, content: Content, host: str, file: str, location: str | None = None, lost: str | None = None
    ) -> str | None:
        """From where the host is to fetch the dataset, as ``CopyTree.fetch``; also None if the host has no place."""
        hosts = self._contents.get(content)
        if hosts is None or host not in hosts.copies or file != hosts.file:
            return None
        return hosts.tree.fetch(host, location, lost)

    def fetched(self, content: Content, host: str) -> None:
        """The host has all of the dataset. Twice is fine."""
        if (hosts := self._contents.get(content)) is not None:
            hosts.tree.has_all(host)

    def removed(self, host: str, file: str, sees: Sees = lambda _: True) -> None:
        """The host has no such file, of any dataset."""
        of_host = [each for each in self._of_host.get(host, set()) if sees(each[0])]
        for each in [each for each in of_host if self._contents[each].copies[host].file == file]:
            self._drop(each, host)

    def withdraw(self, content: Content) -> None:
        """Let all hosts of the dataset remove their files."""
        if (hosts := self._contents.get(content)) is not None:
            hosts.changed_at = self._clock()
            for copy in hosts.copies.values():
                copy.withdrawn = True

    def which(self, content: Content) -> tuple[list[str], list[str]]:
        """The hosts that keep a file of the dataset, and those that are to remove theirs."""
        hosts = self._contents.get(content)
        copies = {} if hosts is None else hosts.copies
        kept = sorted(host for host in copies if not self._is_withdrawn(content, host))
        return kept, sorted(copies.keys() - set(kept))

    def _is_withdrawn(self, content: Content, host: str) -> bool:
        return self._contents[content].copies[host].withdrawn or not self._lives(*content)

    def _drop(self, content: Content, host: str) -> None:
        hosts = self._contents[content]
        del hosts.copies[host]
        hosts.tree.leave(host)
        hosts.room.shrink(HOST_BYTES)
        if not hosts.copies:
            del self._contents[content]
        self._of_host[host].discard(content)
        if not self._of_host[host]:
            del self._of_host[host]

    def _forget(self) -> None:
        """Drop what is known of datasets that went long ago; now and then, because it looks at all."""
        if len(self._contents) < self._forget_at:
            return
        until = self._clock() - FORGET_SECONDS
        for content, hosts in list(self._contents.items()):
            if hosts.changed_at < until and not self._lives(*content):
                for host in list(hosts.copies):
                    self._drop(content, host)
        self._forget_at = max(_MIN_CONTENTS, 2 * len(self._contents))
