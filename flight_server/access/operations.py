"""The table of access: each call, the permission that it asks for, and on what.

Both lanes dispatch from these rows: a call without one ends the start. ``deploy/README.md`` shows them, and a test
tries each with every kind of wrong principal.

    resource    the permission is on
    ==========  ============================================================================================
    nothing     no dataset; without a permission any principal may call it
    dataset     the name of the dataset that the request names; with no permission in the row, any will do
    new         the same, for calls that may make the dataset: they are refused in one way, whether it is there or not
    seen        each dataset by itself: the answer has those only
    server      every name, that is ``""``
    ==========  ============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .principals import Permission

ADMIN, READ, WRITE = Permission.ADMIN, Permission.READ, Permission.WRITE
OPEN = "open"
"""In place of a permission: calls that need no token."""


class Resource(StrEnum):
    """That on which a permission is needed."""

    NOTHING = "nothing"
    DATASET = "dataset"
    NEW = "new"
    SEEN = "seen"
    SERVER = "server"


@dataclass(frozen=True)
class Operation:
    """A row. ``permission``: None for any, ``OPEN`` without a token. ``also``: of calls that may ask for more."""

    call: str
    permission: Permission | str | None
    resource: Resource
    also: str = ""

    @property
    def is_open(self) -> bool:
        return self.permission == OPEN


NOTHING, DATASET, NEW, SEEN, SERVER = Resource
_TABLE = (
    # RPCs
    Operation("Handshake", OPEN, NOTHING, "gives the token back for right credentials only"),
    Operation("ListFlights", READ, SEEN),
    Operation("GetFlightInfo", READ, DATASET),
    Operation("PollFlightInfo", READ, DATASET),
    Operation("GetSchema", READ, DATASET),
    Operation("DoGet", READ, DATASET),
    Operation("DoPut", WRITE, NEW),
    Operation("DoExchange", None, NOTHING, "always refused"),
    Operation("DoAction", None, NOTHING, "as the action"),
    Operation("ListActions", None, NOTHING),
    Operation("grpc.health.v1.Health", OPEN, NOTHING),
    # Actions
    Operation("action create", WRITE, NEW, "`write` on the dataset that a rule names in `emit`, too"),
    Operation("action seal", WRITE, DATASET),
    Operation("action drop", WRITE, DATASET),
    Operation("action renew", None, DATASET),
    Operation("action acknowledge", READ, DATASET),
    Operation("action hold", READ, DATASET, "`admin` for a hold that another principal has taken"),
    Operation("action plan", READ, DATASET),
    Operation("action copies", READ, DATASET, "`write` for the verb `withdraw`"),
    Operation("action statistics", None, SEEN, 'numbers of the server: `read` or `admin` on `""`'),
    Operation("action why", None, SEEN),
    Operation("action locations", None, NOTHING),
    Operation("action drain", ADMIN, SERVER),
    Operation("action CancelFlightInfo", WRITE, DATASET),
    Operation("action RenewFlightEndpoint", None, DATASET),
    # Routes
    Operation("GET /v1/datasets/{rest:.+}", READ, DATASET),
    Operation("POST /v1/put", WRITE, NEW),
    Operation("POST /v1/hold", READ, DATASET, "as the action"),
    Operation("GET /v1/datasets", None, SEEN),
    Operation("GET /v1/statistics", None, SEEN, "as the action"),
    Operation("GET /v1/why", None, SEEN),
    Operation("GET /v1/rows", READ, DATASET),
    Operation("GET /v1/history", READ, SERVER, "or `admin`"),
    Operation("GET /metrics", READ, SERVER, "or `admin`"),
    Operation("GET /healthz", OPEN, NOTHING),
    Operation("GET /readyz", OPEN, NOTHING),
    Operation("GET /", OPEN, NOTHING, "a page without data"),
    Operation("GET /page/{file}", OPEN, NOTHING, "the page's style and scripts"),
    Operation("POST /login", OPEN, NOTHING, "gives the dashboard a cookie for a right token only"),
    Operation("POST /logout", OPEN, NOTHING),
)
OPERATIONS = {row.call: row for row in _TABLE}
