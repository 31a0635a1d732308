"""Followers whose connections are cut anywhere: every step once, whole and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.protocol import Ticket, Versions
from spark_client.connection import RemoteServer, Timeouts
from spark_client.lanes import ReadStream, VersionCursor
from tests.support.examples import examples
from tests.support.http_source import HttpSource
from tests.support.versions import Marked, marked, opening

pytestmark = pytest.mark.usefixtures("hasty")

NEVER_GIVES_UP = Timeouts(tries=1000)
Steps = list[tuple[int, list[list[int]]]]
steps = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.lists(st.integers(0, 9), max_size=400), min_size=1, max_size=4)),
    min_size=1,
    max_size=6,
)


def batches_of(steps: Steps) -> list[Marked]:
    return [
        marked(numbers, version, last=place == len(batches) - 1)
        for version, batches in steps
        for place, numbers in enumerate(batches)
    ]


@settings(max_examples=examples(0.5))
@given(gaps=steps, cuts=st.lists(st.floats(0, 1), max_size=12), together=st.booleans())
def test_a_follower_that_is_cut_anywhere_gets_every_step_once(
    gaps: Steps, cuts: list[float], together: bool
) -> None:
    version, sent = 0, []
    for gap, batches in gaps:
        version += gap
        sent.append((version, batches))
    left = list(cuts)

    def answer(target: str, _: object) -> Iterator[bytes]:
        after = int(target.partition("after=")[2].partition("&")[0])
        data = b"".join(opening(batches_of([each for each in sent if each[0] > after]), together=together))
        yield data[: int(len(data) * left.pop())] if left else data
        if not left:
            left.append(1.0)

    server = RemoteServer("grpc://127.0.0.1:1", timeouts=NEVER_GIVES_UP)
    with HttpSource(answer, closes=True) as source:
        ticket = Ticket("d", generation="g1", versions=Versions(after=0, follow=True))
        stream = ReadStream(server, VersionCursor(ticket), locations=[source.url], lane="bulk")
        found = []
        for _ in sent:
            step = stream.read_burst()
            assert step is not None
            found.append((step.part, [batch["n"].to_pylist() for batch in step.batches]))
        stream.close()
    server.close()
    assert found == sent
