"""One state machine and the sessions of its nodes: the pure half without any cluster around it.

Every command is an entry of its own. After each one the invariants are checked, and what must hold
from one entry to the next: no verdict changes, and the rows change by what is confirmed only.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, TypeVar

import msgspec

from raftkv.errors import Refused
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeRole,
    NodeUp,
    OpenSession,
    SetSetting,
    SetVoters,
    StateMachine,
    encode_batch,
)
from raftkv_limbo.commands import (
    FORMAT_CONFIRMATIONS,
    Ack,
    AlterFenced,
    Condition,
    CreateSpace,
    DropEntered,
    DropFenced,
    Promote,
    Promoted,
    Rejected,
    State,
    Submit,
    Submitted,
    Transaction,
    Write,
)
from raftkv_limbo.plugin import Limbo
from raftkv_limbo.views import confirmation_of, confirmed_row, fate, pending_row, state_of

T = TypeVar("T")

#: All cores: nothing is fast then, unless there is one node.
ALL = "N"


def put(space: str, key: bytes, value: bytes | None = b"v", **more: Any) -> Transaction:
    """A transaction of one key; `conditions` and `independent` as they are."""
    return Transaction((Write(space, key, value),), **more)


class FormerLimbo(Limbo):
    """The plugin in a cluster whose members announce format 1 of it."""

    version = 1


class LimboLog:
    """`now` is the log's clock. `nodes` are up cores; spaces "s" (sync) and "a" (async) exist."""

    def __init__(
        self,
        nodes: tuple[str, ...] = ("n1", "n2", "n3"),
        *,
        quorum: str = ALL,
        owner: str = "n1",
        plugin: type[Limbo] = Limbo,
        walk: bool = True,
    ) -> None:
        """`walk` False: what takes long is checked by `check(walk=True)` only."""
        self.walk = walk
        self.plugin = plugin()
        self.machine = StateMachine([self.plugin])
        self.now = 1_000
        self.seqs = itertools.count(1)
        self.sessions: dict[str, int] = {}
        #: All entries, to feed them to another machine.
        self.entries: list[bytes] = []
        self.fates: dict[int, str] = {}
        # Up to which entry `fates` were looked at.
        self.walked = 0
        for name in nodes:
            self.node_up(name)
        self.send(nodes[0], CreateSpace("s", True))
        self.send(nodes[0], CreateSpace("a", False))
        if quorum != "N / 2 + 1":
            self.set("quorum", quorum)
        if owner:
            self.promote(owner)

    # --- entries ---

    def run(self, session: int, plugin: str, command: msgspec.Struct, seq: int = 0) -> Any:
        """Apply one command; its result. Raises its refusal."""
        data = msgspec.msgpack.encode(command)
        envelope = Envelope(session, seq or next(self.seqs), 1, plugin, data)
        self.entries.append(encode_batch(self.now, [envelope]))
        [(_, _, outcome)] = self.machine.apply(self.machine.index + 1, self.entries[-1])
        assert not self.machine.faults, self.machine.faults[0].detail
        self.check(walk=self.walk)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def check(self, *, walk: bool) -> None:
        view = self.view()
        assert list(self.plugin.invariants(view)) == []
        if not walk:
            return
        for position in range(1, self.state.last + 1):
            old, new = self.fates.get(position, "pending"), fate(view, position)
            if old != "pending":
                assert new in (old, "forgotten"), f"{position} was {old} and is {new}"
            elif new == "confirmed":
                self.check_confirmation(position)
            self.fates[position] = new
        self.walked = self.machine.index

    def check_confirmation(self, position: int) -> None:
        """It was confirmed since the last walk, and that has a record, unless it is dropped."""
        view = self.view()
        kept = confirmation_of(view, position)
        if self.plugin.version < FORMAT_CONFIRMATIONS:
            assert kept is None
        elif kept is None:
            runs = view.table("confirmations")
            assert len(runs) >= view.settings["rollbacks_kept"], f"{position} has no record"
            assert next(iter(runs.scan(limit=1)))[0] > position
        else:
            assert self.walked < kept.index <= self.machine.index, position

    def replay(self) -> StateMachine:
        """Another machine that has applied the same entries."""
        machine = StateMachine([type(self.plugin)()])
        for index, entry in enumerate(self.entries, 1):
            machine.apply(index, entry)
        return machine

    # --- members ---

    def node_up(self, name: str, role: Literal["core", "replicant"] = "core") -> None:
        plugins = (("limbo", self.plugin.version),)
        command = NodeUp(next(self.seqs), name, role, name, "", None, plugins)
        self.sessions[name] = self.run(0, "core", command, command.nonce).session
        known = self.machine.voters[1]
        if role == "core" and name not in known:
            self.set_voters(*known, name)

    def set_voters(self, *names: str) -> None:
        """What the leader announces; a node's raft id is its name here."""
        up = next(name for name in self.sessions if self.machine.members[name].up)
        self.run(self.sessions[up], "core", SetVoters(names, self.machine.voters[0]))

    def node_down(self, name: str) -> None:
        other = next(n for n in self.sessions if n != name and self.machine.members[n].up)
        incarnation = self.machine.members[name].incarnation
        self.run(self.sessions[other], "core", NodeDown(name, incarnation))

    def node_role(self, name: str, role: Literal["core", "replicant"]) -> None:
        incarnation = self.machine.members[name].incarnation
        self.run(self.sessions[name], "core", NodeRole(name, incarnation, role))

    def client(self) -> int:
        """The session of a client that is no node."""
        nonce = next(self.seqs)
        session: int = self.run(0, "core", OpenSession(nonce), nonce).session
        return session

    def set(self, key: str, value: Any) -> None:
        up = next(name for name in self.sessions if self.machine.members[name].up)
        self.run(self.sessions[up], "core", SetSetting.of("limbo", key, value))

    # --- commands ---

    def send(self, node: str, command: msgspec.Struct) -> Any:
        return self.run(self.sessions[node], "limbo", command)

    def promote(self, node: str) -> Promoted:
        return must(Promoted, self.send(node, Promote(self.state.term, self.state.last)))

    def submit(self, node: str, *transactions: Transaction, term: int | None = None) -> Submitted:
        term = self.state.term if term is None else term
        return must(Submitted, self.send(node, Submit(transactions, term)))

    def taken(self, node: str, *transactions: Transaction) -> int:
        """Submit what is accepted wholly; the first position."""
        done = self.submit(node, *transactions)
        assert done.rejected == ()
        return done.first

    def rejected(self, node: str, transaction: Transaction, **more: Any) -> tuple[Any, ...]:
        """Submit one that is rejected; (code without the plugin's name, *arguments)."""
        before = self.machine.view("limbo").table("meta").get("state")
        [rejected] = self.submit(node, transaction, **more).rejected
        assert must(Rejected, rejected).at == 0
        assert self.state.last == (0 if before is None else before.last)
        return rejected.code.removeprefix("limbo_"), *rejected.args

    def sync(self, node: str = "n1", key: bytes = b"k", value: bytes | None = b"v") -> int:
        """One key of the sync space; the position."""
        return self.taken(node, put("s", key, value))

    def drop(self, space: str, node: str = "n1", *, term: int | None = None) -> DropEntered:
        term = self.state.term if term is None else term
        return must(DropEntered, self.send(node, DropFenced(space, term)))

    def alter(self, space: str, node: str = "n1", *, sync: bool, term: int | None = None) -> bool:
        term = self.state.term if term is None else term
        changed: bool = self.send(node, AlterFenced(space, sync, term)).changed
        return changed

    def ack(self, *nodes: str, upto: int | None = None, validators: tuple[str, ...] = ()) -> int:
        """These nodes hold all, or all up to; the confirmed position after it."""
        upto = self.state.last if upto is None else upto
        confirmed = 0
        for node in nodes:
            confirmed = self.send(node, Ack(upto, validators)).confirmed
        return confirmed

    # --- state ---

    def view(self) -> Any:
        return self.machine.view("limbo")

    @property
    def state(self) -> State:
        return state_of(self.view())

    def table(self, name: str) -> dict[Any, Any]:
        return dict(self.view().table(name).scan())

    def fate(self, position: int) -> str:
        return fate(self.view(), position)

    def value(self, space: str, key: bytes) -> bytes | None:
        row = confirmed_row(self.view(), space, key)
        return None if row is None else row.value

    def seen_pending(self, space: str, key: bytes) -> bytes | None:
        row = pending_row(self.view(), space, key)
        return None if row is None else row.value

    def digest(self) -> str:
        return self.machine.digest()


def must(kind: type[T], value: Any) -> T:
    assert isinstance(value, kind), value
    return value


def has(space: str, key: bytes, value: bytes | None) -> Condition:
    return Condition(space, key, "value", value)


def at(space: str, key: bytes, position: int) -> Condition:
    return Condition(space, key, "position", None, position)


def exists(space: str, key: bytes, there: bool) -> Condition:
    return Condition(space, key, "exists", None, int(there))
