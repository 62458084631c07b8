"""Random commands against the naive model, compared after each of them.

A run is one region with two others that deliver, acknowledge and leave holes, several subscriptions
of all kinds, consumers whose nodes die, seeks there and back, retention. The seed is in the name of
each test; a failure shows the command.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from raftkv_subscriptions import views
from raftkv_subscriptions.commands import Ack, AckTo, Attach, Detach, Merged, Take, Update
from raftkv_subscriptions.handing import wants
from raftkv_subscriptions.refusals import (
    ConsumerGone,
    KindDiffers,
    NotCumulative,
    OriginBehind,
    SubscriptionBusy,
    TooManyRanges,
    UnknownPosition,
)
from raftkv_subscriptions.rows import Hole

from .naive_model import NaiveConsumer, NaiveRegion
from .pure import RegionLog, copies

SEEDS = 40
COMMANDS = 160
NAMES = ("s", "u", "v")
NODES = ("n1", "n2", "n3")


class Run:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = RegionLog("a", others=("b", "c"), nodes=NODES)
        for other in ("b", "c"):
            self.log.put_region(other, fetches=False)
        # Some runs hit the limits all the time, some never.
        small = self.random.random() < 0.5
        limits = {"ranges_max": 10, "unacked_max": 5} if small else {}
        for key, value in limits.items():
            self.log.set(key, value)
        # The sets are the same in both modes.
        self.log.set("mode", self.random.choice(("vector", "snapshot")))
        self.model = NaiveRegion(
            "a",
            ranges_max=limits.get("ranges_max", 10_000),
            unacked_max=limits.get("unacked_max", 10_000),
        )
        self.up = dict.fromkeys(NODES, True)
        self.done: list[str] = []

    def run(self, commands: int) -> None:
        steps: list[tuple[Any, int]] = [
            (self.publish, 4),
            (self.deliver, 8),
            (self.subscribe, 3),
            (self.unsubscribe, 1),
            (self.ack, 10),
            (self.ack_to, 3),
            (self.seek, 2),
            (self.merge, 6),
            (self.update, 2),
            (self.attach, 4),
            (self.detach, 1),
            (self.take, 8),
            (self.release, 3),
            (self.node, 1),
            (self.sweep, 3),
        ]
        kinds = [step for step, weight in steps for _ in range(weight)]
        for _ in range(commands):
            step = self.random.choice(kinds)
            self.done.append(step.__name__)
            step()
            self.compare()

    # --- commands ---

    def publish(self) -> None:
        n = self.random.randint(1, 5)
        seq = self.log.publish("t", *("x" * self.random.randint(0, 9) for _ in range(n))).seq
        self.model.log += [("a", seq + i) for i in range(n)]

    def deliver(self) -> None:
        origin = self.random.choice("bc")
        known = self.model.known(origin)
        parts: list[Any] = []
        if self.random.random() < 0.15:
            gap = self.random.randint(1, 4)
            parts.append(Hole(origin, known + 1, known + gap))
            self.model.holes |= {(origin, known + i) for i in range(1, gap + 1)}
            known += gap
        if not parts or self.random.random() < 0.7:
            n = self.random.randint(1, 6)
            parts += copies(origin, known + 1, known + n)
            self.model.log += [(origin, known + i) for i in range(1, n + 1)]
        self.log.deliver("t", self.random.choice("bc"), *parts)
        self.model.settle_all()

    def subscribe(self) -> None:
        name, initial = self.random.choice(NAMES), self.random.choice(("earliest", "latest"))
        kind = self.random.choice(("exclusive", "failover", "shared"))
        old = self.model.subs.get(name)
        replicate = self.random.random() < 0.8
        more: dict[str, Any] = {"kind": kind, "initial": initial, "replicate": replicate}
        if old is None:
            self.log.subscribe("t", name, **more)
            self.model.subscribe(name, kind, initial, replicate)
        elif old.kind != kind and any(
            row.sub == name and row.live for row in self.model.consumers.values()
        ):
            with pytest.raises(KindDiffers):
                self.log.subscribe("t", name, **more)
        else:
            self.log.subscribe("t", name, **more)
            old.replicate = replicate
            if old.kind != kind:
                old.kind, old.cursor, old.returned = kind, self.model.mark(old) + 1, {}
                old.epoch += 1

    def unsubscribe(self) -> None:
        if self.random.random() < 0.6 or not self.model.subs:
            return
        name = self.random.choice(list(self.model.subs))
        self.log.unsubscribe("t", name, force=True)
        del self.model.subs[name]
        for id in [id for id, row in self.model.consumers.items() if row.sub == name]:
            with pytest.raises(ConsumerGone):
                self.log.send("n1", Take(id, 1))
            del self.model.consumers[id]

    def ack(self) -> None:
        name = self._sub()
        if name is None:
            return
        sub, consumer = self.model.subs[name], self._consumer(name)
        end = self.model.next
        positions = [self.random.randint(1, end) for _ in range(self.random.randint(1, 8))]
        if consumer and self.model.consumers[consumer].held and self.random.random() < 0.7:
            positions = self.random.sample(sorted(self.model.consumers[consumer].held), 1)
        command = Ack("t", name, tuple(positions), consumer)
        if max(positions) == end:
            with pytest.raises(UnknownPosition):
                self._by(consumer, command)
            return
        done = self.model.ack(name, positions)
        if done is None:
            with pytest.raises(TooManyRanges):
                self._by(consumer, command)
            return
        acked = self._by(consumer, command)
        assert (acked.done, acked.mark) == (done, self.model.mark(sub))
        if sub.kind == "shared":
            self.model.let_go(name, positions, consumer)

    def ack_to(self) -> None:
        name = self._sub()
        if name is None:
            return
        sub, consumer = self.model.subs[name], self._consumer(name)
        position = self.random.randint(0, self.model.next)
        command = AckTo("t", name, position, consumer)
        if position == self.model.next:
            with pytest.raises(UnknownPosition):
                self._by(consumer, command)
        elif consumer and sub.kind == "shared":
            with pytest.raises(NotCumulative):
                self._by(consumer, command)
        else:
            done = self.model.ack_to(name, position)
            acked = self._by(consumer, command)
            assert (acked.done, acked.mark) == (done, self.model.mark(sub))

    def seek(self) -> None:
        name = self._sub()
        if name is not None:
            position = self.random.randint(0, self.model.next - 1)
            self.model.seek(name, position)
            sought = self.log.seek(position, "t", name)
            assert sought.epoch == self.model.subs[name].epoch

    def merge(self) -> None:
        name, origins = self.random.choice(NAMES), ("a", "b", "c", "d")
        ranges = []
        for origin in sorted(self.random.sample(origins, self.random.randint(0, 3))):
            at = 0
            for _ in range(self.random.randint(1, 3)):
                first = at + self.random.randint(1, max(2, self.model.known(origin)))
                at = first + self.random.randint(0, 6) + 1
                ranges.append((origin, first, at - 1))
        base = tuple((o, self.random.randint(1, 9)) for o in "abc" if self.random.random() < 0.3)
        if self.random.random() < 0.9:
            # Of own messages only those that there are.
            known = self.model.known("a")
            base = tuple((o, seq) for o, seq in base if o != "a" or seq <= known)
            ranges = [each for each in ranges if each[0] != "a" or each[2] <= known]
        kind = self.random.choice(("exclusive", "shared"))
        # Adjacent ranges, in any order: a link may bring them so.
        told = self.random.sample(ranges, len(ranges))
        if self._of_another_life(name, base, ranges):
            with pytest.raises(OriginBehind):
                self.log.merge(*told, topic="t", sub=name, kind=kind, base=base)
            return
        merged = self.log.merge(*told, topic="t", sub=name, kind=kind, base=base)
        self._merged(name, kind, dict(base), ranges, merged)

    def _of_another_life(self, name: str, base: Any, ranges: Any) -> bool:
        """Whether it tells of own messages that there are not, and is not passed over."""
        old = self.model.subs.get(name)
        if old is not None and not old.replicate:
            return False
        told = max((last for origin, _, last in ranges if origin == "a"), default=0)
        if old is None:
            told = max(told, dict(base).get("a", 0))
        return told > self.model.known("a")

    def _merged(
        self, name: str, kind: str, base: dict[str, int], ranges: list[Any], merged: Merged
    ) -> None:
        old = self.model.subs.get(name)
        if old is not None and not old.replicate:
            assert merged.ignored == "not replicated"
            return
        united: list[tuple[str, int, int]] = []
        for origin, first, last in sorted(ranges):
            if united and united[-1][0] == origin and united[-1][2] >= first - 1:
                united[-1] = (origin, united[-1][1], max(last, united[-1][2]))
            else:
                united.append((origin, first, last))
        done, left_out = self.model.merge(name, kind, base, united)
        ignored = "too many ranges" if left_out else ""
        mark = self.model.mark(self.model.subs[name])
        assert merged == Merged(old is None, done, mark, ignored)

    def update(self) -> None:
        name, position = self.random.choice(NAMES), self.random.randint(0, self.model.next + 2)
        without = ()
        if self.random.random() < 0.5:
            first = self.random.randint(1, 9)
            without = (("b", first, first + 3),)
        kind = "failover"
        command = Update("t", "b", name, kind, self.log.machine.index, position, (), without)
        merged = self.log.anywhere(command)
        ids = set()
        if self.model.first - 1 <= position < self.model.next:
            for origin, last in self.model.vector(position).items():
                ids |= {(origin, seq) for seq in range(1, last + 1)}
        ids -= {(o, s) for o, f, e in without for s in range(f, e + 1)}
        ranges = [(origin, seq, seq) for origin, seq in sorted(ids)]
        self._merged(name, kind, {}, ranges, merged)

    # --- consumers ---

    def attach(self) -> None:
        name = self._sub()
        nodes = [node for node in NODES if self.up[node]]
        if name is None:
            return
        node, priority = self.random.choice(nodes), self.random.randint(0, 2)
        sub = self.model.subs[name]
        command = Attach("t", name, node, priority)
        live = [i for i, row in self.model.consumers.items() if row.sub == name and row.live]
        if sub.kind == "exclusive" and live:
            with pytest.raises(SubscriptionBusy):
                self.log.send(node, command)
            return
        attached = self.log.send(node, command)
        row = NaiveConsumer(node, name, priority, epoch=sub.epoch)
        self.model.consumers[attached.consumer] = row
        first = min(
            (row.priority, id)
            for id, row in self.model.consumers.items()
            if row.sub == name and row.live
        )
        assert attached.active == (sub.kind == "shared" or first[1] == attached.consumer)

    def detach(self) -> None:
        live = [id for id, row in self.model.consumers.items() if row.live]
        if live:
            id = self.random.choice(live)
            self._by(id, None)
            self.model.end(id)

    def take(self) -> None:
        id = self._any_shared()
        if id:
            count = self.random.randint(1, 6)
            expected = self.model.take(id, count)
            taken = self.log.take(id, count)
            assert (taken.positions, taken.deliveries) == expected

    def release(self) -> None:
        id = self._any_shared()
        if id:
            held = sorted(self.model.consumers[id].held)
            positions = (*self.random.sample(held, min(len(held), 2)), self.model.next)
            row = self.model.consumers[id]
            if self.random.random() < 0.5:
                epoch = max(0, row.epoch - self.random.choice((0, 0, 1)))
                released = self.log.release(id, *positions, epoch=epoch)
                stale = epoch != self.model.subs[row.sub].epoch
            else:
                released, stale = self.log.release(id, *positions), False
            assert released.done == (0 if stale else self.model.release(id, positions))
            assert released.missing == len(positions) - released.done

    def node(self) -> None:
        node = self.random.choice(NODES[1:])
        if not self.up[node]:
            self.log.node_up(node)
            self.up[node] = True
            return
        self.log.node_down(node)
        self.up[node] = False
        for id, row in self.model.consumers.items():
            if row.node == node and row.live:
                row.live = False
                with pytest.raises(ConsumerGone):
                    self.log.send("n1", Ack("t", row.sub, (), id))

    def sweep(self) -> None:
        limit = self.random.choice((0, 0, 500, 3_000))
        if limit:
            self.log.declare("t", retention_bytes=limit)
        lowest = min((self.model.mark(sub) for sub in self.model.subs.values()), default=None)
        self.log.sweep_all("t", rows_max=self.random.choice((1, 3, 1_000)))
        for id in [id for id, row in self.model.consumers.items() if not row.live]:
            self.model.end(id)
        first = self.log.topic().first
        assert lowest is None or self.model.first <= first <= max(self.model.first, lowest + 1)
        self.model.first = first
        for sub in self.model.subs.values():
            sub.returned = {p: n for p, n in sub.returned.items() if p >= first}

    # --- what is chosen ---

    def _sub(self) -> str | None:
        return self.random.choice(list(self.model.subs)) if self.model.subs else None

    def _consumer(self, name: str) -> int:
        """One of the subscription's, or 0."""
        live = [i for i, row in self.model.consumers.items() if row.sub == name and row.live]
        return self.random.choice([0, *live])

    def _any_shared(self) -> int:
        shared = [
            id
            for id, row in self.model.consumers.items()
            if row.live and self.model.subs[row.sub].kind == "shared"
        ]
        return self.random.choice(shared) if shared else 0

    def _by(self, consumer: int, command: Any) -> Any:
        """By the consumer's node; None: its Detach."""
        node = self.model.consumers[consumer].node if consumer else "n1"
        if command is None:
            command = Detach(consumer)
        return self.log.send(node, command)

    # --- the comparison ---

    def compare(self) -> None:
        view, model = self.log.view(), self.model
        subs = dict(views.subs_of(view, "t"))
        assert set(subs) == set(model.subs)
        topic = self.log.topic()
        assert (topic.first, topic.next) == (model.first, model.next)
        for name, sub in subs.items():
            naive = model.subs[name]
            state = views.state_of(view, "t", name)
            acked = {(o, s) for o, first, last in state.ranges for s in range(first, last + 1)}
            assert acked == naive.acked, name
            assert dict(state.base) == {o: s for o, s in naive.base.items() if s}, name
            row = (sub.kind, sub.replicate, sub.mark, sub.epoch)
            assert row == (naive.kind, naive.replicate, model.mark(naive), naive.epoch), name
            assert views.backlog_of(view, "t", name) == len(model.wanted(naive)), name
            if naive.kind == "shared":
                self._compare_hands(name, sub, naive)

    def _compare_hands(self, name: str, sub: Any, naive: Any) -> None:
        model, topic, consumers = self.model, self.log.topic(), self.log.table("consumers")
        assert sub.cursor == naive.cursor, name
        held = model.held(name)
        locks = {
            position: id
            for id, position in self.log.table("locks")
            if consumers[id].sub == sub.id and consumers[id].epoch == sub.epoch
        }
        assert (sub.locked, locks) == (len(held), held), name
        rows = {
            p: n
            for (id, p), n in self.log.table("returned").items()
            if id == sub.id and p < sub.cursor and wants(self.log.view(), topic, sub, p)
        }
        wanted = {p: n for p, n in naive.returned.items() if naive.wants(model.at(p))}
        assert rows == wanted, name


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_commands(seed: int) -> None:
    run = Run(seed)
    try:
        run.run(COMMANDS)
    except BaseException:
        print(f"seed {seed}, after {len(run.done)} commands: {run.done[-12:]}")
        raise
    assert run.log.replay().digest() == run.log.digest()
