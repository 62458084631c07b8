"""Several regions whose links do what they like, over the plugin's own `apply`, in both modes.

Safe: what a region has as acknowledged, somebody acknowledged. No mark passes a message that is not
acknowledged, nor below a base. Alive: once everything was carried and said, all regions agree.
"""

from __future__ import annotations

import contextlib
import random
from typing import Literal

from raftkv_subscriptions import views
from raftkv_subscriptions.commands import Started
from raftkv_subscriptions.refusals import OutOfOrder
from tests.plugins.raftkv_subscriptions.pure import (
    Regions,
    SnapshotStart,
    Update,
    message,
    must,
)

NAMES = ("a", "b", "c")
Seqs = set[tuple[str, int]]


class World:
    """The regions, and what consumers have really acknowledged, of the subscription "s"."""

    def __init__(self, seed: int, mode: Literal["vector", "snapshot"], *, seeks: bool) -> None:
        self.chance = random.Random(seed)
        self.where = f"seed {seed}, {mode}"
        self.mode = mode
        self.seeks = seeks
        self.regions = Regions(*NAMES, checks=False)
        self.acked: Seqs = set()
        for log in self.regions.logs.values():
            log.set("mode", mode)
            log.set("cached_max", 3)
            log.declare("t", retention_ms=1_000)
        self.regions["a"].subscribe(kind="shared", initial="earliest", replicate=True)

    # --- steps ---

    def step(self) -> None:
        name, other = self.chance.sample(NAMES, 2)
        what = self.chance.choices(
            (self.publish, self.carry, self.tell, self.ack, self.ack_to, self.trim, self.seek),
            (20, 22, 22, 12, 25, 12, 3),
        )[0]
        what(name, other)
        self.check()

    def publish(self, name: str, other: str) -> None:
        count = self.chance.randint(1, 4)
        self.regions[name].publish("t", *[message("x")] * count)

    def carry(self, source: str, target: str) -> None:
        """Some of it, perhaps twice; also what others published."""
        only = self.chance.choice(((source,), NAMES))
        parts = self.regions.parts(source, target, only=only)
        some = parts[: self.chance.randint(1, 8)]
        for _ in range(self.chance.choice((1, 1, 2)) if some else 0):
            self.regions[target].deliver("t", source, *some)

    def tell(self, source: str, target: str) -> None:
        log = self.regions[source]
        vector = views.vector_of(self.regions[target].view(), "t")
        log.report(target, t=vector)
        if self.mode == "vector":
            self.regions.say(source, target)
            return
        log.anywhere(SnapshotStart("t"))
        for _ in range(self.chance.randint(4, 14)):
            one, other = self.chance.sample(NAMES, 2)
            # An answer that came before what it stands for: the link repeats it.
            with contextlib.suppress(OutOfOrder):
                self.regions.mark(one, other)

    def ack(self, name: str, other: str) -> None:
        for position in self._some(name):
            stored = views.message_at(self.regions[name].view(), 1, position)
            assert stored is not None
            self.acked.add((stored.origin, stored.seq))
            self.regions[name].ack(position)

    def ack_to(self, name: str, other: str) -> None:
        log = self.regions[name]
        for position in self._some(name)[:1]:
            for placed in views.read(log.view(), "t", 1, position):
                stored = placed.stored
                if placed.position <= position and (stored.origin, stored.seq) in log.wanted():
                    self.acked.add((stored.origin, stored.seq))
            log.ack_to(position)

    def _some(self, name: str) -> list[int]:
        """Positions that somebody may have received there."""
        log = self.regions[name]
        topic = log.topic()
        if not views.subs_of(log.view(), "t") or topic.first >= topic.next:
            return []
        low = max(topic.first, log.sub().mark - 3)
        high = min(topic.next - 1, low + 8)
        places = range(min(low, high), high + 1)
        return self.chance.sample(places, min(len(places), self.chance.randint(1, 4)))

    def trim(self, name: str, other: str) -> None:
        """The other region may be left out meanwhile: it will get holes."""
        log = self.regions[name]
        log.now += 2_000
        left_out = self.chance.random() < (0.7 if self.mode == "vector" else 0.35)
        for region in NAMES:
            if region != name:
                log.report(region, t=views.vector_of(self.regions[region].view(), "t"))
        if left_out:
            log.put_region(other, "excluded")
        log.sweep_all("t")
        if left_out:
            log.put_region(other, "active")

    def seek(self, name: str, other: str) -> None:
        log = self.regions[name]
        if self.seeks and views.subs_of(log.view(), "t"):
            topic = log.topic()
            log.seek(self.chance.randint(topic.first - 1, topic.next - 1))

    # --- what holds ---

    def check(self) -> None:
        for name, log in self.regions.logs.items():
            log.check()
            view = log.view()
            for sub, row in views.subs_of(view, "t"):
                state = views.state_of(view, "t", sub)
                claimed = {(o, n) for o, low, high in state.ranges for n in range(low, high + 1)}
                assert claimed <= self.acked, (self.where, name, claimed - self.acked)
                wanted = set(log.wanted(sub))
                for placed in views.read(view, "t", 1, row.mark):
                    if placed.position <= row.mark:
                        stored = placed.stored
                        assert (stored.origin, stored.seq) not in wanted, (self.where, name)
                assert views.backlog_of(view, "t", sub) == len(wanted), (self.where, name)

    def heal(self) -> None:
        self.regions.carry_all()
        if self.mode == "vector":
            for _ in range(2):
                self.regions.say_all()

    def wanted(self, name: str) -> Seqs:
        return set(self.regions[name].wanted())

    def here(self, name: str) -> Seqs:
        return set(self.regions[name].seqs_of())


def counted(worlds: list[World], counter: str) -> int:
    return sum(getattr(log.meta(), counter) for w in worlds for log in w.regions.logs.values())


def test_vectors() -> None:
    worlds = [World(seed, "vector", seeks=False) for seed in range(20)]
    for world in worlds:
        for _ in range(70):
            world.step()
        world.heal()
        world.check()
        for name in NAMES:
            assert world.wanted(name) == world.here(name) - world.acked, (world.where, name)
            log = world.regions[name]
            assert log.replay().digest() == log.digest()
    for counter in ("merged", "doubles", "holes", "trimmed"):
        assert counted(worlds, counter) > 10, (counter, counted(worlds, counter))


def test_vectors_with_seeks() -> None:
    """A region that was sought back wants again what it had; nobody else does."""
    worlds = [World(100 + seed, "vector", seeks=True) for seed in range(10)]
    for world in worlds:
        for _ in range(70):
            world.step()
        world.heal()
        world.check()
    assert any(log.sub().epoch for w in worlds for log in w.regions.logs.values())
    assert counted(worlds, "merged") > 10


def test_snapshots() -> None:
    worlds = [World(200 + seed, "snapshot", seeks=seed % 3 == 2) for seed in range(20)]
    for world in worlds:
        for _ in range(100):
            world.step()
        world.regions.carry_all()
        world.check()
    for counter in ("snapshots", "updates", "merged", "holes", "cache_hits"):
        assert counted(worlds, counter) > 4, (counter, counted(worlds, counter))


def test_snapshots_bring_marks_along() -> None:
    """Two rounds among three; then an acknowledgement moves the others."""
    regions = Regions(*NAMES)
    for log in regions.logs.values():
        log.set("mode", "snapshot")
    regions["a"].subscribe(initial="earliest", replicate=True)
    for name in NAMES:
        regions[name].publish("t", "x", "y")
    regions.carry_all()
    assert must(Started, regions["a"].anywhere(SnapshotStart("t"))).started
    regions.mark_all(rounds=3)
    [(position, _)] = views.snapshots_of(regions["a"].view(), 1)
    assert position == 6
    regions["a"].ack_to(6)
    regions.mark_all()
    for name in NAMES:
        assert regions[name].sub().mark == 6, name
        assert regions[name].wanted() == []


def test_an_update_is_never_ahead_of_the_exact_state() -> None:
    """M1-b: c has a message of b that a has not. Whatever a acknowledges, c keeps it."""
    regions = Regions(*NAMES)
    for log in regions.logs.values():
        log.set("mode", "snapshot")
    regions["a"].subscribe(initial="earliest", replicate=True)
    regions["a"].publish("t", "x")
    regions.carry("a", "c")
    regions["b"].publish("t", "M1-b")
    regions.carry("b", "c")
    regions["a"].anywhere(SnapshotStart("t"))
    for _ in range(3):
        regions.mark("a", "c")
        regions.mark("c", "a")
    regions["a"].ack_to(1)
    regions.mark("a", "c")
    assert views.snapshots_of(regions["a"].view(), 1) == ()
    assert regions["c"].seqs_of() == [("a", 1), ("b", 1)]
    assert [name for name, _ in views.subs_of(regions["c"].view(), "t")] == []
    # What a link that mixes up its order would say is no acknowledgement, but for what it says.
    regions["c"].anywhere(Update("t", "a", "s", "exclusive", 7, 1, (), ()))
    assert regions["c"].wanted() == [("b", 1)]
