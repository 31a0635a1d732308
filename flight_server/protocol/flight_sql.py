"""How requests of Flight SQL, which this server does not speak, are recognised and refused: by the type's name in its
protobuf messages, and by its actions' names (``FlightSql.proto`` of Apache Arrow).
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
INSTEAD = 'describe a dataset by PATH [dataset] or by CMD {"dataset": "…"}, and read it with its tickets'


def refuse(data: bytes) -> None:
    """Raise Unsupported if the bytes are a command or ticket of Flight SQL."""
    match = _TYPE.search(data[:200])
    if match is not None:
        command = match[1].decode()
        raise Unsupported(
            f"this is not a Flight SQL server, so it takes no {command}: {INSTEAD}", command=command
        )
