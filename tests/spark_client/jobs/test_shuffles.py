"""The driver's datasets over servers that only count what they are asked; the rest needs Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

from spark_client.connection import TimedOut
from spark_client.jobs import Shuffles
from spark_client.servers import ServerList

A, B = "grpc://a:1", "grpc://b:1"


class Server:
    """It holds everything, but at ``B`` it does not answer. It opens no connection."""

    def __init__(self, asked: Counter[tuple[str, str]], location: str = A) -> None:
        self.asked = asked
        self.location = location

    def at(self, location: str) -> Server:
        return Server(self.asked, location)

    def action(self, name: str, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked[name, self.location] += 1
        if self.location == B:
            raise TimedOut("no answer")
        return {"start": self.location}


def test_a_close_waits_for_a_server_that_does_not_answer_once_and_drops_everything_elsewhere() -> None:
    asked: Counter[tuple[str, str]] = Counter()
    server: Any = Server(asked)
    shuffles = Shuffles(server, 300.0, servers=ServerList(server, [A, B]))
    for number in range(5):
        shuffles.begin_spread(f"d{number}", f"{number:016x}")
    shuffles.sealed_on("d4", {"0": A})
    shuffles.close()
    shuffles.close()
    assert asked == {("drop", A): 5, ("drop", B): 1}
