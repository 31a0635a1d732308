"""Each pass of the loop lets one turn's bytes through, first come, first served; others get in between."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from flight_server import reporting
from flight_server.concurrency.turns import MESSAGE_COST_BYTES, TURN_BYTES, Turns
from flight_server.frames import SchemaMessage
from flight_server.node import Node
from flight_server.protocol import CreateRequest, wire
from tests.support.callers import anyone
from tests.support.frames import frame

FRAMES = 5
SCHEMA = SchemaMessage.of(pa.schema([("number", pa.int64())]))


class Takers:
    """Tasks that take a turn each, in order; ``through`` has those that have got theirs."""

    def __init__(self, turns: Turns, sizes: list[int]) -> None:
        self.through: list[int] = []
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(self._take(turns, *each)) for each in enumerate(sizes)]

    async def _take(self, turns: Turns, number: int, size_bytes: int) -> None:
        await turns.take(size_bytes)
        self.through.append(number)

    async def passes(self) -> list[int]:
        """How many tasks have had their turn, after each pass of the loop in which one had."""
        counts: list[int] = []
        async with asyncio.timeout(20):
            while not all(task.done() for task in self.tasks):
                await asyncio.sleep(0)
                if self.through and counts[-1:] != [len(self.through)]:
                    counts.append(len(self.through))
        return counts


async def test_each_pass_lets_as_many_through_as_a_turn_has_bytes_for() -> None:
    takers = Takers(Turns(), [TURN_BYTES // 2] * 6)
    assert await takers.passes() == [2, 4, 6]
    assert takers.through == [0, 1, 2, 3, 4, 5]


async def test_a_message_larger_than_a_turn_goes_when_it_is_next_and_alone() -> None:
    takers = Takers(Turns(), [3 * TURN_BYTES, 1, 3 * TURN_BYTES, 1])
    assert await takers.passes() == [1, 3, 4]
    assert takers.through == [0, 1, 2, 3]


async def test_a_small_message_costs_what_handling_it_costs() -> None:
    at_once = TURN_BYTES // MESSAGE_COST_BYTES
    assert await Takers(Turns(), [1] * 2 * at_once).passes() == [at_once, 2 * at_once]


async def test_a_task_that_has_left_takes_no_turn_of_another_and_a_later_one_overtakes_none() -> None:
    turns = Turns()
    takers = Takers(turns, [TURN_BYTES] * 4)
    await asyncio.sleep(0)
    later = Takers(turns, [1])
    takers.tasks[1].cancel()
    takers.tasks[2].cancel()
    await later.passes()
    assert takers.through == [0, 3]


class Call:
    """A call to ``do_get`` whose client takes everything at once: no write ever waits."""

    def __init__(self, peer: str, frames_by_peer: dict[str, int], leads: list[int]) -> None:
        self._peer = peer
        self._taken = frames_by_peer
        self._leads = leads

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def send_initial_metadata(self, _: object) -> None:
        pass

    async def write(self, _: bytes) -> None:
        self._taken[self._peer] += 1
        self._leads.append(max(self._taken.values()) - min(self._taken.values()))

    def set_trailing_metadata(self, _: object) -> None:
        pass


async def test_a_reader_whose_client_takes_everything_lets_the_others_in_between(node: Node) -> None:
    dataset = node.catalogue.create(CreateRequest("d"), SCHEMA)[0]
    partition = dataset.begin_stream(0)
    for _ in range(FRAMES):
        partition.publish(frame(TURN_BYTES, pool=node.budget.frames))
    dataset.end_stream(partition)
    service = node.flight_service()
    frames_by_peer = dict.fromkeys(("a", "b", "c"), 0)
    leads: list[int] = []
    async with asyncio.TaskGroup() as group:
        for peer in frames_by_peer:
            context, call = Call(peer, frames_by_peer, leads), reporting.ServedCall("grpc", "DoGet", peer)
            caller = anyone(node.catalogue, peer=peer)
            group.create_task(service.do_get(wire.field(1, b"d"), context, caller, call))
    assert set(frames_by_peer.values()) == {FRAMES + 1}  # and the schema
    assert max(leads) <= 3


async def test_with_both_ends_a_reader_that_comes_last_is_let_through_before_most_of_the_crowd() -> None:
    turns, order = Turns(both_ends=True), list[int]()

    async def newcomer(number: int) -> None:
        await turns.take(TURN_BYTES)
        order.append(number)

    await asyncio.gather(*(newcomer(number) for number in range(100)))
    assert sorted(order) == list(range(100))
    assert order[:5] == [0, 99, 1, 98, 2]
