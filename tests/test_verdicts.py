"""verdicts.py: a death verdict leaves once, and only under the leadership that reached it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raftkv.errors import Timeout
from raftkv.failure_detector import Verdict
from raftkv.state.core import NodeDown, SettleOutcome
from raftkv.verdicts import Verdicts

VERDICT = Verdict("c", 3, 7)
DOWN = msgspec.msgpack.encode(NodeDown("c", 3))
NOTHING = msgspec.msgpack.encode(SettleOutcome(0, 0))


def envelope(seq: int, command: bytes = DOWN, plugin: str = "core") -> bytes:
    return msgspec.msgpack.encode((5, seq, seq, plugin, command))


class Way:
    """The way to the leader, and a proposal queue that is in the test's hands."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.verdicts = Verdicts(self.send)
        self.in_force = True
        self.answer: asyncio.Future[Any]

    def send(self, commands: Sequence[bytes]) -> bool:
        self.sent.extend(commands)
        return True

    def propose(self, plugin: str, command: msgspec.Struct) -> asyncio.Future[Any]:
        assert (plugin, command) == ("core", NodeDown("c", 3))
        self.answer = asyncio.get_running_loop().create_future()
        return self.answer

    async def proposing(self) -> asyncio.Task[None]:
        valid: Callable[[], bool] = lambda: self.in_force  # noqa: E731
        task = asyncio.create_task(self.verdicts.propose(self.propose, VERDICT, valid))
        await asyncio.sleep(0)
        assert self.verdicts.is_under_way(VERDICT)
        return task


def played(play: Callable[[Way], Any]) -> Way:
    async def run() -> Way:
        way = Way()
        task = await way.proposing()
        play(way)
        if not way.answer.done():
            way.answer.set_result(None)
        await task
        assert not way.verdicts.is_under_way(VERDICT)
        return way

    return asyncio.run(run())


def test_a_verdict_leaves_once_and_its_number_is_settled_by_nothing_after_that() -> None:
    def play(way: Way) -> None:
        way.verdicts.send([envelope(1, b"x", "kv"), envelope(2)])
        way.verdicts.send([envelope(2)])

    assert played(play).sent == [envelope(1, b"x", "kv"), envelope(2), envelope(2, NOTHING)]


def test_a_verdict_of_an_ended_leadership_never_leaves() -> None:
    def play(way: Way) -> None:
        way.in_force = False
        way.verdicts.send([envelope(2)])
        way.in_force = True
        way.verdicts.send([envelope(2)])

    way = played(play)
    assert way.sent == [envelope(2, NOTHING)] * 2
    assert way.verdicts.voided == 1


def test_other_commands_pass_as_they_are() -> None:
    other = msgspec.msgpack.encode(NodeDown("b", 3))
    sent = [envelope(1, other), envelope(2, DOWN, "kv"), envelope(3, b"\x00")]
    assert played(lambda way: way.verdicts.send(sent)).sent == sent


def test_a_proposal_that_fails_is_over() -> None:
    error = Timeout("the deadline passed", session=5, seq=2)
    played(lambda way: way.answer.set_exception(error))
