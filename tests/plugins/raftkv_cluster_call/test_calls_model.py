"""The pure half beside a naive model, over random histories of all that can happen to it.

That the real tables give the same answers as the model shows that what makes them fast (stretches,
what is due, bounded work) changes nothing.

Effects are puts of "node/id". No cursor goes back, so each such key has been put exactly once.
"""

from __future__ import annotations

import random
from typing import ClassVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from raftkv.errors import Refused
from raftkv.kv import Put
from raftkv.plugin import Setting
from raftkv_cluster_call.commands import (
    Abort,
    Acknowledge,
    Acknowledged,
    Advance,
    Commit,
    Expire,
    Failing,
    Force,
    Join,
    Leave,
    Rejoin,
    Rejoined,
    Reserve,
    Reset,
    Skip,
    Sync,
    Trim,
    Withdraw,
)
from raftkv_cluster_call.plugin import Calls
from raftkv_cluster_call.views import clean_below, trim_due
from tests.plugins.raftkv_cluster_call.naive_model import (
    HARD,
    HISTORY,
    QUEUE,
    Answer,
    Model,
    Place,
)
from tests.plugins.raftkv_cluster_call.pure import CallLog, new_machine

NODES = ("n1", "n2", "n3", "n4")
SMALL = {"history_max": HISTORY, "history_hard_max": HARD, "queue_max": QUEUE}


class SmallCalls(Calls):
    """With bounds that a short history reaches."""

    settings: ClassVar[tuple[Setting, ...]] = tuple(
        msgspec.structs.replace(setting, default=SMALL[setting.key], check=None)
        if setting.key in SMALL
        else setting
        for setting in Calls.settings
    )


class Beside:
    """The tables and the model, and one way to act on both: `act`.

    Every action takes (node, other node, number, flag) and makes of them what it needs; the node
    proposes with what it knows: right, stale, or made up.
    """

    def __init__(self, joined: int = 3) -> None:
        self.log = CallLog(NODES, join=False, plugin=SmallCalls)
        self.model = Model(now=self.log.now)
        for node in NODES:
            self.model.node_up(node)
        self.tickets: list[tuple[int, str]] = []
        for node in NODES[:joined]:
            self.join(node, node, 1, False)

    def act(self, action: str, node: str, other: str, number: int, flag: bool) -> None:
        getattr(self, action)(node, other, number, flag)
        self.same_tables()

    # --- how it is compared ---

    def outcome(self, node: str, command: msgspec.Struct) -> Answer:
        try:
            return self.log.send(node, command)
        except Refused as refusal:
            return refusal.code.removeprefix("calls_")

    @property
    def next_index(self) -> int:
        return self.log.machine.index + 1

    def is_up(self, node: str) -> bool:
        return node in self.model.up

    def same(self, node: str, command: msgspec.Struct, expected: Answer) -> None:
        answer = self.outcome(node, command)
        assert answer == expected, f"{command} of {node}: {answer}, the model says {expected}"

    def effect(self, node: str, id: int) -> Put:
        return Put(f"{node}/{id}".encode(), b"")

    # --- calls ---

    def reserve(self, node: str, other: str, number: int, flag: bool) -> None:
        if not self.is_up(node):
            return
        expected = max(0, self.model.last - (number % 8 == 0))
        ttl = (10, 50, 1_000, 1_000)[number % 4]
        command = Reserve("f", 1, b"x", expected, ttl, self.log.now)
        ticket = self.log.machine.serial + 1
        self.same(node, command, self.model.reserve(node, expected, ticket, ttl))
        self.tickets = [*self.tickets, (ticket, node)][-20:]

    def finish(self, node: str, other: str, number: int, flag: bool) -> None:
        """What runs ends; mostly its node has executed what was before."""
        running = self.model.running
        if running is None:
            return
        node, id = running.node, self.model.last
        if number % 8:
            self.catch_up(node, 100)
        ok, ticket = number % 4 > 0, running.ticket + (number % 16 == 5)
        if ok and number % 16 == 6:
            command = Commit(id, running.ticket, Put(b"", b""))
            assert self.outcome(node, command) in ("empty_key", "not_caught_up")
            return
        expected = self.model.finish(node, id, ticket, ok, self.next_index)
        effect = self.effect(node, id)
        self.same(node, Commit(id, ticket, effect) if ok else Abort(id, ticket, "x"), expected)

    def withdraw(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.tickets:
            ticket, owner = self.tickets[-1 - number % len(self.tickets)]
            node = node if flag and number % 4 == 0 else owner
            if self.is_up(node):
                expected = self.model.withdraw(node, ticket, self.next_index)
                self.same(node, Withdraw(ticket, "withdrawn"), expected)

    def expire(self, node: str, other: str, number: int, flag: bool) -> None:
        self.log.now += (0, 1, 10, 49)[number % 4]
        self.model.now = self.log.now
        if flag and self.is_up(node):
            most = 1 + number % 3
            self.same(node, Expire(most), self.model.expire(most))

    # --- cursors ---

    def execute(self, node: str, other: str, number: int, flag: bool) -> None:
        for name in (node, other) if flag else (node,):
            self.catch_up(name, 1 + number % 3)

    def catch_up(self, node: str, count: int) -> None:
        while count and node in self.model.following() and self.is_up(node):
            id = self.model.next_of(node)
            if not id:
                return
            self.same(node, Advance(id, self.effect(node, id)), self.model.step(node, id))
            count -= 1

    def refused_effect(self, node: str, other: str, number: int, flag: bool) -> None:
        if node in self.model.following() and self.is_up(node) and self.model.next_of(node):
            id = self.model.next_of(node)
            assert self.outcome(node, Advance(id, Put(b"", b""))) == "empty_key"

    def failing(self, node: str, other: str, number: int, flag: bool) -> None:
        behind = [name for name in self.model.following() if self.model.next_of(name)]
        node = behind[number % len(behind)] if behind else node
        if self.is_up(node):
            id = (self.model.next_of(node) if node in self.model.places else 0) + (number % 8 == 0)
            attempts = 10 if flag else 1 + number % 9
            self.same(node, Failing(id, attempts, "x"), self.model.failing(node, id, attempts))

    def skip(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.is_up(node):
            id = (self.model.next_of(node) if node in self.model.places else 0) + (number % 8 == 0)
            self.same(node, Skip(id), self.model.step(node, id))

    # --- taking part ---

    def join(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.is_up(node):
            wiped = flag and number % 2 == 0
            self.same(node, Join(wiped), self.model.join(node, wiped))

    def sync(self, node: str, other: str, number: int, flag: bool) -> None:
        """From a copy of the most advanced node, or an older one, or one from the future."""
        waiting = sorted(set(self.model.places) - set(self.model.following()))
        node = waiting[number % len(waiting)] if waiting and number % 8 else node
        if self.is_up(node):
            ids = [self.model.places[name].id for name in self.model.following()]
            as_of = max(0, max(ids, default=0) - (0, 0, 1, 2, 4, -1)[number % 6])
            self.same(node, Sync(as_of), self.model.sync(node, as_of))

    def leave(self, node: str, other: str, number: int, flag: bool) -> None:
        by = other if flag else node
        if self.is_up(by) and (flag or len(self.model.places) > 1):
            self.same(by, Leave(node, flag), self.model.leave(by, node, flag))

    def rejoin(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.is_up(node):
            found = self.model.left.pop(node, None) is not None
            self.same(node, Rejoin(), Rejoined(found))

    # --- operators and the leader ---

    def force(self, node: str, other: str, number: int, flag: bool) -> None:
        """Each node's two bits say what it is named for; `flag`: all cursors as they are."""
        if not self.is_up(node):
            return
        seen: tuple[dict[str, int], ...] = ({}, {}, {}, {})
        for bit, name in enumerate(NODES):
            place = self.model.places.get(name)
            if place is not None:
                seen[number >> 2 * bit & 3][name] = place.id + (not flag and number % 5 == 0)
        command = Force(self.model.last, tuple(seen[0].items()), tuple(seen[1].items()))
        self.same(node, command, self.model.force(seen[0], seen[1], self.next_index))

    def reset(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.is_up(node):
            expected = self.model.last + (number % 4 == 0)
            self.same(node, Reset(expected), self.model.reset(expected))

    def trim(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.is_up(node):
            most = 1 + number % 4
            self.same(node, Trim(most), self.model.trim(most))

    def acknowledge(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.is_up(node):
            ids = [id for name, id in sorted(self.model.lost) if name == node]
            id = ids[number % len(ids)] if ids else 1
            self.same(node, Acknowledge(id), Acknowledged((node, id) in self.model.lost))
            self.model.lost.discard((node, id))

    def start(self, node: str, other: str, number: int, flag: bool) -> None:
        self.log.node_up(node)
        self.model.node_up(node)

    def end(self, node: str, other: str, number: int, flag: bool) -> None:
        if self.is_up(node) and len(self.model.up) > 1:
            self.log.node_down(node)
            self.model.node_down(node)
            self.model.settle()

    # --- what must hold ---

    def same_tables(self) -> None:
        model, log = self.model, self.log
        records = [(row.state, row.cause) for row in log.table("records").values()]
        assert records == model.ids[model.kept - 1 :]
        rows = {
            name: Place(row.id, row.state, row.as_of, row.attempts)
            for name, row in log.table("cursors").items()
        }
        assert rows == model.places
        assert list(log.table("queue")) == [waiting.ticket for waiting in model.queue]
        assert log.table("answers") == model.answers
        assert set(log.table("lost")) == model.lost
        assert {name: row.forced for name, row in log.table("left").items()} == model.left
        assert clean_below(log.view()) == model.bound()
        assert trim_due(log.view()) == model.trim_due()

    def same_everywhere(self) -> None:
        """Each effect once; replayed on another machine, and restored: the same state."""
        for key, row in self.log.machine.view("kv").table("keys").scan():
            assert row.version == 1, f"the effect {key!r} is there {row.version} times"
        replayed = new_machine(SmallCalls())
        for index, entry in enumerate(self.log.entries, 1):
            replayed.apply(index, entry)
        restored = new_machine(SmallCalls())
        restored.restore(list(replayed.freeze().slices()), replayed.index)
        assert replayed.digest() == self.log.digest() == restored.digest()


#: How often each action is chosen.
WEIGHTS = {
    "reserve": 20,
    "finish": 20,
    "execute": 16,
    "failing": 6,
    "sync": 6,
    "expire": 5,
    "trim": 5,
    "join": 8,
    "withdraw": 4,
    "start": 4,
    "end": 3,
    "leave": 3,
    "rejoin": 4,
    "force": 2,
    "skip": 2,
    "acknowledge": 2,
    "refused_effect": 1,
    "reset": 1,
}
ACTIONS = [action for action, weight in WEIGHTS.items() for _ in range(weight)]


@pytest.mark.parametrize("seed", range(30))
def test_long_random_histories(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    beside = Beside(chance.randint(2, len(NODES)))
    for _ in range(400):
        action, node, other = chance.choice(ACTIONS), chance.choice(NODES), chance.choice(NODES)
        beside.act(action, node, other, chance.randrange(256), chance.random() < 0.5)
    beside.same_everywhere()


class CallsBesideModel(RuleBasedStateMachine):
    """Short ones, which are made smaller when they fail."""

    @initialize(joined=st.integers(2, len(NODES)))
    def begin(self, joined: int) -> None:
        self.beside = Beside(joined)

    @rule(
        action=st.sampled_from(ACTIONS),
        node=st.sampled_from(NODES),
        other=st.sampled_from(NODES),
        number=st.integers(0, 255),
        flag=st.booleans(),
    )
    def act(self, action: str, node: str, other: str, number: int, flag: bool) -> None:
        self.beside.act(action, node, other, number, flag)

    def teardown(self) -> None:
        if hasattr(self, "beside"):
            self.beside.same_everywhere()


CallsBesideModel.TestCase.settings = settings(max_examples=25, stateful_step_count=50)
TestCallsBesideModel = CallsBesideModel.TestCase
