"""replica.py: what a node's waiting callers are told when a snapshot jumps over their entries."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from raftkv.config import Limits, RaftTimes
from raftkv.errors import Timeout
from raftkv.kv import KV
from raftkv.kv.commands import Put, PutResult
from raftkv.logclock import LogClock
from raftkv.outbox import Outbox
from raftkv.reading import Reader
from raftkv.replica import Replica
from raftkv.state.core import NodeUp, SettleOutcome
from raftkv.state.machine import StateMachine
from tests.fakes import FakeRuntime

_encode = msgspec.msgpack.Encoder().encode


class Bench:
    """A node whose outbox has sent one command, and the cluster's state machine elsewhere."""

    def __init__(self) -> None:
        self.runtime: Any = FakeRuntime()
        self.sent: list[bytes] = []
        self.elsewhere = StateMachine([KV()])
        self.elsewhere.skip(1)
        session, _ = self.up(nonce=5)
        self.outbox = Outbox(self.runtime, Limits(), RaftTimes(), self.send)
        reader = Reader(self.runtime, RaftTimes(), lambda number: True)
        machine = StateMachine([KV()])
        self.replica = Replica(machine, LogClock(self.runtime), self.outbox, reader)
        self.outbox.open(session)

    def send(self, commands: Any) -> bool:
        self.sent += commands
        return True

    def submit(self) -> asyncio.Future[Any]:
        answer = self.outbox.submit("kv", Put(b"k", b"v"), 5.0)
        self.runtime.run()
        return answer

    def apply(self, *commands: bytes) -> Any:
        body = b"\x92" + _encode(1) + bytes([0x90 | len(commands)]) + b"".join(commands)
        return self.elsewhere.apply(self.elsewhere.index + 1, body)

    def up(self, nonce: int) -> tuple[int, int]:
        command = NodeUp(nonce, "n1", "core", "n1-aa", "n1:1", None, (("kv", KV.version),))
        ((_, _, result),) = self.apply(_encode((0, nonce, 0, "core", _encode(command))))
        return result.session, result.incarnation

    def jump(self) -> None:
        """The node installs a snapshot of what the cluster has come to."""
        loading = self.replica.loading()
        for chunk in self.elsewhere.freeze().slices():
            loading.add(chunk)
        loading.adopt(self.elsewhere.index)
        self.runtime.run()


def test_a_result_in_the_snapshot_answers_its_caller() -> None:
    bench = Bench()
    answer = bench.submit()
    bench.apply(*bench.sent)
    bench.jump()
    assert isinstance(answer.result(), PutResult)


def test_what_the_snapshot_does_not_know_goes_on_waiting() -> None:
    bench = Bench()
    answer = bench.submit()
    bench.jump()
    assert not answer.done()
    assert len(bench.sent) == 1


def test_a_command_of_a_session_that_ended_in_the_jump_may_have_been_applied() -> None:
    """Sent once and refused is not known here: the entries that would tell were jumped over."""
    bench = Bench()
    answer = bench.submit()
    bench.apply(*bench.sent)
    session, _ = bench.up(nonce=6)
    bench.jump()
    bench.outbox.open(session)
    bench.runtime.run()
    assert len(bench.sent) == 1, "it was sent again, and would take effect twice"
    with pytest.raises(Timeout, match="may have been applied"):
        answer.result()


def test_a_late_refusal_of_the_old_session_does_not_settle_a_number_of_the_new_one() -> None:
    """Both in one entry: first the node's new session, then what its old one had sent.

    The numbers begin again with every session. Found by the simulation: the command that had got
    the number anew was taken for refused and was sent twice.
    """
    bench = Bench()
    bench.jump()
    old = bench.submit()
    (late,) = bench.sent
    nonce = bench.replica.nonce = 6
    bench.replica.on_session = lambda result: bench.outbox.open(result.session)
    new = bench.outbox.submit("kv", Put(b"k2", b"v"), 5.0)
    command = NodeUp(nonce, "n1", "core", "n1-aa", "n1:1", None, (("kv", KV.version),))
    up = _encode((0, nonce, 0, "core", _encode(command)))
    entry = b"\x92" + _encode(2) + b"\x92" + up + late
    bench.replica.apply(bench.replica.machine.index + 1, entry, 1)
    bench.runtime.run()
    assert len(bench.sent) == 2, "the new command was sent twice"
    assert not new.done()
    with pytest.raises(Timeout, match="may have been applied"):
        old.result()


def test_what_lies_beyond_the_window_of_the_snapshot_goes_on_waiting() -> None:
    """A snapshot with an older floor has judged none of the later numbers."""
    bench = Bench()
    question = bench.outbox.submit("core", SettleOutcome(bench.outbox.session, 7), 5.0)
    bench.runtime.run()
    bench.replica.machine._sessions.window = 0
    bench.jump()
    assert not question.done()
