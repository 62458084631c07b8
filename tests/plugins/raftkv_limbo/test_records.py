"""The verdicts that are kept, and what becomes of the oldest."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from raftkv_limbo.commands import RollBack
from raftkv_limbo.records import runs_of
from raftkv_limbo.refusals import UnknownPosition
from raftkv_limbo.views import verdicts
from tests.plugins.raftkv_limbo.pure import LimboLog, put


def test_runs_are_the_stretches_without_gaps() -> None:
    chance = random.Random(3)
    assert runs_of([]) == []
    for _ in range(100):
        positions = sorted(chance.sample(range(1, 30), chance.randrange(1, 20)))
        runs = runs_of(positions)
        assert [p for first, last in runs for p in range(first, last + 1)] == positions
        assert all(a[1] + 1 < b[0] for a, b in pairwise(runs))


def test_verdicts_newest_first_without_what_is_pending() -> None:
    log = LimboLog()
    log.taken("n1", put("a", b"1"))  # 1
    log.sync()  # 2, rolled back with 3 and 5
    log.sync()
    log.taken("n1", put("a", b"4", independent=True))
    log.sync()
    log.now += 10
    log.send("n2", RollBack(2, 1, "why"))
    log.taken("n1", put("a", b"6"))
    log.sync()  # 7, pending
    log.taken("n1", put("a", b"8", independent=True))
    log.taken("n1", put("a", b"9"))  # pending behind it
    found = verdicts(log.view())
    assert [(run.kind, run.first, run.last) for run in found] == [
        ("confirmed", 8, 8),
        ("confirmed", 6, 6),
        ("rolled back", 5, 5),
        ("confirmed", 4, 4),
        ("rolled back", 2, 3),
        ("confirmed", 1, 1),
    ]
    assert verdicts(log.view(), 3) == found[:3]
    assert (found[2].reason, found[2].node, found[2].at_ms) == ("why", "n2", log.now)
    assert found[2].index == found[4].index


def rolled_back(log: LimboLog, times: int) -> None:
    for _ in range(times):
        position = log.sync()
        log.send("n1", RollBack(position, 1, ""))
        log.taken("n1", put("a", b"x"))


def test_the_oldest_runs_are_forgotten() -> None:
    log = LimboLog()
    log.set("rollbacks_kept", 10)
    rolled_back(log, 12)
    assert len(log.table("rollbacks")) == 10
    assert log.state.forgotten == 3  # 1 and 3 were rolled back, 2 was confirmed
    assert [log.fate(p) for p in (1, 2, 3)] == ["forgotten"] * 3
    assert [log.fate(p) for p in (4, 5)] == ["confirmed", "rolled back"]
    assert verdicts(log.view())[-1].first == 4
    with pytest.raises(UnknownPosition):
        log.send("n1", RollBack(3, 1, ""))


def test_a_rollback_of_many_runs_does_not_forget_its_own() -> None:
    log = LimboLog()
    log.set("rollbacks_kept", 10)
    rolled_back(log, 10)
    first = log.sync()
    for number in range(14):
        log.taken("n1", put("a", b"y%d" % number, independent=True))
        log.sync()
    log.send("n1", RollBack(first, 1, ""))
    assert len(log.table("rollbacks")) == 15
    assert {log.fate(p) for p in range(first, log.state.last + 1, 2)} == {"rolled back"}
    rolled_back(log, 1)
    assert len(log.table("rollbacks")) == 10


def test_runs_in_the_queue_are_never_forgotten() -> None:
    """They say which entries there are dead."""
    log = LimboLog()
    log.set("rollbacks_kept", 10)
    head = log.sync()
    for _ in range(15):
        position = log.sync()
        log.send("n1", RollBack(position, 1, ""))
        log.taken("n1", put("a", b"y%d" % position, independent=True))
    assert len(log.table("rollbacks")) == 15
    assert log.state.forgotten == 0
    log.ack("n1", "n2", "n3", upto=head)
    assert log.state.head == 0
    rolled_back(log, 1)
    assert len(log.table("rollbacks")) == 10
