"""verdicts.py: a death verdict leaves once, and only under the leadership that reached it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

import raftkv.outbox
from raftkv.config import Limits, RaftTimes
from raftkv.errors import Timeout
from raftkv.failure_detector import Verdict
from raftkv.state.core import DeclareDead, NodeDown, SettleOutcome
from raftkv.verdicts import Verdicts, command_of
from tests.fakes import FakeRuntime

VERDICT = Verdict("c", 3, 7)
COMMAND = DeclareDead("c", 3, 7)
DOWN = msgspec.msgpack.encode(COMMAND)
NOTHING = msgspec.msgpack.encode(SettleOutcome(0, 0))


def envelope(seq: int, command: bytes = DOWN, plugin: str = "core") -> bytes:
    return msgspec.msgpack.encode((5, seq, seq, plugin, command))


class Way:
    """The way to the leader, and a proposal queue that is in the test's hands."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.verdicts = Verdicts(self.send, lambda: 2)
        self.in_force = True
        self.answer: asyncio.Future[Any]

    def send(self, commands: Sequence[bytes]) -> bool:
        self.sent.extend(commands)
        return True

    def propose(self, plugin: str, command: msgspec.Struct) -> asyncio.Future[Any]:
        assert (plugin, command) == ("core", COMMAND)
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
    other = msgspec.msgpack.encode(DeclareDead("b", 3, 7))
    sent = [envelope(1, other), envelope(2, DOWN, "kv"), envelope(3, b"\x00")]
    assert played(lambda way: way.verdicts.send(sent)).sent == sent


def test_a_proposal_that_fails_is_over() -> None:
    error = Timeout("the deadline passed", session=5, seq=2)
    played(lambda way: way.answer.set_exception(error))


def test_a_verdict_names_its_term_from_core_format_2_on() -> None:
    assert command_of(VERDICT, 1) == NodeDown("c", 3)
    assert command_of(VERDICT, 2) == DeclareDead("c", 3, 7)


def test_the_same_verdict_of_a_later_term_is_another_one() -> None:
    """One that was lost with its leadership does not hinder the next leadership."""

    def play(way: Way) -> None:
        assert not way.verdicts.is_under_way(msgspec.structs.replace(VERDICT, term=8))

    played(play)


class Queue:
    """The proposal queue of a leader, which takes what it is sent as long as `takes`."""

    def __init__(self, core_format: int) -> None:
        self.sent: list[Any] = []
        self.takes = self.in_force = True
        runtime: Any = FakeRuntime()
        self.runtime = runtime
        self.verdicts = Verdicts(self.send, lambda: core_format)
        self.proposals = raftkv.outbox.Outbox(runtime, Limits(), RaftTimes(), self.verdicts.send)
        self.proposals.open(5)

    def send(self, commands: Sequence[bytes]) -> bool:
        if self.takes:
            self.sent += [msgspec.msgpack.decode(command) for command in commands]
        return self.takes

    def propose(self) -> asyncio.Future[Any]:
        """As `Verdicts.propose` does, without waiting."""
        futures: list[asyncio.Future[Any]] = []

        def submit(plugin: str, command: msgspec.Struct) -> asyncio.Future[Any]:
            futures.append(self.proposals.submit(plugin, command, 30.0))
            return futures[0]

        proposing = self.verdicts.propose(submit, VERDICT, lambda: self.in_force)
        proposing.send(None)  # up to the answer
        self._proposing = proposing
        self.runtime.run()
        return futures[0]

    def commands(self) -> list[str]:
        return [msgspec.msgpack.decode(command)[0] for *_, command in self.sent]


@pytest.mark.parametrize(("core_format", "tag"), [(1, "node_down"), (2, "declare_dead")])
def test_the_proposal_queue_never_sends_a_verdict_again(core_format: int, tag: str) -> None:
    """Neither after a change of leader, nor after a while without an answer."""
    queue = Queue(core_format)
    answer = queue.propose()
    queue.in_force = False
    queue.proposals.office_changed()
    queue.in_force = True
    for _ in range(30):
        queue.proposals.office_changed()
        queue.runtime.advance(0.5)
    assert queue.commands()[0] == tag
    assert set(queue.commands()[1:]) == {"settle_outcome"}
    assert {seq for _, seq, *_ in queue.sent} == {1}
    queue.proposals.settle(1, None)
    assert answer.done()


@pytest.mark.parametrize("core_format", [1, 2])
def test_a_change_of_leader_voids_a_verdict_that_has_not_left(core_format: int) -> None:
    queue = Queue(core_format)
    queue.takes = False
    queue.propose()
    queue.takes, queue.in_force = True, False
    queue.proposals.office_changed()
    queue.runtime.advance(5.0)
    assert queue.commands()
    assert set(queue.commands()) == {"settle_outcome"}
