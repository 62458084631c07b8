"""The pure half beside a naive model, over random histories of all that can happen to it.

That the real tables give the same answers as the model shows that what makes them fast (counters,
runs, one row of state) changes nothing. Quorums are fast and slow in turn, for the settings and the
members change all the time; queues are short, so that limits are met.

A history is a number of random steps from a seed, which every failure shows. In the middle a copy
is made from a snapshot; it goes on beside the first machine, and both end with one digest.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from raftkv.errors import Refused
from raftkv.state import StateMachine
from raftkv_limbo.commands import (
    Ack,
    AlterFenced,
    Condition,
    CreateSpace,
    Declare,
    Demote,
    DropFenced,
    Promote,
    RollBack,
    Submit,
    Sweep,
    Transaction,
    Veto,
    Write,
)
from raftkv_limbo.plugin import Limbo
from raftkv_limbo.views import (
    confirmed_range,
    is_fast,
    pending_range,
    rollback_of,
    verdicts,
    waiting_entries,
)
from tests.plugins.raftkv_limbo.naive_model import QUORUMS, Model, No
from tests.plugins.raftkv_limbo.pure import LimboLog

NODES = ("n1", "n2", "n3", "n4")
SPACES = ("s", "a", "t")
KEYS = (b"", b"k", b"l", b"m")
ZONES = ("eu", "us")
VALIDATORS = ("audit", "stock")
#: What a short history reaches.
LIMITS = {"queue_entries_max": 8, "queue_bytes_max": 60, "queue_writes_max": 10}
STEPS = 200
SEEDS = 200
PARTS = 4


class Beside:
    """The tables and the model, and random steps on both."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = LimboLog(("n1", "n2", "n3"), quorum="N / 2 + 1", owner="", walk=False)
        self.model = Model(spaces={"s": True, "a": False}, limits=dict(LIMITS))
        for name in ("n1", "n2", "n3"):
            self.model.node_up(name, "core")
        for key, value in LIMITS.items():
            self.log.set(key, value)
        self.log.set("entries_kept", self.chance.choice((0, 1, 7)))
        #: (index, machine), of the copy.
        self.copied: tuple[int, StateMachine] | None = None
        self.actions: list[Callable[[], None]] = [
            action
            for times, action in (
                (12, self.submit),
                (10, self.ack),
                (4, self.promote),
                (1, self.demote),
                (3, self.roll_back),
                (3, self.veto),
                (2, self.declare),
                (2, self.members),
                (3, self.settings),
                (1, self.spaces),
            )
            for _ in range(times)
        ]

    # --- steps ---

    def step(self) -> None:
        self.log.now += self.chance.choice((0, 0, 7))
        self.chance.choice(self.actions)()
        self.compare()

    def both(self, theirs: Callable[[], Any], ours: Callable[[], Any]) -> Any:
        """Both refuse alike, or what both gave: (real, model)."""
        try:
            expected, code = ours(), ""
        except No as refusal:
            expected, code = None, f"limbo_{refusal}"
        try:
            real, refused = theirs(), ""
        except Refused as refusal:
            real, refused = None, refusal.code
        assert refused == code
        return None if code else (real, expected)

    def up(self) -> str:
        """A node that is up, the owner more often than others."""
        owner = self.log.state.owner
        if self.chance.random() < 0.85 and owner and self.model.nodes[owner].up:
            return owner
        return self.chance.choice([n for n, node in self.model.nodes.items() if node.up])

    def submit(self) -> None:
        node = self.up()
        batch = [self.transaction() for _ in range(self.chance.choice((1, 1, 2, 5)))]
        term = self.log.state.term - (self.chance.random() < 0.05)
        command = Submit(tuple(batch), max(0, term))
        last = self.log.state.last
        codes = self.model.submit(node, batch, max(0, term))
        done = self.log.send(node, command)
        assert done.first == last + 1
        assert done.index == self.log.machine.index
        found = {rejected.at: rejected.code.removeprefix("limbo_") for rejected in done.rejected}
        assert found == {at: code for at, code in enumerate(codes) if code}
        taken = len(batch) - len(found)
        for item in self.model.items[last : last + taken]:
            known = item.independent or item.position <= done.confirmed
            assert known == (item.fate == "confirmed")

    def transaction(self) -> Transaction:
        chance = self.chance
        writes = tuple(
            Write(self.space(), chance.choice(KEYS), chance.choice((None, b"", b"x", b"yy" * 9)))
            for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2, 3)))
        )
        conditions = []
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            space, key = self.space(), chance.choice(KEYS)
            value, position = None, 0
            if space in self.model.spaces and chance.random() < 0.7:
                value, position = self.model.look(space, key, confirmed=chance.random() < 0.3)
            conditions.append(
                chance.choice(
                    (
                        Condition(space, key, "value", value),
                        Condition(space, key, "position", None, position),
                        Condition(space, key, "exists", None, int(value is not None)),
                    )
                )
            )
        return Transaction(writes, tuple(conditions), chance.random() < 0.2)

    def space(self) -> str:
        return self.chance.choice((*SPACES[:2], *SPACES))

    def position(self) -> int:
        """Most often one that is pending."""
        pending = self.model.pending()
        if pending and self.chance.random() < 0.7:
            return self.chance.choice(pending).position
        return self.chance.randrange(len(self.model.items) + 3)

    def ack(self) -> None:
        node, upto = self.chance.choice(self.living()), self.position()
        if self.chance.random() < 0.5:
            upto = len(self.model.items)
        validators = tuple(v for v in VALIDATORS if self.chance.random() < 0.7)
        self.log.send(node, Ack(upto, validators))
        self.model.ack(node, upto, validators)

    def living(self) -> list[str]:
        return [name for name, node in self.model.nodes.items() if node.up]

    def promote(self) -> None:
        self.change(Promote, self.model.promote)

    def demote(self) -> None:
        self.change(Demote, self.model.demote)

    def change(self, command: Any, ours: Callable[[str, int, int], tuple[int, int]]) -> None:
        state = self.log.state
        node, term = self.chance.choice(self.living()), state.term
        if self.chance.random() < 0.1:
            term += self.chance.choice((-1, 1))
        upto = self.chance.choice((state.confirmed, state.confirmed, state.last))
        got = self.both(
            lambda: self.log.send(node, command(max(0, term), upto)),
            lambda: ours(node, max(0, term), upto),
        )
        if got is not None:
            assert (got[0].term, got[0].rolled_back) == got[1]

    def roll_back(self) -> None:
        node, position = self.up(), self.position()
        term = self.model.term - (self.chance.random() < 0.1)
        got = self.both(
            lambda: self.log.send(node, RollBack(position, max(0, term), "because")),
            lambda: self.model.roll_back(node, position, max(0, term), "because"),
        )
        if got is not None:
            assert (got[0].first, got[0].last, got[0].entries) == got[1]

    def veto(self) -> None:
        node, position = self.chance.choice(self.living()), self.position()
        validator = self.chance.choice(VALIDATORS)
        got = self.both(
            lambda: self.log.send(node, Veto(position, validator, "no")),
            lambda: self.model.veto(node, position, validator, "no"),
        )
        if got is not None:
            assert got[0].verdict == got[1]

    def declare(self) -> None:
        node = self.chance.choice(self.living())
        zone = self.chance.choice(("", *ZONES))
        validators = tuple(v for v in reversed(VALIDATORS) if self.chance.random() < 0.7)
        self.log.send(node, Declare(zone, validators))
        self.model.declare(node, zone, validators)

    def members(self) -> None:
        name = self.chance.choice(NODES)
        node = self.model.nodes.get(name)
        others = [other for other in self.living() if other != name]
        match self.chance.randrange(4):
            case 3:
                voters = self.chance.sample(NODES, self.chance.randrange(1, len(NODES) + 1))
                self.log.set_voters(*voters)
                self.model.set_voters(voters)
            case 0:
                role = self.chance.choice(("core", "replicant"))
                self.log.node_up(name, role)
                self.model.node_up(name, role)
            case 1 if node is not None and node.up and others:
                self.log.node_down(name)
                self.model.node_down(name)
            case 2 if node is not None and node.up:
                self.log.node_role(name, "core")
                self.model.node_role(name, "core")

    def settings(self) -> None:
        model, chance = self.model, self.chance
        match chance.randrange(6):
            case 0 | 1:
                model.quorum = chance.choice(list(QUORUMS))
                self.log.set("quorum", model.quorum)
            case 2:
                model.over = chance.choice(("cores", "members"))
                self.log.set("quorum_over", model.over)
            case 3:
                model.zones = {z: chance.choice((1, 1, 2)) for z in ZONES if chance.random() < 0.3}
                self.log.set("quorum_zones", model.zones)
            case 4:
                model.validators = {v: 1 for v in VALIDATORS if chance.random() < 0.5}
                self.log.set("quorum_validators", model.validators)
            case _:
                model.limits["queue_entries_max"] = chance.choice((1, 8, 20))
                self.log.set("queue_entries_max", model.limits["queue_entries_max"])
        model.changed()

    def spaces(self) -> None:
        node, name, sync = self.up(), self.chance.choice(SPACES), self.chance.random() < 0.5
        term = max(0, self.log.state.term - (self.chance.random() < 0.1))
        match self.chance.randrange(4):
            case 0:
                self.both(
                    lambda: self.log.send(node, CreateSpace(name, sync)),
                    lambda: self.model.create_space(name, sync),
                )
            case 1:
                self.both(
                    lambda: self.log.send(node, AlterFenced(name, sync, term)),
                    lambda: self.model.alter_space(node, name, sync, term),
                )
            case 2:
                self.both(
                    lambda: self.log.send(node, DropFenced(name, term)),
                    lambda: self.model.drop_space(node, name, term),
                )
            case _:
                self.log.send(node, Sweep(self.chance.choice((1, 2, 100))))

    # --- what must be alike ---

    def compare(self) -> None:
        """What can be seen in a few microseconds."""
        state, model = self.log.state, self.model
        pending = model.pending()
        assert state.last == len(model.items)
        assert state.head == (pending[0].position if pending else 0)
        assert state.pending == len(pending)
        assert state.term == model.term
        assert (state.owner, state.incarnation) == (model.owner or ("", 0))

    def compare_all(self) -> None:
        """Everything that somebody can ask."""
        self.log.check(walk=True)
        view, model = self.log.view(), self.model
        for item in model.items:
            assert self.log.fate(item.position) == item.fate, item.position
            run = rollback_of(view, item.position)
            if run is not None:
                assert (run.reason, run.node) == (item.reason, item.by)
        waiting = [(i.position, i.sync, i.writes) for i in model.pending()]
        assert [(p, e.sync, e.writes) for p, e in waiting_entries(view)] == waiting
        assert is_fast(view) == model.fast()
        state = self.log.state
        assert state.confirms == model.count("confirmed")
        assert state.rollbacks == model.count("rolled back")
        said = {
            position: run.kind
            for run in verdicts(view)
            for position in range(run.first, run.last + 1)
        }
        assert said == {i.position: i.fate for i in model.items if i.fate != "pending"}
        for space in model.spaces:
            for confirmed, ranged in ((True, confirmed_range), (False, pending_range)):
                looked = {key: model.look(space, key, confirmed=confirmed) for key in KEYS}
                rows = [(key, *row) for key, row in sorted(looked.items()) if row[0] is not None]
                found = [(key, row.value, row.position) for key, row in ranged(view, space)]
                assert found == rows
                turned = ranged(view, space, b"k", b"m", 1, True)
                part = [row for row in rows if b"k" <= row[0] < b"m"][-1:]
                assert [(key, row.value, row.position) for key, row in turned] == part

    def copy(self) -> None:
        """Another machine from a snapshot, which is to follow from here."""
        machine = StateMachine([Limbo()])
        machine.restore(list(self.log.machine.freeze().slices(3)), self.log.machine.index)
        assert machine.digest() == self.log.digest()
        self.copied = len(self.log.entries), machine

    def end(self) -> None:
        """The copy, and a machine that starts anew, come to the same state."""
        assert self.copied is not None
        first, copied = self.copied
        for entry in self.log.entries[first:]:
            copied.apply(copied.index + 1, entry)
        assert copied.digest() == self.log.digest()
        assert self.log.replay().digest() == self.log.digest()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_agree_with_the_model(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        beside = Beside(seed)
        for number in range(STEPS):
            try:
                beside.step()
                if number % 40 == 0:
                    beside.compare_all()
            except AssertionError as error:
                error.add_note(f"seed {seed}, step {number}")
                raise
            if number == STEPS // 2:
                beside.copy()
        beside.compare_all()
        beside.end()


def test_the_histories_meet_everything() -> None:
    """Or agreeing would mean little."""
    codes: dict[str, int] = {}
    fast = slow = confirmed = lost = 0
    for seed in range(20):
        beside = Beside(seed)
        send = beside.log.send

        def noted(node: str, command: Any, send: Callable[[str, Any], Any] = send) -> Any:
            try:
                done = send(node, command)
            except Refused as refusal:
                codes[refusal.code] = codes.get(refusal.code, 0) + 1
                raise
            for rejected in getattr(done, "rejected", ()):
                codes[rejected.code] = codes.get(rejected.code, 0) + 1
            return done

        beside.log.send = noted  # type: ignore[method-assign]
        for _ in range(STEPS):
            beside.step()
            fast += is_fast(beside.log.view())
            slow += beside.log.state.head > 0
        confirmed += beside.log.state.confirms
        lost += beside.log.state.rollbacks
    assert min(fast, slow) > 400, (fast, slow)
    assert min(confirmed, lost) > 100, (confirmed, lost)
    expected = (
        "unclaimed foreign_owner stale_owner stale_term interfering_promote not_settled not_owner "
        "already_confirmed already_rolled_back unknown_position not_a_validator queue_full "
        "condition_failed key_pending duplicate_write empty_transaction independent_sync "
        "space_exists unknown_space space_busy drop_pending"
    )
    assert {f"limbo_{code}" for code in expected.split()} <= codes.keys()
