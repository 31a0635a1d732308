"""Flight SQL, which this server does not speak: how its requests are recognised and refused.

Its commands and tickets are protobuf messages that carry their type's name, and its actions have names of their own
(``FlightSql.proto`` of Apache Arrow).
"""

from __future__ import annotations

import re

from .errors import Unsupported

ACTIONS = frozenset(
    {
        "BeginSavepoint",
        "BeginTransaction",
        "CancelQuery",
        "ClosePreparedStatement",
        "CreatePreparedStatement",
        "CreatePreparedSubstraitPlan",
        "EndSavepoint",
        "EndTransaction",
    }
)
_TYPE = re.compile(rb"type\.googleapis\.com/arrow\.flight\.protocol\.sql\.([A-Za-z0-9_]{1,80})")
_INSTEAD = 'describe a dataset by PATH [dataset] or by CMD {"dataset": "…"}, and read it with its tickets'


def refuse(data: bytes) -> None:
    """Return if the bytes are no command and no ticket of Flight SQL.

    Raises:
        Unsupported: they are.
    """
    found = _TYPE.search(data[:200])
    if found is not None:
        command = found[1].decode()
        raise Unsupported(
            f"this is not a Flight SQL server, so it takes no {command}: {_INSTEAD}", command=command
        )


def refuse_all_but_json(command: bytes) -> None:
    """Return if the command of a descriptor is empty, or may be meant as JSON.

    Raises:
        Unsupported: it is a command of Flight SQL, or of another protocol.
    """
    refuse(command)
    if not command.lstrip().startswith((b"{", b"[")) and command.strip():
        raise Unsupported(
            f"the descriptor's command is not JSON, and this is not a Flight SQL server: {_INSTEAD}"
        )
