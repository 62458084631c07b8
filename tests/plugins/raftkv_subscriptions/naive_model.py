"""Topics and subscriptions of one region as plain sets: obviously right, and slow.

Nothing here is derived incrementally. A subscription is a set of acknowledged (origin, seq), and
one number per origin that it does not want up to; every question walks over all messages. What the
plugin keeps in floors, ranges, marks and cursors must come to the same after every command.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Id: TypeAlias = tuple[str, int]
Range: TypeAlias = tuple[str, int, int]


@dataclass
class NaiveConsumer:
    node: str
    sub: str
    priority: int
    live: bool = True
    epoch: int = 0
    held: dict[int, int] = field(default_factory=dict)


@dataclass
class NaiveSub:
    kind: str
    base: dict[str, int]
    replicate: bool = False
    acked: set[Id] = field(default_factory=set)
    mask: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    cursor: int = 1
    returned: dict[int, int] = field(default_factory=dict)

    def wants(self, id: Id) -> bool:
        return id[1] > self.base.get(id[0], 0) and id not in self.acked

    def runs(self) -> int:
        """Stretches of acknowledged numbers that do not follow the base."""
        return sum(
            (origin, seq - 1) not in self.acked and seq - 1 != self.base.get(origin, 0)
            for origin, seq in self.acked
        )

    def touches(self, origin: str, first: int, last: int) -> bool:
        """Whether something covered is in this range, or next to it."""
        if first <= self.base.get(origin, 0) + 1:
            return True
        return any((origin, seq) in self.acked for seq in range(first - 1, last + 2))

    def add(self, ids: Iterable[Id]) -> int:
        new = {id for id in ids if self.wants(id)}
        self.acked |= new
        return len(new)


class NaiveRegion:
    """One topic. `log[p - 1]` is the message at position p, also after it was trimmed."""

    def __init__(self, own: str, *, ranges_max: int, unacked_max: int) -> None:
        self.own = own
        self.ranges_max = ranges_max
        self.unacked_max = unacked_max
        self.log: list[Id] = []
        self.first = 1
        self.holes: set[Id] = set()
        self.subs: dict[str, NaiveSub] = {}
        self.consumers: dict[int, NaiveConsumer] = {}

    # --- messages ---

    @property
    def next(self) -> int:
        return len(self.log) + 1

    def vector(self, upto: int) -> dict[str, int]:
        """Of the messages at positions up to this one."""
        numbers: dict[str, int] = {}
        for origin, seq in self.log[: max(0, upto)]:
            numbers[origin] = max(seq, numbers.get(origin, 0))
        return numbers

    def known(self, origin: str) -> int:
        """The last number that is here, or will never be."""
        return max((seq for name, seq in (*self.log, *self.holes) if name == origin), default=0)

    def at(self, position: int) -> Id:
        return self.log[position - 1]

    def kept(self) -> range:
        return range(self.first, self.next)

    # --- subscriptions ---

    def mark(self, sub: NaiveSub) -> int:
        mark = self.first - 1
        while mark + 1 < self.next and not sub.wants(self.at(mark + 1)):
            mark += 1
        return mark

    def wanted(self, sub: NaiveSub) -> list[int]:
        return [position for position in self.kept() if sub.wants(self.at(position))]

    def subscribe(self, name: str, kind: str, initial: str, replicate: bool) -> None:
        if initial == "latest":
            origins = {origin for origin, _ in (*self.log, *self.holes)}
            base = {origin: self.known(origin) for origin in origins}
            self.subs[name] = NaiveSub(kind, base, replicate, cursor=self.next)
        else:
            base = self.vector(self.first - 1)
            self.subs[name] = NaiveSub(kind, base, replicate, cursor=self.first)

    def ack(self, name: str, positions: Iterable[int]) -> int | None:
        """How many were new; None: it would take too many ranges."""
        sub = self.subs[name]
        before, end = set(sub.acked), self.mark(sub)
        wanted = sorted({p for p in positions if p > end})
        done = 0
        while wanted and wanted[0] == end + 1:
            # The oldest ones are always taken.
            end = wanted.pop(0)
            done += sub.add([self.at(end)])
        ids = sorted(self.at(p) for p in wanted)
        runs: list[Range] = []
        for origin, seq in ids:
            if runs and runs[-1][0] == origin and runs[-1][2] == seq - 1:
                runs[-1] = (origin, runs[-1][1], seq)
            elif sub.wants((origin, seq)):
                runs.append((origin, seq, seq))
        for origin, first, last in runs:
            if sub.runs() >= self.ranges_max and not sub.touches(origin, first, last):
                sub.acked = before
                return None
            done += sub.add((origin, seq) for seq in range(first, last + 1))
        self._settle(sub)
        return done

    def let_go(self, name: str, positions: Iterable[int], consumer: int) -> None:
        """What is acknowledged is in the consumer's hands no more."""
        for position in positions:
            self.subs[name].returned.pop(position, None)
            if consumer:
                self.consumers[consumer].held.pop(position, None)

    def ack_to(self, name: str, position: int) -> int:
        sub = self.subs[name]
        done = sub.add(self.at(p) for p in self.kept() if p <= position)
        self._settle(sub)
        return done

    def seek(self, name: str, position: int) -> None:
        sub = self.subs[name]
        position = max(position, self.first - 1)
        for origin in {*sub.base, *(origin for origin, _ in sub.acked)}:
            reached = max((s for o, s in sub.acked if o == origin), default=0)
            mask = max(sub.mask.get(origin, 0), sub.base.get(origin, 0), reached)
            sub.mask[origin] = mask
        sub.base, sub.acked = self.vector(position), set()
        sub.epoch += 1
        sub.cursor = position + 1
        sub.returned = {}

    def merge(
        self, name: str, kind: str, base: dict[str, int], ranges: Iterable[Range]
    ) -> tuple[int, int]:
        """How many were new, and how many ranges were left out."""
        if name not in self.subs:
            self.subs[name] = NaiveSub(kind, base, True, cursor=self.first)
        sub = self.subs[name]
        done = left_out = 0
        for origin, first, last in ranges:
            first = max(first, sub.mask.get(origin, 0) + 1)
            if first > last:
                continue
            if sub.runs() >= self.ranges_max and not sub.touches(origin, first, last):
                left_out += 1
                continue
            done += sub.add((origin, seq) for seq in range(first, last + 1))
        self._settle(sub)
        return done, left_out

    def settle_all(self) -> None:
        for sub in self.subs.values():
            self._settle(sub)

    def _settle(self, sub: NaiveSub) -> None:
        sub.cursor = max(sub.cursor, self.mark(sub) + 1)

    # --- consumers ---

    def held(self, name: str) -> dict[int, int]:
        """position -> consumer, of what is in hands since the last seek."""
        epoch = self.subs[name].epoch
        return {
            position: id
            for id, row in self.consumers.items()
            if row.sub == name and row.epoch == epoch
            for position in row.held
        }

    def take(self, consumer: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        row = self.consumers[consumer]
        sub = self.subs[row.sub]
        room = self.unacked_max - len(self.held(row.sub))
        if room <= 0:
            if row.epoch != sub.epoch:
                row.held = {}
            return (), ()
        if row.epoch != sub.epoch:
            row.epoch, row.held = sub.epoch, {}
        count = min(count, room)
        taken: list[tuple[int, int]] = []
        for position in sorted(sub.returned):
            if sub.wants(self.at(position)) and position >= self.first and len(taken) < count:
                taken.append((position, sub.returned.pop(position) + 1))
        while len(taken) < count and sub.cursor < self.next:
            if sub.wants(self.at(sub.cursor)):
                taken.append((sub.cursor, 1))
            sub.cursor += 1
        row.held.update(taken)
        return tuple(p for p, _ in taken), tuple(n for _, n in taken)

    def release(self, consumer: int, positions: Iterable[int]) -> int:
        row = self.consumers[consumer]
        sub = self.subs[row.sub]
        done = 0
        for position in positions:
            if position in row.held:
                deliveries = row.held.pop(position)
                done += 1
                if row.epoch == sub.epoch and sub.wants(self.at(position)):
                    sub.returned[position] = deliveries
        return done

    def end(self, consumer: int) -> None:
        row = self.consumers[consumer]
        if row.sub in self.subs:
            self.release(consumer, list(row.held))
        del self.consumers[consumer]
