"""A number that the log never decides, while the whole window of its session passes by."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import raftkv.outbox
from raftkv.config import Limits, RaftTimes
from raftkv.errors import Refused
from raftkv.kept_outcomes import KEPT_BYTES_MAX
from raftkv.kv import KV
from raftkv.kv.commands import Put, PutResult, RangeOp, Txn
from raftkv.state import Envelope, NodeUp, SettleOutcome, StateMachine, encode_batch
from raftkv.state.sessions import SESSION_WINDOW, Sessions
from raftkv.waiter import Waiter
from tests.fakes import FakeRuntime

SLOW = Put(b"slow", b"1")
_decode = msgspec.msgpack.Decoder(Envelope).decode
_encode = msgspec.msgpack.Encoder().encode


class Node:
    """A proposal queue, and a log that takes at once what reaches it."""

    def __init__(self, window: int = SESSION_WINDOW) -> None:
        self.runtime = FakeRuntime()
        self.machine = StateMachine([KV()], sessions=Sessions(window=window))
        self.lost: list[bytes] = []
        self.copies: list[bytes] = []
        self.asked: list[SettleOutcome] = []
        self.loses = True
        self.turn = window // 128
        self.queue = raftkv.outbox.Outbox(
            self.runtime,  # type: ignore[arg-type]
            Limits(),
            RaftTimes(),
            self.send,
            window,
        )
        up = NodeUp(1, "n", "core", "r", "h:1", None, (("kv", KV.version),))
        envelope = Envelope(0, 1, 0, "core", _encode(up))
        self.queue.open(self.commit([_encode(envelope)])[0][2].session)

    def commit(self, commands: Sequence[bytes]) -> list[tuple[int, int, Any]]:
        body = encode_batch(1, [_decode(command) for command in commands])
        return self.machine.apply(self.machine.index + 1, body)

    def send(self, commands: Sequence[bytes]) -> bool:
        kept = [c for c in commands if not (self.loses and _decode(c).command == _encode(SLOW))]
        self.lost += [command for command in commands if command not in kept]
        self.runtime.call_soon(self.deliver, kept)
        return True

    def deliver(self, commands: Sequence[bytes]) -> None:
        for session, seq, outcome in self.commit(commands):
            assert session == self.queue.session
            self.queue.settle(seq, outcome)

    def put(self, command: Put, timeout_s: float = 60.0) -> asyncio.Future[Any]:
        return self.queue.submit("kv", command, timeout_s)

    def write(self, count: int) -> None:
        """So many writes, each of which must be answered within its turn."""
        left = count
        while left:
            futures = [self.put(Put(b"k", b"v")) for _ in range(min(self.turn, left))]
            self.runtime.run()
            left -= len(futures)
            assert all(isinstance(future.result(), PutResult) for future in futures)


def test_one_number_that_is_never_decided_hinders_no_other_write() -> None:
    node = Node()
    slow = node.put(SLOW)
    node.write(SESSION_WINDOW + SESSION_WINDOW // 2)
    assert not slow.done()
    assert 2 <= len(node.lost) <= 6, "it goes on under new numbers, and not for each other write"
    node.loses = False
    node.queue.office_changed()
    node.runtime.run()
    assert isinstance(slow.result(), PutResult)
    assert (len(node.queue), node.queue.size_bytes) == (0, 0)


def test_a_copy_that_was_held_up_is_not_applied_beside_the_new_number() -> None:
    """The first copy reaches the log behind the question, and again before the new number."""
    assert versions_after_a_late_copy() == 1


def test_the_test_above_sees_a_command_that_is_renumbered_without_a_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(queue: Any, waiter: Waiter) -> bool:
        queue._renumber(waiter)
        return True

    monkeypatch.setattr(raftkv.outbox.Outbox, "_resolve", resolve)
    assert versions_after_a_late_copy() == 2


def versions_after_a_late_copy() -> int:
    """How often the command was applied that was lost first and reached the log later."""
    node = Node(window=1024)
    slow = node.put(SLOW)
    node.runtime.run()
    (first,) = node.lost
    deliver = node.deliver

    def delivered(commands: Sequence[bytes]) -> None:
        if any(_decode(command).plugin == "core" for command in commands):
            commands = [*commands, first]
        if any(_decode(command).command == _encode(SLOW) for command in commands):
            commands = [first, *commands]
        deliver(commands)

    node.deliver = delivered  # type: ignore[method-assign]
    node.loses = False
    node.write(1200)
    assert isinstance(slow.result(), PutResult), "half of the window was used"
    deliver([first])
    version: int = node.machine.view("kv").table("keys").get(b"slow").version
    return version


@pytest.mark.parametrize("refused", [True, False])
def test_what_the_log_has_decided_before_the_question_is_answered_by_that(refused: bool) -> None:
    """An answer that this node did not see because a snapshot has jumped over its entry."""
    node = Node(window=1024)
    command = msgspec.structs.replace(SLOW, key=b"" if refused else b"slow")
    node.loses = False
    node.runtime.run()
    deliver, node.deliver = node.deliver, lambda commands: None  # type: ignore[method-assign]
    slow = node.put(command)
    node.runtime.run()
    node.deliver = deliver  # type: ignore[method-assign]
    session, seq = node.queue.session, 1
    envelope = Envelope(session, seq, seq, "kv", _encode(command))
    node.commit([_encode(envelope)])
    node.write(800)
    assert not slow.done()
    node.queue.settle(seq, node.machine.recall(session, seq, Put), jumped=True)
    assert isinstance(slow.exception(), Refused) if refused else slow.result()


def test_a_number_that_never_left_is_replaced_without_a_question() -> None:
    node = Node(window=1024)
    node.queue._resending._send = lambda commands: False
    slow = node.put(SLOW)
    node.runtime.run()
    node.queue._resending._send = node.send
    node.loses = False
    node.write(2000)
    assert isinstance(slow.result(), PutResult)
    assert node.lost == []


LARGE = b"x" * 100_000
READ = Txn(success=(RangeOp(b"large"),))


@pytest.mark.parametrize("abandoned", [True, False])
def test_small_requests_for_large_answers_do_not_fill_the_state_behind_a_lost_number(
    abandoned: bool,
) -> None:
    node = Node()
    node.machine.raise_format(node.machine.index + 1, msgspec.msgpack.encode(2))
    node.put(Put(b"large", LARGE))
    slow = node.put(SLOW, timeout_s=0.2 if abandoned else 600.0)
    node.runtime.advance(0.5)
    assert slow.done() is abandoned
    reads, largest = 600, 0
    for _ in range(reads):
        answer = node.queue.submit("kv", READ, 60.0)
        node.runtime.advance(0.01)
        assert answer.result().results[0].kvs[0].value == LARGE
        kept = node.machine._sessions.by_id[node.queue.session].done
        largest = max(largest, len(kept))
    assert largest * len(LARGE) < KEPT_BYTES_MAX + 3_000_000
    assert reads * len(LARGE) > 3 * KEPT_BYTES_MAX
