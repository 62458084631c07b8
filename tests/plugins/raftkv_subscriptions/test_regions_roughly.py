"""Several regions that are treated badly: `test_regions_together`, and all that operators can do.

Topics are deleted and declared again, regions excluded for a while, subscriptions deleted, made
again at either end, switched to another kind or off; the mode and limits change in between; shared
consumers come, take, give back and end. Whatever is done, nothing is taken for acknowledged that
nobody acknowledged, and the rows stay consistent.
"""

from __future__ import annotations

import contextlib
import random
from typing import Literal

import pytest

from raftkv_subscriptions import (
    acking,
    backlog,
    consumers,
    handing,
    invariants,
    mapping,
    marks,
    retention,
    topics,
    views,
)
from raftkv_subscriptions.refusals import (
    KindDiffers,
    OutOfOrder,
    RegionExcluded,
    TooManyRanges,
    UnknownSubscription,
)
from tests.plugins.raftkv_subscriptions import pure
from tests.plugins.raftkv_subscriptions.pure import RegionLog
from tests.plugins.raftkv_subscriptions.test_regions_together import NAMES, World, counted

STEPS = 160
SEEDS = 10
#: Modules that know how long a block of the index is, and where the work of an entry is cut off.
WITH_BLOCKS = (acking, backlog, invariants, mapping, marks, retention, topics, pure)
WITH_LIMITS = (consumers, handing, marks)
#: What may be refused, for it was tried without looking.
EXPECTED = (KindDiffers, OutOfOrder, RegionExcluded, TooManyRanges, UnknownSubscription)


class Rough(World):
    def __init__(self, seed: int, mode: Literal["vector", "snapshot"]) -> None:
        super().__init__(seed, mode, seeks=True)
        self.done: list[tuple[str, str, str]] = []
        self.actions = {
            self.publish: 20,
            self.carry: 30,
            self.tell: 30,
            self.ack: 12,
            self.ack_to: 25,
            self.consume: 8,
            self.trim: 12,
            self.trim_without_waiting: 4,
            self.seek: 3,
            self.declare_again: 2,
            self.exclude: 3,
            self.include: 6,
            self.unsubscribe: 1,
            self.subscribe: 2,
            self.change_kind: 1,
            self.replicate: 2,
            self.change_mode: 1,
            self.change_limit: 1,
        }

    def step(self) -> None:
        name, other = self.chance.sample(NAMES, 2)
        [action] = self.chance.choices(list(self.actions), list(self.actions.values()))
        self.done.append((action.__name__, name, other))
        with contextlib.suppress(*EXPECTED):
            action(name, other)
        self.check()

    # --- consumers ---

    def ack(self, name: str, other: str) -> None:
        log = self.regions[name]
        for position in self._some(name):
            log.ack(position)
            self._acknowledged(log, position)

    def _acknowledged(self, log: RegionLog, position: int) -> None:
        stored = views.message_at(log.view(), log.topic().id, position)
        assert stored is not None
        self.acked.add((stored.origin, stored.seq))

    def consume(self, name: str, other: str) -> None:
        log = self.regions[name]
        log.subscribe(kind="shared", initial="earliest")
        sub, rows = log.sub(), log.table("consumers")
        ids = [id for id, row in rows.items() if row.sub == sub.id and not row.ended_ms]
        if not ids or self.chance.random() < 0.2:
            log.attach()
            return
        id, choice = self.chance.choice(ids), self.chance.random()
        held = [at for holder, at in log.table("locks") if holder == id]
        if choice < 0.5:
            log.take(id, self.chance.randint(1, 5))
        elif choice < 0.7 and held:
            log.release(id, self.chance.choice(held))
        elif choice < 0.9 and held and rows[id].epoch == sub.epoch:
            position = self.chance.choice(held)
            log.ack(position, consumer=id)
            if position >= log.topic().first:
                self._acknowledged(log, position)
        else:
            log.detach(id)

    # --- operators ---

    def _without_others(self, name: str) -> list[str]:
        log = self.regions[name]
        active = list(views.active_regions(log.view()))
        for region in active:
            log.put_region(region, "excluded")
        return active

    def trim_without_waiting(self, name: str, other: str) -> None:
        """The others will get holes, or had it already."""
        log = self.regions[name]
        log.now += 2_000
        active = self._without_others(name)
        log.sweep_all("t")
        for region in active:
            log.put_region(region, "active")

    def declare_again(self, name: str, other: str) -> None:
        log = self.regions[name]
        active = self._without_others(name)
        log.delete("t")
        if self.chance.random() < 0.5:
            log.sweep_all()
        log.declare("t", retention_ms=1_000)
        for region in active:
            log.put_region(region, "active")

    def exclude(self, name: str, other: str) -> None:
        self.regions[name].put_region(other, "excluded")

    def include(self, name: str, other: str) -> None:
        self.regions[name].put_region(other, "active")

    def unsubscribe(self, name: str, other: str) -> None:
        self.regions[name].unsubscribe(force=True)

    def subscribe(self, name: str, other: str) -> None:
        initial = self.chance.choice(("earliest", "latest"))
        self.regions[name].subscribe(kind="shared", initial=initial, replicate=True)

    def change_kind(self, name: str, other: str) -> None:
        kind = self.chance.choice(("exclusive", "shared", "failover"))
        self.regions[name].subscribe(kind=kind)

    def replicate(self, name: str, other: str) -> None:
        self.regions[name].set_replicate(self.chance.random() < 0.7)

    def change_mode(self, name: str, other: str) -> None:
        self.mode = self.chance.choice(("vector", "snapshot"))
        for log in self.regions.logs.values():
            log.set("mode", self.mode)

    def change_limit(self, name: str, other: str) -> None:
        self.regions[name].set("ranges_max", self.chance.choice((10, 12, 1_000)))

    # --- the end ---

    def end(self) -> None:
        for log in self.regions.logs.values():
            log.sweep_all("t")
            for name in NAMES:
                if name != log.region:
                    log.put_region(name, "active")
        self.regions.carry_all()
        self.check()
        for log in self.regions.logs.values():
            assert log.replay().digest() == log.digest()


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("mode", ["vector", "snapshot"])
def test_nothing_is_taken_for_acknowledged_that_was_not(
    mode: Literal["vector", "snapshot"], small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`small`: blocks and entries are so short that these few messages fill many of them."""
    for module in WITH_BLOCKS if small else ():
        monkeypatch.setattr(module, "BLOCK", 4)
    for module in WITH_LIMITS if small else ():
        monkeypatch.setattr(module, "ROWS_MAX", 7)
    worlds = []
    for seed in random.Random(f"{mode} {small}").sample(range(100_000), SEEDS):
        world = Rough(seed, mode)
        worlds.append(world)
        try:
            for _ in range(STEPS):
                world.step()
            world.end()
        except BaseException:
            print(f"seed {seed}, {mode}, after {len(world.done)}: {world.done[-12:]}")
            raise
    for counter in ("merged", "holes", "trimmed"):
        assert counted(worlds, counter) > 4, (counter, counted(worlds, counter))
    assert any(kind == "declare_again" for world in worlds for kind, _, _ in world.done)
