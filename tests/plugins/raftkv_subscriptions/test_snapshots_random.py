"""Random commands of three regions in snapshot mode: an update never claims what is not true.

The oracle are the vectors: what a region takes for acknowledged was acknowledged by a consumer
somewhere, and a completed snapshot is never beyond the exact positions.
"""

from __future__ import annotations

import random

import pytest

from raftkv_subscriptions.commands import SnapshotAnswer, SnapshotAnswered, SnapshotStart, Update
from raftkv_subscriptions.refusals import OutOfOrder
from raftkv_subscriptions.rows import Advance, Answer, Request
from raftkv_subscriptions.views import markers_of, snapshots_of, state_of, subs_of
from tests.plugins.raftkv_subscriptions.snapshot_logs import SnapshotRegions

STEPS = 500


class Walk:
    def __init__(self, seed: int, names: str) -> None:
        self.random = random.Random(seed)
        self.names = tuple(names)
        self.regions = SnapshotRegions(*names)
        self.consumed: set[tuple[str, int]] = set()
        self.known: set[tuple[str, int]] = set()
        self.completed = self.updated = self.refused = 0

    def run(self) -> None:
        actions = (
            self.publish,
            self.carry,
            self.carry,
            self.carry,
            self.carry,
            self.acknowledge,
            self.start,
            self.marker,
            self.marker,
            self.marker,
            self.marker,
            self.marker,
            self.marker,
            self.marker,
            self.marker,
        )
        for _ in range(STEPS):
            here, other = self.random.sample(self.names, 2)
            self.random.choice(actions)(here, other)
            self.check()

    def publish(self, here: str, other: str) -> None:
        self.regions[here].publish("t", *("m",) * self.random.randrange(1, 4))

    def carry(self, here: str, other: str) -> None:
        """Some of what is on its way, in its order."""
        parts = self.regions.parts(other, here, only=(other,))
        if parts:
            some = parts[: self.random.choice((1, len(parts)))]
            self.regions[here].deliver("t", other, *some)

    def acknowledge(self, here: str, other: str) -> None:
        log = self.regions[here]
        if not dict(subs_of(log.view(), "t")) or log.topic().next == 1:
            return
        position = self.random.randrange(1, log.topic().next)
        line = log.seqs_of()
        if self.random.random() < 0.5:
            log.ack(position)
            self.consumed.add(line[position - 1])
        else:
            log.ack_to(position)
            self.consumed.update(line[:position])

    def start(self, here: str, other: str) -> None:
        self.regions[here].anywhere(SnapshotStart("t"))

    def marker(self, here: str, other: str) -> None:
        """One that the link from `other` would bring now; any of them, also again."""
        log, source = self.regions[here], self.regions[other]
        parts = self.regions.parts(other, here, only=(other,))
        first = parts[0] if parts else None
        line = source.seqs_of()
        lacks = len(line) if first is None else line.index((first.origin, first.seq))
        rows = [
            marker
            for _, marker in markers_of(source.view(), source.topic().id)
            if marker.position <= lacks and getattr(marker.what, "source", here) in (here, other)
        ]
        if not rows:
            return
        what = self.random.choice(rows).what
        if isinstance(what, Request):
            log.anywhere(SnapshotAnswer("t", other, what.id, 1 if what.round == 1 else 2))
        elif isinstance(what, Answer):
            self.answered(here, what)
        else:
            self.update(here, other, what)

    def answered(self, here: str, what: Answer) -> None:
        command = SnapshotAnswered(
            "t", what.region, what.id, 1 if what.round == 1 else 2, what.position, what.vector
        )
        try:
            self.completed += self.regions[here].anywhere(command).complete
        except OutOfOrder:
            self.refused += 1

    def update(self, here: str, other: str, what: Advance) -> None:
        position = dict(what.positions)[here]
        command = Update(
            "t", other, what.sub, what.kind, what.id, position, what.base, what.without
        )
        self.regions[here].anywhere(command)
        self.updated += 1

    def check(self) -> None:
        for name in self.names:
            log = self.regions[name]
            for sub, row in subs_of(log.view(), "t"):
                for origin, first, last in state_of(log.view(), "t", sub).ranges:
                    claimed = {(origin, seq) for seq in range(first, last + 1)}
                    assert claimed <= self.consumed, (name, claimed - self.consumed)
                passed = set(log.seqs_of()[: row.mark])
                assert passed <= self.consumed, (name, passed - self.consumed)
            for position, snapshot in snapshots_of(log.view(), log.topic().id):
                if (name, snapshot.id) not in self.known:
                    self.known.add((name, snapshot.id))
                    self.exact(name, position, snapshot.positions)

    def exact(self, name: str, here: int, positions: tuple[tuple[str, int], ...]) -> None:
        known = set(self.regions[name].seqs_of()[:here])
        for other, position in positions:
            assert set(self.regions[other].seqs_of()[:position]) <= known, (name, other)


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_no_update_claims_what_is_not_true(names: str) -> None:
    completed = updated = 0
    for seed in range(12):
        walk = Walk(seed, names)
        try:
            walk.run()
        except AssertionError as failed:
            raise AssertionError(f"seed {seed}, {names}: {failed}") from failed
        completed += walk.completed
        updated += walk.updated
    # It went where it matters.
    assert completed >= 8, completed
    assert updated >= 10, updated
