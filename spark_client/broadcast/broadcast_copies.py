"""The copies of broadcasts on hosts: each fetched once, mapped by the processes there, and withdrawn by the driver.

Guarantee: while an object of the broadcast (:class:`~spark_client.broadcast.Broadcast`) that has asked for the table
lives in this process, every call gives the same table, unless its file was removed meanwhile (``hosts.open_files``).

Withdrawing
    The server lists every host that has made a file of the broadcast, from before the file is visible until the host
    says that it is removed (the action ``copies``). After :func:`withdraw`, or when the dataset was dropped, a listed
    host removes its file

    * as soon as the last task there that uses the table has ended, and its worker is still there: its thread asks the
      server;
    * when a task there fetches another broadcast from this server;
    * else by a sweep (``hosts``).

    The server still lists the remaining files, unless it was restarted.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pyarrow as pa

from flight_server.protocol import COPIES, CopiesRequest, CopyVerb, FlightShuffleError, NotFound
from spark_client.hosts import HostFile, HostFiles, OpenFiles, PartFile

from .content import BroadcastContent

_log = logging.getLogger(__name__)

FETCH_SECONDS = 600.0
"""How long a process waits for another of its host to fetch the table."""

_CALL_SECONDS = 10.0
"""What is not needed to use a table is not waited for any longer."""

mapped: OpenFiles[tuple[BroadcastContent, pa.Table]] = OpenFiles(
    "broadcasts: forgets tables", lambda known: remove_withdrawn(known[0])
)
"""The tables of this process, by the contents' keys. The file of one that is forgotten stays for others, unless it was
withdrawn.
"""


def mapped_table(content: BroadcastContent, user: object) -> pa.Table:
    """The table of a content, mapped now if this process has none. Raises as ``Broadcast.table``."""
    known = mapped.get(
        content.key, lambda: open_file(content), lambda file: (content, content.map(file)), user
    )
    assert known is not None
    return known[1]


def open_file(content: BroadcastContent) -> HostFile:
    """Open this host's file, fetched if it has none. Raises as ``Broadcast.table``."""
    made = False

    def make(part: PartFile) -> None:
        nonlocal made
        # Before the file is visible, so that no withdrawal misses it.
        keep(content)
        content.fetch(part)
        made = True

    files = HostFiles(content.copies)
    file = files.open_or_make(content.key, content.size_bytes, make, FETCH_SECONDS)
    if made:
        try:
            # Again: it may have been withdrawn, and its removal confirmed, while it was fetched.
            keep(content)
        except BaseException:
            file.close()
            files.remove(content.key)
            raise
    return file


def keep(content: BroadcastContent) -> None:
    """Tell the server that this host has, or will have, a file; remove those that were withdrawn meanwhile.

    Raises:
        NotFound: the dataset is gone.
        FlightShuffleError: the server did not answer.
    """
    files = HostFiles(content.copies)
    try:
        answer = _ask(content, CopyVerb.KEEP, files.place, content.key)
    except NotFound as error:
        raise content.gone(error) from error
    for key in answer.get("withdrawn", []):
        files.remove(key)
        with contextlib.suppress(FlightShuffleError):
            _ask(content, CopyVerb.REMOVED, files.place, key)


def remove_here(content: BroadcastContent) -> None:
    """Remove this host's file and say so. Twice is fine. Raises FlightShuffleError: it is removed, and the server did
    not answer.
    """
    files = HostFiles(content.copies)
    files.remove(content.key)
    if files.place is not None:
        _ask(content, CopyVerb.REMOVED, files.place, content.key)


def remove_withdrawn(content: BroadcastContent) -> None:
    """Remove this host's file if it was withdrawn, or its dataset dropped. Raises nothing."""
    try:
        answer = _ask(content, CopyVerb.WHICH)
        # Gone: also with a server that was restarted, which knows of no copy.
        if answer.get("gone") or HostFiles(content.copies).place in answer.get("withdrawn", []):
            remove_here(content)
    except (FlightShuffleError, OSError) as error:
        _log.info("whether the copy of broadcast %r was withdrawn is unknown: %s", content.name, error)


def withdraw(content: BroadcastContent) -> None:
    """Let all hosts remove their files."""
    _ask(content, CopyVerb.WITHDRAW)


def _ask(
    content: BroadcastContent, verb: CopyVerb, host: str | None = None, file: str | None = None
) -> dict[str, Any]:
    source = content.source
    request = CopiesRequest(verb, source.dataset, source.generation, host, file)
    seconds = None if verb is CopyVerb.KEEP else _CALL_SECONDS
    return source.server.action(COPIES, request.encode(), timeout_seconds=seconds, once=True)
