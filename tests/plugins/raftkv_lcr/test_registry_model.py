"""The registry beside a naive model, over random histories of all that can happen to it.

The model holds one dictionary of owners and one of claims, forgets a dead node's rows at once, and
knows no cleaning: that the real tables give the same answers shows that fencing is as good as
deleting, whenever the cleaner comes.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftkv.errors import Refused
from raftkv.state import StateMachine
from raftkv_lcr import LCR
from raftkv_lcr.commands import (
    MODES,
    Adopt,
    Ahead,
    AheadAt,
    Announce,
    Channel,
    Cleanup,
    InProgress,
    Mode,
    ModeChanged,
    ModeSwitched,
    Open,
    OutdatedLate,
    Registered,
    Restart,
    SwitchMode,
    Unregister,
    Unregistered,
)
from raftkv_lcr.modes import effective_mode, mode_of
from raftkv_lcr.registry import live_owner
from tests.plugins.raftkv_lcr.one_log import Log

NODES = ("n1", "n2", "n3")
CLAIM_MS = 30_000
AGE_MS = 60_000

Answer = Any


def same(one: Channel, other: Channel) -> bool:
    return (one.client_id, one.channel, one.node, one.incarnation) == (
        other.client_id,
        other.channel,
        other.node,
        other.incarnation,
    )


class Model:
    """What the registry means, without tables. Refusals are their codes."""

    def __init__(self, version: int) -> None:
        self.version = version
        # The first ticket of format 3.
        self.first = 0
        self.owners: dict[str, tuple[Channel, bool]] = {}
        self.claims: dict[str, tuple[Channel, int]] = {}
        # Claims on a place whose owner has died. They count for nothing, and their rows lie there
        # until the place is taken or cleaned.
        self.orphans: list[Channel] = []
        self.mode: Mode = "disabled"
        self.epoch = 0
        self.serial = 0  # of the switch
        self.up = dict.fromkeys(NODES, 1)
        self.announced: dict[str, int] = {}

    def newer(self, one: Channel, other: Channel) -> bool:
        if self.version >= 3:
            times = [row.version * (row.ticket >= self.first) for row in (one, other)]
            return (times[0], one.ticket) > (times[1], other.ticket)
        if one.supplied and other.supplied:
            return (one.version, one.ticket) > (other.version, other.ticket)
        return one.ticket > other.ticket

    def place(
        self, version: int | None, ticket: int, now: int, serial: int
    ) -> tuple[int, int, bool]:
        """Version, ticket and `supplied` of a connection that registers."""
        if self.version < 3:
            place = ticket or serial
            return place if version is None else version, place, version is not None
        t = now if version is None else max(min(version, now), now - AGE_MS, 0)
        return t, ticket or serial, True

    def adopted(self, row: Channel, ticket: int, own: bool, now: int, serial: int) -> Channel:
        """The row of a living channel that gets this ticket."""
        if self.version < 3 or ticket < (self.first or serial):
            version, supplied = (row.version if row.supplied else ticket), row.supplied
        elif row.supplied:
            version, supplied = min(row.version, now), True
        else:
            version, supplied = (0 if own else now), True
        return msgspec.structs.replace(row, ticket=ticket, version=version, supplied=supplied)

    def end(self, node: str) -> None:
        """The node's life is over."""
        for client in [c for c, (row, _) in self.owners.items() if row.node == node]:
            del self.owners[client]
            if client in self.claims:
                self.orphans.append(self.claims.pop(client)[0])
        for client in [c for c, (row, _) in self.claims.items() if row.node == node]:
            del self.claims[client]
        self.up.pop(node, None)
        self.announced.pop(node, None)

    def open(self, me: Channel, command: Open, policy: str, now: int, index: int) -> Answer:
        if command.epoch != self.epoch:
            return ModeChanged(self.mode, self.epoch, index)
        if command.predecessor is not None and same(command.predecessor, me):
            return "lcr_self_takeover"
        owner, present = self.owners.get(me.client_id, (None, False))
        if owner is not None:
            if same(owner, me):
                return Registered(owner, None, present, True, index)
            if self.newer(owner, me):
                return OutdatedLate(owner, index)
            rival, since = self.claims.get(me.client_id, (me, 0))
            if not same(rival, me) and now - since < CLAIM_MS:
                if policy == "refuse":
                    return InProgress(rival, index)
                if self.newer(rival, me):
                    return OutdatedLate(rival, index)
            if owner.ticket == me.ticket:
                return "lcr_bad_ticket"
        if command.predecessor == owner or command.clean:
            resumed = owner is not None and command.resume and not command.clean
            self.owners[me.client_id] = (me, resumed)
            self.claims.pop(me.client_id, None)
            return Registered(me, owner, resumed, False, index)
        former = command.predecessor
        if owner is not None and (former is None or self.newer(owner, former)):
            self.claims[me.client_id] = (me, now)
            return Restart(owner, me, index)
        if self.version >= 3:
            return AheadAt(owner, me.ticket, index, me.version)
        return Ahead(owner, me.ticket, index)

    def adopt(self, me: Channel, present: bool, index: int) -> Answer:
        if self.up.get(me.node) != me.incarnation:
            return "lcr_not_a_member"
        owner, told = self.owners.get(me.client_id, (None, False))
        if owner is None:
            self.owners[me.client_id] = (me, present)
            self.claims.pop(me.client_id, None)
            return Registered(me, None, present, False, index)
        if same(owner, me):
            return Registered(owner, None, told, True, index)
        return OutdatedLate(owner, index)

    def unregister(self, row: Channel, index: int) -> Answer:
        owner, _ = self.owners.get(row.client_id, (None, False))
        claim, _ = self.claims.get(row.client_id, (None, 0))
        if owner == row:
            del self.owners[row.client_id]
            self.claims.pop(row.client_id, None)
        elif claim == row:
            del self.claims[row.client_id]
        return Unregistered(row in (owner, claim), index)

    def switch(self, command: SwitchMode, index: int, serial: int) -> Answer:
        mode = command.mode
        if mode == self.mode:
            return ModeSwitched(mode, self.epoch, index)
        if command.epoch is not None and command.epoch != self.epoch:
            return "lcr_mode_moved"
        if {self.mode, mode} == {"disabled", "enabled"} or (self.mode, mode) == (
            "disabled",
            "dual",
        ):
            return "lcr_wrong_step"
        if mode == "enabled" and set(self.up) - set(self.announced):
            return "lcr_old_nodes"
        free = self.mode == "enabled"
        if not free and any(epoch < self.epoch for epoch in self.announced.values()):
            return "lcr_not_adopted"
        self.mode, self.epoch, self.serial = mode, index, serial
        return ModeSwitched(mode, index, index)


clients = st.sampled_from(["c", "c", "c", "d"])
nodes = st.sampled_from(NODES)
names = st.sampled_from(["a", "b"])
versions = st.none() | st.none() | st.integers(1, 4)


class RegistryBesideModel(RuleBasedStateMachine):
    """Callers propose with what they know: fresh, stale, or made up."""

    version = 3

    @initialize(policy=st.sampled_from(["displace", "refuse"]))
    def begin(self, policy: str) -> None:
        self.log = Log(NODES, version=self.version)
        self.log.set("policy", policy)
        self.log.set("claim_ms", CLAIM_MS)
        self.log.set("history_ms", 60_000)
        self.policy = policy
        self.model = Model(self.version)
        #: Every row that anybody was ever told of; tickets of answers.
        self.rows: list[Channel] = []
        self.tickets: dict[tuple[str, str, str], int] = {}

    def seen(self, client: str, index: int) -> Channel | None:
        """A row of the client that some caller may still believe in."""
        known = [row for row in self.rows if row.client_id == client]
        return known[index % len(known)] if known else None

    def outcome(self, node: str, command: msgspec.Struct) -> Answer:
        try:
            return self.log.send(node, command)
        except Refused as refusal:
            return refusal.code

    def at(self, version: int | None) -> int | None:
        """A version for the format: from 3 on, a connect time around that of the log."""
        if version is None or self.version < 3:
            return version
        return max(0, self.log.now + (version - 3) * CLAIM_MS)

    def alive(self, node: str) -> bool:
        return node in self.model.up

    @rule(
        client=clients,
        node=nodes,
        name=names,
        version=versions,
        known=st.sampled_from(["owner", "owner", "nobody", "nobody", "stale"]),
        stale=st.integers(0, 50),
        resume=st.booleans(),
        late=st.sampled_from([0] * 7 + [1]),
        clean=st.sampled_from([False] * 3 + [True]),
    )
    def open(
        self,
        client: str,
        node: str,
        name: str,
        version: int | None,
        known: str,
        stale: int,
        resume: bool,
        late: int,
        clean: bool,
    ) -> None:
        if not self.alive(node):
            return
        predecessor, _ = self.model.owners.get(client, (None, False))
        if known != "owner":
            predecessor = self.seen(client, stale) if known == "stale" else None
        self.try_open((client, node, name), predecessor, version, resume, late, clean)

    @precondition(lambda self: self.tickets)
    @rule(which=st.integers(0, 20), version=versions, resume=st.booleans())
    def open_again(self, which: int, version: int | None, resume: bool) -> None:
        """One that was told `restart` or `ahead` is back, with the predecessor that it was told."""
        key = list(self.tickets)[which % len(self.tickets)]
        if self.alive(key[1]):
            owner, _ = self.model.owners.get(key[0], (None, False))
            self.try_open(key, owner, version, resume, 0)

    @rule(client=clients, first=st.permutations(NODES), then=st.permutations(NODES))
    def storm(self, client: str, first: list[str], then: list[str]) -> None:
        """On three nodes at once: none of them sees the owner, and each comes back once."""
        keys = {node: (client, node, "storm") for node in NODES if self.alive(node)}
        for node in first:
            if node in keys:
                self.try_open(keys[node], None, None, True, 0)
        for node in then:
            if node in keys:
                owner, _ = self.model.owners.get(client, (None, False))
                self.try_open(keys[node], owner, None, True, 0)

    def try_open(
        self,
        key: tuple[str, str, str],
        predecessor: Channel | None,
        version: int | None,
        resume: bool,
        late: int,
        clean: bool = False,
    ) -> None:
        client, node, name = key
        version = self.at(version)
        ticket = self.tickets.get(key, 0)
        epoch = max(0, mode_of(self.log.view()).epoch - late)
        command = Open(client, name, predecessor, version, ticket, resume, epoch, clean)
        answer = self.outcome(node, command)
        serial = self.log.machine.serial
        now, index = self.log.machine.now, self.log.machine.index
        place = self.model.place(version, ticket, now, serial)
        me = Channel(client, name, node, self.model.up[node], *place)
        assert answer == self.model.open(me, command, self.policy, now, index)
        if not isinstance(answer, str | ModeChanged):
            self.model.first = self.model.first or serial
            self.model.announced.setdefault(node, 0)  # who opens is no old node
        self.remember(answer, key)

    def remember(self, answer: Answer, key: tuple[str, str, str]) -> None:
        self.tickets.pop(key, None)
        if isinstance(answer, Registered):
            self.rows.append(answer.channel)
        elif isinstance(answer, Restart):
            self.rows.append(answer.claim)
            self.tickets[key] = answer.claim.ticket
        elif isinstance(answer, Ahead):
            self.tickets[key] = answer.ticket

    @rule(client=clients, by=nodes, node=nodes, name=names, version=versions, present=st.booleans())
    def adopt(
        self, client: str, by: str, node: str, name: str, version: int | None, present: bool
    ) -> None:
        if not self.alive(by):
            return
        life = self.log.machine.members[node].incarnation
        version = self.at(version)
        row = Channel(client, name, node, life, version or 0, 0, version is not None)
        answer = self.outcome(by, Adopt(row, present))
        serial, now = self.log.machine.serial, self.log.machine.now
        ticket = (by == node and self.model.serial) or serial
        me = self.model.adopted(row, ticket, by == node, now, serial)
        if not isinstance(answer, str):
            self.model.first = self.model.first or serial
        assert answer == self.model.adopt(me, present, self.log.machine.index)
        if by == node and not isinstance(answer, str):
            self.model.announced.setdefault(node, 0)
        if isinstance(answer, Registered):
            self.rows.append(answer.channel)

    @precondition(lambda self: self.rows)
    @rule(which=st.integers(0, 50), node=nodes)
    def unregister(self, which: int, node: str) -> None:
        if self.alive(node):
            row = self.rows[-1 - which % len(self.rows)]
            answer = self.outcome(node, Unregister(row))
            if self.model.up.get(row.node) == row.incarnation:
                expected = self.model.unregister(row, self.log.machine.index)
                if row in self.model.orphans and not expected.removed:
                    assert isinstance(answer, Unregistered)  # the row was there, or was not
                else:
                    assert answer == expected

    @rule(
        what=st.sampled_from(["switch", "announce", "down", "up", "clean", "wait"]),
        node=nodes,
        mode=st.sampled_from(MODES),
        ms=st.sampled_from([1, CLAIM_MS // 2, CLAIM_MS]),
    )
    def world(self, what: str, node: str, mode: Mode, ms: int) -> None:
        """All that is no connection, in one rule, so that most steps are connections."""
        if what == "wait":
            self.log.now += ms
        elif what == "up":
            self.up(node)
        elif what == "clean":
            self.clean()
        elif not self.alive(node):
            return
        elif what == "switch":
            # One in three names no epoch, one the present, one a former one.
            epoch = None if ms == 1 else max(0, self.model.epoch - (ms == CLAIM_MS))
            command = SwitchMode(mode, epoch)
            answer = self.outcome(node, command)
            machine = self.log.machine
            assert answer == self.model.switch(command, machine.index, machine.serial)
            if not isinstance(answer, str):
                self.model.first = self.model.first or machine.serial
        elif what == "announce":
            self.outcome(node, Announce(2, self.model.epoch))
            self.model.announced[node] = self.model.epoch
        elif node != "n1":
            self.log.node_down(node)
            self.model.end(node)

    def up(self, node: str) -> None:
        self.log.node_up(node)
        self.model.end(node)
        self.model.up[node] = self.log.machine.members[node].incarnation

    def clean(self) -> None:
        """Of any life, ended or not: what lives is never hit."""
        for node in NODES:
            for incarnation in range(1, self.log.machine.members[node].incarnation + 1):
                self.log.send("n1", Cleanup(node, incarnation, ("c", "d"), False))

    @invariant()
    def same_owners_and_modes(self) -> None:
        if not hasattr(self, "log"):
            return
        view = self.log.view()
        for client in ("c", "d"):
            owner = live_owner(view.table("clients").get(client), view.members)
            assert owner == self.model.owners.get(client, (None, False))[0]
        olds = set(self.model.up) - set(self.model.announced)
        acting = "migration" if self.model.mode == "enabled" and olds else self.model.mode
        assert (effective_mode(view).mode, effective_mode(view).epoch) == (
            acting,
            self.model.epoch,
        )

    def teardown(self) -> None:
        """Replayed on another machine, and restored from a snapshot: the same state."""
        if hasattr(self, "log"):
            replayed = StateMachine([LCR()])
            for index, entry in enumerate(self.log.entries, 1):
                replayed.apply(index, entry)
            restored = StateMachine([LCR()])
            restored.restore(list(replayed.freeze().slices()), replayed.index)
            assert replayed.digest() == self.log.digest() == restored.digest()


RegistryBesideModel.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestRegistryBesideModel = RegistryBesideModel.TestCase


class RegistryOfFormat2BesideModel(RegistryBesideModel):
    """The same before format 3: what a cluster with members of 0.1.0 decides."""

    version = 2


RegistryOfFormat2BesideModel.TestCase.settings = settings(max_examples=50, stateful_step_count=50)
TestRegistryOfFormat2BesideModel = RegistryOfFormat2BesideModel.TestCase
