"""The pure half beside a naive model, over random histories of all that can happen to it.

That the tables give the same answers as lists of messages shows that what makes them fast (staged
rows, spans, counters, one number for the fate of all transactions, rows that are moved later)
changes nothing that anybody can see. `ENTRY_ROWS` is small here, so many transactions are large.
After each step the invariants hold, and everything that can be asked is compared.

A history is a number of random steps from a seed, which every failure shows. In the middle a copy
is made from a snapshot; it goes on beside the first machine, and both end with one digest.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from raftkv.errors import Refused
from raftkv.state import StateMachine
from raftkv_txqueue import deciding
from raftkv_txqueue.commands import (
    AcceptOf,
    Acquire,
    Answered,
    CloseSession,
    Commit,
    CommitBranch,
    DeclareQueue,
    DeleteQueue,
    End,
    EndSession,
    EnsureQueue,
    ForgetBranch,
    Heuristic,
    Message,
    Observe,
    Operation,
    PrepareBranch,
    Publish,
    PublishTo,
    Purge,
    PutBack,
    Rollback,
    RollbackBranch,
    SetTimeout,
    Settle,
    Stage,
    Start,
    Vote,
    Voting,
)
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.rows import SettlingVerb
from raftkv_txqueue.views import browse, decision_of, outcome_of, recover
from raftkv_txqueue.xa import Xid
from tests.plugins.raftkv_txqueue.naive_model import Model, No, Tx
from tests.plugins.raftkv_txqueue.pure import TxLog

NODES = ("n1", "n2", "n3")
QUEUES = ("q", "r", "dead")
XIDS = tuple(Xid(1, b"global", bytes([at])) for at in range(4))
#: Larger transactions go through spans, or give back later.
ENTRY_ROWS = 3
SETTINGS = {
    "transaction_timeout_ms": 900,
    "prepare_timeout_ms": 300,
    "dtx_timeout_ms": 1_000,
    "dtx_timeout_max_ms": 4_000,
    "outcome_retention_ms": 3_000,
    "transaction_rows_max": 9,
}
#: Longer than a history: what expires is compared elsewhere (`test_times.py`, storms).
LONG_MS = 10_000_000
STEPS = 200
SEEDS = 48
PARTS = 4


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "ENTRY_ROWS", ENTRY_ROWS)


class Beside:
    """The tables and the model, and random steps on both."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = TxLog(NODES, queues=())
        self.model = Model(
            ENTRY_ROWS,
            transaction_timeout=SETTINGS["transaction_timeout_ms"],
            prepare_timeout=SETTINGS["prepare_timeout_ms"],
            dtx_timeout=SETTINGS["dtx_timeout_ms"],
            dtx_timeout_max=SETTINGS["dtx_timeout_max_ms"],
            retention=SETTINGS["outcome_retention_ms"],
            transaction_rows_max=SETTINGS["transaction_rows_max"],
        )
        for name in NODES:
            self.model.node_up(name)
        for key, value in SETTINGS.items():
            self.log.set(key, value)
        self.bodies = 0
        #: What was met: answers, refusals, states.
        self.met: Counter[str] = Counter()
        #: Entries that were applied when the copy was made, and the copy.
        self.copied: tuple[int, StateMachine] | None = None
        self.votes = self.chance.random() < 0.6
        for name in QUEUES:
            self.declare(name)
        #: Some histories are mostly about branches.
        dtx = self.chance.choice((1, 3))
        weights: tuple[tuple[int, Callable[[], None]], ...] = (
            (6, self.publish),
            (10, self.acquire),
            (6, self.settle),
            (10, self.stage),
            (12, self.commit),
            (3, self.rollback),
            (5 * dtx, self.start),
            (5 * dtx, self.end),
            (10 * dtx, self.coordinate),
            (3 * dtx, self.operate),
            (1, self.open),
            (1, self.close),
            (1, self.end_session),
            (12 if self.votes else 0, self.vote),
            (2 if self.votes else 0, self.observe),
            (1, self.members),
            (1, self.declare),
            (1, self.delete),
            (2, self.purge),
            (6, self.sweep),
        )
        self.actions = [action for times, action in weights for _ in range(times)]

    # --- both ---

    def step(self) -> None:
        self.log.now += self.chance.choice((0,) * 20 + (7, 7, 100, 250))
        self.model.now = self.log.now
        self.chance.choice(self.actions)()
        self.compare()

    def both(self, theirs: Callable[[], Any], ours: Callable[[], Any]) -> tuple[Any, Any]:
        """Both refuse alike, (None, None), or what both gave."""
        self.model.begin()
        try:
            expected, code = ours(), ""
        except No as refusal:
            expected, code = None, f"txqueue_{refusal}"
            self.model.refused()
        try:
            real, refused = theirs(), ""
        except Refused as refusal:
            real, refused = None, refusal.code
        assert refused == code, (refused, code, real, expected)
        self.met[code or "done"] += 1
        return (None, None) if code else (real, expected)

    # --- chances ---

    def node(self, session: int = 0) -> str:
        """One that is up; most often that of the session."""
        row = self.model.sessions.get(session)
        up = [name for name, (_, is_up) in self.model.nodes.items() if is_up]
        if row is not None and row.node in up and self.chance.random() < 0.97:
            return row.node
        return self.chance.choice(up)

    def session(self, *kinds: str) -> int:
        """Most often a live one of these kinds."""
        rows = list(self.model.sessions.values())
        if rows and self.chance.random() < 0.05:
            return self.chance.choice(rows).id
        if self.chance.random() < 0.005:
            return self.chance.randrange(1, self.model.sessions_ever + 3)
        live = [row.id for row in rows if self.model.live(row) and row.kind in kinds]
        if len(live) < 2:
            return self.opened(self.chance.choice(kinds))
        return self.chance.choice(live)

    def name(self) -> str:
        if self.chance.random() < 0.003:
            return "nowhere"
        return self.chance.choice((*QUEUES, "q", "q", "r"))

    def xid(self) -> Xid:
        """Most often one that is known, and that no session works in."""
        known = [key for key, tx in self.model.branches.items() if not tx.sessions]
        if known and self.chance.random() < 0.7:
            return Xid(*self.chance.choice(known))
        return self.chance.choice(XIDS)

    def messages(self, count: int) -> tuple[Message, ...]:
        made = []
        for _ in range(count):
            self.bodies += 1
            pad = self.chance.choice((0, 0, 10, 100))
            made.append(Message(b"%d" % self.bodies + b"x" * pad, (("h", "v"),)))
        return tuple(made)

    def seqs(self, session: int, name: str, count: int) -> tuple[int, ...]:
        """Most often what the session holds, or has yet to get back."""
        queue = self.model.queues.get(name)
        if queue is None:
            return (1,)
        held = [
            item.seq
            for item in queue.items
            if (item.place == "acquired" and item.session == session)
            or (item.returning is not None and item.returning.session == session)
        ]
        if self.chance.random() < 0.05:
            held.append(self.chance.randrange(1, queue.next + 2))
        self.chance.shuffle(held)
        return tuple(held[:count])

    def operations(self, session: int) -> tuple[Operation, ...]:
        made: list[Operation] = []
        for _ in range(self.chance.choice((0, 1, 1, 2, 2, 3))):
            name = self.name()
            seqs = self.seqs(session, name, self.chance.choice((1, 2, 4)))
            if seqs and self.chance.random() < 0.6:
                made.append(AcceptOf(name, seqs))
            else:
                made.append(PublishTo(name, self.messages(self.chance.choice((1, 1, 2, 4)))))
        return tuple(made)

    # --- queues ---

    def declare(self, name: str = "") -> None:
        chance = self.chance
        name = name or chance.choice(QUEUES)
        limits = {
            "depth_max": chance.choice((0, 0, 0, 6, 12, 25)),
            "bytes_max": chance.choice((0, 0, 0, 2_000)),
            "overflow": chance.choice(("refuse", "refuse", "drop_oldest")),
            "deliveries_max": chance.choice((0, 0, 1, 2)),
            "dead_letter": chance.choice(("", "dead", "dead", "r", "nowhere")),
        }
        if limits["dead_letter"] == name and chance.random() < 0.6:
            limits["dead_letter"] = ""
        if chance.random() < 0.5:
            command = DeclareQueue(name, **limits)
            self.both(lambda: self.anywhere(command), lambda: self.model.declare(name, **limits))
            return
        some = {what: value for what, value in limits.items() if chance.random() < 0.5}
        change = chance.random() < 0.5
        ack = chance.choice((None, None, 0, 100, 300))
        ttl = chance.choice((None, None, 0, LONG_MS))
        ensure = EnsureQueue(name, **some, change=change, ack_timeout_ms=ack, ttl_ms=ttl)
        self.both(
            lambda: self.anywhere(ensure),
            lambda: self.model.ensure(name, change, ack, ttl, **some),
        )

    def anywhere(self, command: Any) -> Any:
        return self.log.send(self.node(), command)

    def delete(self) -> None:
        name, conditions = self.name(), [self.chance.random() < 0.5 for _ in range(2)]
        real, ours = self.both(
            lambda: self.anywhere(DeleteQueue(name, *conditions)),
            lambda: self.model.delete(name, *conditions),
        )
        if real is not None:
            assert real.messages == ours
            self.declare(name)

    def purge(self) -> None:
        name = self.name()
        queue = self.model.queues.get(name)
        seqs = [item.seq for item in queue.available()] if queue is not None else []
        upto = self.chance.choice(seqs[:4]) if seqs else 1
        real, ours = self.both(
            lambda: self.anywhere(Purge(name, upto)), lambda: self.model.purge(name, upto)
        )
        if real is not None:
            assert (real.messages, real.more) == (ours, False)

    def publish(self) -> None:
        name, messages = self.name(), self.messages(self.chance.choice((1, 1, 2, 5)))
        real, ours = self.both(
            lambda: self.anywhere(Publish(name, messages)),
            lambda: self.model.publish(name, messages),
        )
        if real is not None:
            assert (real.first, real.dropped) == ours
            assert real.last == real.first + len(messages) - 1

    # --- sessions ---

    def open(self) -> None:
        self.opened(self.chance.choice(("plain", "tx", "dtx")))

    def opened(self, kind: Any) -> int:
        node = self.node()
        session = self.log.open(node, kind)
        assert session == self.model.open_session(node, kind)
        return session

    def close(self) -> None:
        session = self.session("plain", "tx", "dtx")
        node = self.node(session)
        self.both(
            lambda: self.log.send(node, CloseSession(session)),
            lambda: self.model.close_session(node, session),
        )

    def end_session(self) -> None:
        """By an operator, at any node."""
        session = self.session("plain", "tx", "dtx")
        self.both(
            lambda: self.anywhere(EndSession(session, "it hangs")),
            lambda: self.model.end_session(session),
        )

    def acquire(self) -> None:
        session, name = self.session("plain", "tx", "dtx"), self.name()
        node, count = self.node(session), self.chance.choice((1, 2, 5))
        bytes_max = self.chance.choice((0, 0, 200))
        command = Acquire(session, name, count, bytes_max)
        real, ours = self.both(
            lambda: self.log.send(node, command),
            lambda: self.model.acquire(node, session, name, count, bytes_max),
        )
        if real is not None:
            assert real.seqs == tuple(item.seq for item in ours)
            assert real.deliveries == tuple(item.deliveries for item in ours)

    def settle(self) -> None:
        session, name = self.session("plain", "tx", "dtx"), self.name()
        seqs = self.seqs(session, name, self.chance.choice((1, 3))) or (1,)
        hows: tuple[SettlingVerb, ...] = ("accept", "release", "reject", "put_back")
        node, how = self.node(session), self.chance.choice(hows)
        command: PutBack | Settle = PutBack(session, name, seqs)
        if how != "put_back":
            command = Settle(session, name, how, seqs)
        real, ours = self.both(
            lambda: self.log.send(node, command),
            lambda: self.model.settle(node, session, name, how, seqs),
        )
        if real is not None:
            assert (real.done, list(real.missing)) == ours

    # --- TX ---

    def counter(self, session: int) -> int:
        row = self.model.sessions.get(session)
        decided = 0 if row is None else row.decided
        if self.chance.random() < 0.1:
            return self.chance.randrange(1, decided + 3)
        return decided + 1

    def stage(self) -> None:
        session = self.session("tx", "dtx")
        attached = [id for tx in self.model.branches.values() for id in tx.sessions]
        if attached and self.chance.random() < 0.5:
            session = self.chance.choice(attached)
        row = self.model.sessions.get(session)
        is_dtx = row is not None and row.kind == "dtx"
        counter = 0 if is_dtx != (self.chance.random() < 0.03) else self.counter(session)
        node, operations = self.node(session), self.operations(session)
        if operations:
            command = Stage(session, counter, operations)
            self.both(
                lambda: self.log.send(node, command),
                lambda: self.model.stage(node, session, counter, operations),
            )

    def commit(self) -> None:
        session = self.session("tx")
        counter, operations = self.counter(session), self.operations(session)
        node = self.node(session)
        command = Commit(session, counter, operations)
        real, ours = self.both(
            lambda: self.log.send(node, command),
            lambda: self.model.commit(node, session, counter, operations),
        )
        if isinstance(real, Voting):
            assert ours == ("voting", "")
        elif real is not None:
            assert (real.verdict, real.cause) == ours
        self.met["commit: " + (" ".join(ours) if ours else "refused")] += 1

    def rollback(self) -> None:
        session = self.session("tx")
        node, counter = self.node(session), self.counter(session)
        real, ours = self.both(
            lambda: self.log.send(node, Rollback(session, counter, "because")),
            lambda: self.model.rollback(node, session, counter),
        )
        if real is not None:
            assert (real.verdict, real.cause) == ours

    def observe(self) -> None:
        node, on = self.node(), self.chance.random() < 0.7
        self.log.send(node, Observe(on))
        self.model.observe(node, on)

    def vote(self) -> None:
        preparing = [n for n, tx in self.model.open.items() if tx.state == "preparing"]
        number = self.chance.choice((*preparing, *preparing, self.chance.randrange(20)))
        node, yes = self.node(), self.chance.random() < 0.88
        self.log.send(node, Vote(number, yes, "no room"))
        self.model.vote(node, number, yes)

    # --- branches ---

    def start(self) -> None:
        session, xid, chance = self.session("dtx"), self.chance.choice(XIDS), self.chance
        known = xid.key in self.model.branches and chance.random() < 0.9
        join = known and chance.random() < 0.5
        resume = known and (not join or chance.random() < 0.05)
        timeout = chance.choice((None, None, None, 0, 300, 1_500, 1_500))
        if chance.random() < 0.02:
            timeout = 5_000
        node = self.node(session)
        command = Start(session, xid, join, resume, timeout)
        self.statuses(
            "start",
            lambda: self.log.send(node, command),
            lambda: self.model.start(node, session, xid.key, join, resume, timeout),
        )

    def end(self) -> None:
        session, xid, chance = self.session("dtx"), self.xid(), self.chance
        pairs = [(id, key) for key, tx in self.model.branches.items() for id in tx.sessions]
        if pairs and chance.random() < 0.9:
            session, key = chance.choice(pairs)
            xid = Xid(*key)
        suspend, fail = chance.random() < 0.2, chance.random() < 0.06
        node = self.node(session)
        operations = self.operations(session) if chance.random() < 0.4 else ()
        command = End(session, xid, suspend, fail, operations)
        self.statuses(
            "end",
            lambda: self.log.send(node, command),
            lambda: self.model.end(node, session, xid.key, suspend, fail, operations),
        )

    def statuses(self, what: str, theirs: Callable[[], Any], ours: Callable[[], Any]) -> None:
        real, expected = self.both(theirs, ours)
        if isinstance(real, Answered):
            assert real.status == expected, (what, real, expected)
        elif real is not None:
            assert isinstance(real, Voting)
            assert expected == "voting"
        self.met[f"{what}: {expected}"] += 1

    def coordinate(self) -> None:
        xid, model = self.xid(), self.model
        failed = [key for key, tx in model.branches.items() if tx.state == "failed"]
        what = self.chance.randrange(8)
        if failed and self.chance.random() < 0.3:
            xid, what = Xid(*failed[0]), self.chance.choice((0, 4, 6))
        decided = [key for key, tx in model.branches.items() if tx.state.startswith("heur")]
        if decided and self.chance.random() < 0.2:
            xid, what = Xid(*decided[0]), self.chance.choice((4, 6))
        match what:
            case 0 | 1 | 2 | 3:
                self.statuses(
                    "prepare",
                    lambda: self.anywhere(PrepareBranch(xid)),
                    lambda: model.prepare(xid.key),
                )
            case 4 | 5:
                tx = model.branches.get(xid.key)
                one_phase = (tx is None or tx.state != "prepared") != (self.chance.random() < 0.1)
                self.statuses(
                    "commit",
                    lambda: self.anywhere(CommitBranch(xid, one_phase)),
                    lambda: model.commit_branch(xid.key, one_phase),
                )
            case 6:
                self.statuses(
                    "rollback",
                    lambda: self.anywhere(RollbackBranch(xid)),
                    lambda: model.rollback_branch(xid.key),
                )
            case _:
                timeout = self.chance.choice((0, 100, 500, 3_000))
                self.statuses(
                    "set_timeout",
                    lambda: self.anywhere(SetTimeout(xid, timeout)),
                    lambda: model.set_timeout(xid.key, timeout),
                )

    def operate(self) -> None:
        """Heuristics."""
        xid, model, commit = self.xid(), self.model, self.chance.random() < 0.5
        prepared = [key for key, tx in model.branches.items() if tx.state == "prepared"]
        if prepared and self.chance.random() < 0.5:
            xid = Xid(*prepared[0])
        tx = model.branches.get(xid.key)
        decided = tx is not None and tx.state.startswith("heuristically")
        if decided != (self.chance.random() < 0.9):
            self.statuses(
                "heuristic",
                lambda: self.anywhere(Heuristic(xid, commit, "because")),
                lambda: model.heuristic(xid.key, commit),
            )
        else:
            self.statuses(
                "forget",
                lambda: self.anywhere(ForgetBranch(xid)),
                lambda: model.forget(xid.key),
            )

    # --- what happens to all of it ---

    def members(self) -> None:
        name = self.chance.choice(NODES)
        _, up = self.model.nodes[name]
        others = [n for n, (_, is_up) in self.model.nodes.items() if is_up and n != name]
        if up and others and self.chance.random() < 0.5:
            self.log.node_down(name)
            self.model.node_down(name)
        elif not up or self.chance.random() < 0.5:
            self.log.node_up(name)
            self.model.node_up(name)

    def sweep(self) -> None:
        """All of it, in batches of some size."""
        rows_max = self.chance.choice((1, 2, 5, 1_000))
        if any(queue.deliveries_max for queue in self.model.queues.values()):
            # In which order several sessions leave dead letters depends on the batches.
            rows_max = 1_000
        for _ in range(500):
            if not self.log.sweep(rows_max).more:
                break
        else:
            raise AssertionError("sweeping never ends")
        self.model.sweep()
        for name in ("ended_nodes", "left", "ended_sessions", "unfolding", "dropped", "overfull"):
            assert self.log.table(name) == {}, name

    # --- what must be alike ---

    def compare(self) -> None:
        view, model = self.log.view(), self.model
        queues = self.log.table("queues")
        assert sorted(queues) == sorted(model.queues)
        for name, queue in model.queues.items():
            rows = browse(view, name, 1, 10_000, everything=True)
            found = [(r.seq, r.message, r.at_ms, r.deliveries, r.state) for r in rows]
            assert found == [
                (item.seq, item.message, item.at_ms, item.deliveries, item.place)
                for item in queue.items
            ], name
            holders = [r.holder and (r.holder.session, r.holder.since_ms) for r in rows]
            for item, holder in zip(queue.items, holders, strict=True):
                if item.place == "acquired":
                    assert holder == (item.session, item.since), (name, item)
                assert (holder is None) == (item.place == "available"), (name, item)
            available = [row.seq for row in browse(view, name, 1, 10_000)]
            assert available == [item.seq for item in queue.available()]
            row = queues[name]
            assert (row.depth, row.bytes) == (len(queue.items), queue.bytes())
            assert (row.ready, row.uses) == (len(available), model.uses(queue))
            assert (row.reserved, row.reserved_bytes) == model.reserved(queue)
            assert (row.next, row.dropped, row.dead) == (queue.next, queue.dropped, queue.dead)
        self.compare_sessions()
        self.compare_branches()

    def compare_sessions(self) -> None:
        view, model = self.log.view(), self.model
        assert set(self.log.table("sessions")) == set(model.sessions)
        for id, session in model.sessions.items():
            for counter in range(max(1, session.decided - 2), session.decided + 2):
                fate = outcome_of(view, id, counter)
                assert (fate.state, fate.cause) == model.outcome(id, counter), (id, counter)

    def compare_branches(self) -> None:
        view, model = self.log.view(), self.model
        rows = self.log.table("transactions")
        found = {key: rows[number] for key, number in self.log.table("branches").items()}
        assert {key: row.state for key, row in found.items()} == {
            key: tx.state for key, tx in model.branches.items()
        }
        for key, tx in model.branches.items():
            assert {a.session: a.suspended for a in found[key].associations} == tx.sessions
            self.met[f"state: {tx.state}"] += 1
        assert {xid.key for xid, _ in recover(view)} == {
            key for key, tx in model.branches.items() if _is_in_doubt(tx)
        }
        for xid in XIDS:
            row = decision_of(view, xid)
            mine = None if row is None else (row.verdict, row.by)
            assert mine == model.decisions.get(xid.key)
        self.met["spans"] += bool(self.log.table("spans"))
        self.met["returning"] += bool(model.returning)

    # --- snapshots ---

    def copy(self) -> None:
        """Another machine from a snapshot, which is to follow from here."""
        machine = StateMachine([TxQueue()])
        machine.restore(list(self.log.machine.freeze().slices(3)), self.log.machine.index)
        assert machine.digest() == self.log.digest()
        self.copied = len(self.log.entries), machine

    def end_of_history(self) -> None:
        """The copy, and a machine that starts anew, come to the same state."""
        assert self.copied is not None
        first, copied = self.copied
        for entry in self.log.entries[first:]:
            copied.apply(copied.index + 1, entry)
        assert copied.digest() == self.log.digest()
        assert self.log.replay().digest() == self.log.digest()


def _is_in_doubt(tx: Tx) -> bool:
    return tx.state == "prepared" or tx.state.startswith("heuristically")


def _run(seed: int) -> Beside:
    beside = Beside(seed)
    for number in range(STEPS):
        try:
            beside.step()
        except AssertionError as error:
            error.add_note(f"seed {seed}, step {number}")
            raise
        if number == STEPS // 2:
            beside.copy()
    beside.sweep()
    beside.compare()
    beside.end_of_history()
    return beside


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_agree_with_the_model(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        _run(seed)


def test_the_histories_meet_everything() -> None:
    """Or agreeing would mean little."""
    met: Counter[str] = Counter()
    for seed in range(SEEDS, SEEDS + 36):
        met += _run(seed).met
    expected = (
        "bad_dead_letter command_invalid dead_letter_in_use illegal_state "
        "invalid_argument "
        "not_allowed not_held "
        "not_in_branch not_your_session queue_acquired queue_differs queue_full queue_in_use "
        "queue_not_empty unknown_dead_letter "
        "rollback_only session_ended transaction_closed transaction_over transaction_too_large "
        "unknown_queue unknown_transaction unknown_xid wrong_kind"
    )
    assert {f"txqueue_{code}" for code in expected.split()} <= met.keys()
    commits = "committed|voting|rolled back timeout|rolled back txqueue_not_held"
    assert {f"commit: {what}".strip() for what in commits.split("|")} <= {
        what.strip() for what in met
    }
    assert {f"prepare: {status}" for status in (0, 1, 2, 7, "voting")} <= met.keys()
    assert {f"commit: {status}" for status in (0, 1, 2)} <= met.keys()
    assert {f"rollback: {status}" for status in (0, 2)} <= met.keys()
    assert met["commit: 4"] + met["rollback: 4"] > 0
    assert met["commit: 5"] + met["rollback: 5"] > 0
    assert {f"end: {status}" for status in (0, 1, 2)} <= met.keys()
    states = "active|preparing|prepared|failed|heuristically committed|heuristically rolled back"
    assert {f"state: {state}" for state in states.split("|")} <= met.keys()
    assert min(met["spans"], met["returning"], met["state: prepared"]) > 50
