"""The tables that this process has mapped: one for each broadcast, shared by the whole process (``hosts.open_files``).

Guarantee: while an object of the broadcast (:class:`~spark_client.broadcast.Broadcast`) that has asked for the table
lives in this process, every call gives the same table, unless its file was removed meanwhile.

The file of a table that is forgotten stays for others, unless it was withdrawn meanwhile: the thread asks the server.
"""

from __future__ import annotations

import pyarrow as pa

from spark_client.hosts import OpenFiles

from .content import BroadcastContent
from .withdrawing import open_file, remove_withdrawn

mapped: OpenFiles[tuple[BroadcastContent, pa.Table]] = OpenFiles(
    "broadcasts: forgets tables", lambda known: remove_withdrawn(known[0])
)
"""This process's, by the contents' keys."""


def mapped_table(content: BroadcastContent, user: object) -> pa.Table:
    """The table of a content, mapped now if this process has none. Raises as ``Broadcast.table``."""
    known = mapped.get(content.key, user)
    if known is None:
        file = open_file(content)
        try:
            table = content.map(file)
        except BaseException:
            file.close()
            raise
        known = mapped.add(content.key, file, (content, table), user)
    return known[1]
