"""Random commands of all kinds, sensible ones mostly, with deaths of nodes and changed limits.

Nothing is known here of what each should answer (`test_txqueue_model.py` does). After every entry
the invariants hold and the counters of each queue are what is in it (`pure.TxLog`); a fate that was
final stays; in the end nothing is left to sweep, and another machine that applies the same log has
the same rows. Few rows make a transaction large here, so spans are met all the time.

A failing case names its seed, which is the number of the test.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from raftkv.errors import Refused
from raftkv_txqueue import deciding
from raftkv_txqueue.commands import (
    Acquire,
    CloseSession,
    Commit,
    CommitBranch,
    End,
    ForgetBranch,
    Heuristic,
    Kind,
    Observe,
    Operation,
    PrepareBranch,
    Purge,
    Rollback,
    RollbackBranch,
    Select,
    SessionRow,
    SetTimeout,
    Settle,
    Stage,
    Start,
    Sweep,
    Vote,
)
from raftkv_txqueue.views import Fate, outcome_of, session_live, to_forget
from raftkv_txqueue.xa import Xid
from tests.plugins.raftkv_txqueue.pure import TxLog, accept_of, publish_to

STEPS = 250
QUEUES = ("a", "b", "c")
XIDS = tuple(Xid(1, b"g", bytes([n])) for n in range(3))
FINAL = ("committed", "rolled back", "forgotten")
#: What `Sweep` has to do.
MARKS = ("ended_nodes", "left", "ended_sessions", "unfolding", "dropped", "overfull", "due")
#: Small, so that they are met.
SETTINGS = {
    "rollbacks_kept": 3,
    "sessions_kept": 2,
    "decisions_kept": 4,
    "acquired_max": 6,
    "transactions_max": 5,
    "prepare_timeout_ms": 1_000,
    "transaction_timeout_ms": 3_000,
    "outcome_retention_ms": 5_000,
    "dtx_timeout_ms": 2_000,
}


class Walk:
    """One log. `rows`: of a transaction that one entry moves by itself."""

    def __init__(self, seed: int, rows: int) -> None:
        self.rng = Random(seed)
        self.rows = rows
        self.log = TxLog(queues=("a", "b"))
        self.opened: list[int] = []
        self.fates: dict[tuple[int, int], Fate] = {}
        self.done = self.refused = 0
        for key, value in SETTINGS.items():
            self.log.set(key, value)

    def run(self) -> None:
        actions = (
            [self.publish] * 14
            + [self.get] * 10
            + [self.settle] * 8
            + [self.transact] * 22
            + [self.branch] * 22
            + [self.coordinate] * 10
            + [self.vote] * 6
            + [self.sweep] * 6
            + [self.open] * 5
            + [self.limits] * 3
            + [self.members] * 3
            + [self.others] * 3
        )
        for _ in range(STEPS):
            self.log.now += self.rng.choice([0, 0, 1, 10, 300])
            try:
                self.rng.choice(actions)()
                self.done += 1
            except Refused:
                self.refused += 1
            self.check_fates()
        self.finish()

    # --- what is checked ---

    def check_fates(self) -> None:
        view = self.log.view()
        for session in self.opened:
            for counter in range(1, 7):
                old = self.fates.get((session, counter))
                new = outcome_of(view, session, counter)
                if old is not None and old.state in FINAL:
                    assert new.state in (old.state, "forgotten"), (session, counter, old, new)
                self.fates[session, counter] = new

    def finish(self) -> None:
        log = self.log
        for _ in range(2):  # branches that time out now are forgotten after the retention time
            log.now += 100_000
            log.sweep_all(rows_max=7)
        assert not to_forget(log.view())
        for name in MARKS:
            assert log.table(name) == {}, name
        assert log.replay().digest() == log.digest()

    # --- whom to choose ---

    def up(self) -> str:
        members = self.log.machine.members
        return self.rng.choice([name for name in self.log.sessions if members[name].up])

    def session(self, *kinds: Kind) -> tuple[int, SessionRow]:
        """A live session of one of the kinds, mostly. Opens one if there is none."""
        view, rows = self.log.view(), self.log.table("sessions")
        good = [s for s, row in rows.items() if session_live(view, row) and row.kind in kinds]
        if good and self.rng.random() < 0.95:
            session = self.rng.choice(good)
        elif rows and self.rng.random() < 0.3:
            session = self.rng.choice(list(rows))
        else:
            session = self.log.open(self.up(), self.rng.choice(kinds))
            self.opened.append(session)
        return session, self.log.session(session)

    def held(self, session: int) -> list[tuple[str, int]]:
        names = self.log.table("names")
        locks = self.log.table("locks")
        return [(names[q], seq) for owner, q, seq in locks if owner == session and q in names]

    def operations(self, session: int) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        held = self.held(session)
        for _ in range(self.rng.randrange(1, 4)):
            if held and self.rng.random() < 0.5:
                queue, seq = held.pop(self.rng.randrange(len(held)))
                operations.append(accept_of(queue, seq))
            elif self.rng.random() < 0.05:
                operations.append(accept_of(self.rng.choice(QUEUES), self.rng.randrange(1, 30)))
            else:
                bodies = [f"m{n}" for n in range(self.rng.randrange(1, 4))]
                operations.append(publish_to(self.rng.choice(QUEUES), *bodies))
        return tuple(operations)

    # --- what happens ---

    def publish(self) -> None:
        self.log.publish(self.rng.choice(QUEUES), *["p"] * self.rng.randrange(1, 4))

    def get(self) -> None:
        session, row = self.session("plain", "tx", "dtx")
        queue, count = self.rng.choice(QUEUES), self.rng.randrange(1, 5)
        self.log.send(row.node, Acquire(session, queue, count, self.rng.choice([0, 0, 150])))

    def settle(self) -> None:
        session, row = self.session("plain", "tx", "dtx")
        held = self.held(session) or [("a", 1)]
        queue, seq = self.rng.choice(held)
        how: Any = self.rng.choice(["accept", "release", "reject"])
        seqs = (seq, self.rng.randrange(1, 30))
        self.log.send(row.node, Settle(session, queue, how, seqs))

    def transact(self) -> None:
        session, row = self.session("tx")
        counter = row.decided + self.rng.choice([1] * 9 + [0, 2])
        operations = self.operations(session)
        command: Any = self.rng.choice(
            [
                Stage(session, counter, operations),
                Stage(session, counter, operations),
                Commit(session, max(1, counter), operations),
                Commit(session, max(1, counter)),
                Rollback(session, max(1, counter), "why"),
            ]
        )
        self.log.send(row.node, command)

    def branch(self) -> None:
        """What a session does in a branch."""
        session, row = self.session("dtx")
        rng, known = self.rng, self.log.table("branches")
        if not row.number:
            xid = rng.choice(XIDS)
            join, resume = xid.key in known and rng.random() < 0.7, rng.random() < 0.1
            timeout_ms = rng.choice([None, 0, 500])
            self.log.send(row.node, Start(session, xid, join, resume, timeout_ms))
            return
        operations = self.operations(session)
        if rng.random() < 0.4:
            self.log.send(row.node, Stage(session, 0, operations))
            return
        mine = self.log.table("transactions")[row.number].xid
        suspend, fail = rng.random() < 0.2, rng.random() < 0.1
        self.log.send(row.node, End(session, mine, suspend, fail, operations))

    def coordinate(self) -> None:
        """What a coordinator does, or an operator."""
        xid = self.rng.choice(XIDS)
        command: Any = self.rng.choice(
            [
                PrepareBranch(xid),
                PrepareBranch(xid),
                CommitBranch(xid, one_phase=self.rng.random() < 0.3),
                CommitBranch(xid),
                RollbackBranch(xid),
                Heuristic(xid, self.rng.random() < 0.5, "lost"),
                ForgetBranch(xid),
                SetTimeout(xid, self.rng.choice([0, 500])),
            ]
        )
        self.log.anywhere(command)

    def vote(self) -> None:
        rows = self.log.table("transactions").items()
        asked = [number for number, row in rows if row.state == "preparing"]
        if asked:
            self.log.send(self.up(), Vote(self.rng.choice(asked), self.rng.random() < 0.85, "no"))
        else:
            self.log.send(self.up(), Observe(self.rng.random() < 0.3))

    def sweep(self) -> None:
        self.log.anywhere(Sweep(self.rng.choice([1, 2, 5, 1_000])))

    def open(self) -> None:
        kind: Kind = self.rng.choice(("plain", "tx", "dtx"))
        self.opened.append(self.log.open(self.up(), kind))

    def limits(self) -> None:
        name = self.rng.choice(QUEUES)
        self.log.declare(
            name,
            depth_max=self.rng.choice([0, 0, 4, 8]),
            overflow=self.rng.choice(["refuse", "drop_oldest"]),
            deliveries_max=self.rng.choice([0, 0, 2]),
            dead_letter=self.rng.choice(["", *(other for other in QUEUES if other != name)]),
        )

    def members(self) -> None:
        name = self.rng.choice(list(self.log.sessions))
        members = self.log.machine.members
        if members[name].up and sum(member.up for member in members.values()) > 1:
            self.log.node_down(name)
        else:
            self.log.node_up(name)

    def others(self) -> None:
        session, row = self.session("plain", "tx", "dtx")
        if self.rng.random() < 0.5:
            self.log.send(row.node, CloseSession(session))
        elif self.rng.random() < 0.3:
            self.log.send(row.node, Select(session, self.rng.choice(("plain", "tx", "dtx"))))
        elif self.rng.random() < 0.3:
            self.log.delete(self.rng.choice(QUEUES))
        else:
            upto, rows = self.rng.randrange(1, 30), self.rng.randrange(1, 4)
            self.log.anywhere(Purge(self.rng.choice(QUEUES), upto, rows))


@pytest.mark.parametrize("seed", range(16))
def test_random_commands(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(seed, rows=(1, 2, 5, 1_000)[seed % 4])
    monkeypatch.setattr(deciding, "ENTRY_ROWS", walk.rows)
    walk.run()
    assert walk.done > STEPS / 3, f"{walk.refused} refused: the walk is not worth much"
