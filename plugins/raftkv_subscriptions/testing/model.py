"""The rules of replicated subscriptions, executable and small: no log, no tables, no time.

Regions have lines of messages, each named (origin, seq). Links carry them in the order of each
origin, and markers in the order of the line. What regions tell each other of a subscription may be
lost, late, repeated, partial. Both modes run at once: whatever either claims must be true.

Beside the rules the model keeps what no region can know: `World.consumed`, the messages that a
consumer acknowledged anywhere, and for each subscription its `intent`, the base that some user
decided. `World.check` demands of every state that
- what a region takes for acknowledged was acknowledged somewhere;
- no mark is behind a message that nobody acknowledged, unless a user wanted it skipped;
- what was acknowledged before a subscription was sought back is not, until it is again;
- a snapshot's positions are not beyond the exact ones.

Each rule can be broken (`Rules`), to see that the check would notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

__all__ = ["OPERATIONS", "Broken", "Region", "Rules", "Sub", "World", "broken_rules"]

Id = tuple[str, int]
Numbers = dict[str, int]

#: What is told and not yet heard, for each pair of regions: older ones are lost.
BAG_MAX = 6


class Broken(AssertionError):
    """A state that must not be."""


@dataclass(frozen=True)
class Rules:
    """True: as it is to be. Each may be broken."""

    links_keep_order: bool = True
    base_is_no_ack: bool = True
    base_as_told: bool = True
    holes_are_no_acks: bool = True
    trimmed_are_no_acks: bool = True
    sets_not_positions: bool = True
    seek_masks: bool = True
    update_excepts: bool = True
    update_excepts_holes: bool = True
    old_positions_say_nothing: bool = True
    all_answer: bool = True
    second_round: bool = True
    rounds_are_numbered: bool = True
    outsiders_checked: bool = True
    markers_in_order: bool = True


def broken_rules() -> list[tuple[str, Rules]]:
    """One for each rule."""
    return [(f.name, replace(Rules(), **{f.name: False})) for f in fields(Rules)]


@dataclass
class Sub:
    base: Numbers
    intent: Numbers
    acked: set[Id] = field(default_factory=set)
    mask: Numbers = field(default_factory=dict)
    #: Acknowledged before a seek, and not again since.
    again: set[Id] = field(default_factory=set)

    def wants(self, one: Id) -> bool:
        return one[1] > self.base.get(one[0], 0) and one not in self.acked

    def take(self, ids: set[Id]) -> None:
        """Unite with what another region said."""
        self.acked |= {one for one in ids if one[1] > self.mask.get(one[0], 0)}


@dataclass
class Pending:
    id: int
    round: int
    participants: tuple[str, ...]
    first: Numbers = field(default_factory=dict)
    second: Numbers = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    id: int
    round: int
    position: int
    vector: Numbers


@dataclass(frozen=True)
class Update:
    """`at`: the end of the line when it was written."""

    at: int
    positions: Numbers
    base: Numbers
    intent: Numbers
    without: frozenset[Id]


@dataclass
class Region:
    """`first`: how many of the line were trimmed. Positions are lengths of its beginnings."""

    name: str
    line: list[Id] = field(default_factory=list)
    first: int = 0
    have: Numbers = field(default_factory=dict)
    holes: set[Id] = field(default_factory=set)
    excluded: set[str] = field(default_factory=set)
    sub: Sub | None = None
    pending: Pending | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    snapshots: list[tuple[int, Numbers]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    def append(self, one: Id) -> None:
        self.line.append(one)
        self.have[one[0]] = one[1]

    def vector_at(self, position: int) -> Numbers:
        numbers: Numbers = {}
        for origin, seq in self.line[:position]:
            numbers[origin] = max(seq, numbers.get(origin, 0))
        return numbers

    def mark(self) -> int:
        position = self.first
        while position < len(self.line) and not (self.sub and self.sub.wants(self.line[position])):
            position += 1
        return position


def ids_of(numbers: Numbers) -> set[Id]:
    return {(origin, seq) for origin, last in numbers.items() for seq in range(1, last + 1)}


class World:
    """`ring`: each region fetches everything from the one before it, and there are no snapshots."""

    def __init__(
        self, names: Sequence[str] = "abc", rules: Rules | None = None, *, ring: bool = False
    ) -> None:
        self.rules = Rules() if rules is None else rules
        self.ring = ring
        self.names = tuple(names)
        self.regions = {name: Region(name) for name in names}
        self.consumed: set[Id] = set()
        self.told: dict[tuple[str, str], list[tuple[Numbers, Numbers, set[Id], int]]] = {}
        self.ids = 0

    def run(self, steps: Sequence[tuple[int, int]]) -> None:
        """Each step: an operation and a number that chooses where. Checks after each."""
        for operation, number in steps:
            index, number = number % len(self.names), number // len(self.names)
            here = self.regions[self.names[index]]
            shift = 1 if self.ring else 1 + number % (len(self.names) - 1)
            other = self.regions[self.names[(index - shift) % len(self.names)]]
            OPERATIONS[operation % len(OPERATIONS)](self, here, other, number // 4)
            self.check()

    # --- messages ---

    def publish(self, here: Region, other: Region, number: int) -> None:
        for _ in range(1 + number % 2):
            here.append((here.name, here.have.get(here.name, 0) + 1))

    def carries(self, here: Region, other: Region, origin: str) -> bool:
        if self.ring:
            return origin != here.name
        return origin == other.name or (origin != here.name and origin in here.excluded)

    def pull(self, here: Region, other: Region, number: int) -> None:
        """Up to some messages of `other`; what it has no more is a hole here."""
        if other.name in here.excluded or here.name in other.excluded:
            return
        left = 1 + number % 5
        for one in other.line[other.first :]:
            origin, seq = one
            known = here.have.get(origin, 0)
            if seq <= known or not self.carries(here, other, origin):
                continue
            if not left:
                return
            left -= 1
            if not self.rules.links_keep_order and number % 7 == 0:
                number += 1
                continue
            self._hole(here, origin, known + 1, seq - 1)
            here.append(one)
        for origin, last in other.have.items():
            if self.carries(here, other, origin):
                self._hole(here, origin, here.have.get(origin, 0) + 1, last)

    def _hole(self, here: Region, origin: str, first: int, last: int) -> None:
        for seq in range(first, last + 1):
            if self.rules.links_keep_order:
                here.holes.add((origin, seq))
            here.have[origin] = seq

    def trim(self, here: Region, other: Region, number: int) -> None:
        active = [self.regions[name] for name in self.names if name not in here.excluded]
        stop = min(here.mark(), here.first + 1 + number % 4)
        while here.first < stop:
            origin, seq = here.line[here.first]
            if any(seq > region.have.get(origin, 0) for region in active if region.name != origin):
                return
            here.first += 1

    def toggle_excluded(self, here: Region, other: Region, number: int) -> None:
        here.excluded ^= {other.name}
        if here.pending and self.rules.outsiders_checked:
            here.pending = None

    # --- the subscription ---

    def subscribe(self, here: Region, other: Region, number: int) -> None:
        if here.sub is None:
            base = here.vector_at(len(here.line) if number % 3 == 0 else here.first)
            here.sub = Sub(dict(base), dict(base))

    def acknowledge(self, here: Region, other: Region, number: int) -> None:
        """One of those that are wanted, or the first."""
        if here.sub is None:
            return
        wanted = [one for one in here.line[here.first :] if here.sub.wants(one)]
        if wanted:
            one = wanted[number // 2 % len(wanted) if number % 2 else 0]
            here.sub.acked.add(one)
            self._consumed({one})

    def acknowledge_to(self, here: Region, other: Region, number: int) -> None:
        if here.sub is None or here.first == len(here.line):
            return
        position = here.first + 1 + number % (len(here.line) - here.first)
        claimed = ids_of(here.vector_at(position)) - ids_of(here.sub.base)
        if self.rules.trimmed_are_no_acks:
            claimed -= ids_of(here.vector_at(here.first))
        if self.rules.holes_are_no_acks:
            claimed -= here.holes
        self._consumed(set(here.line[here.first : position]) - ids_of(here.sub.base))
        here.sub.acked |= claimed

    def _consumed(self, ids: set[Id]) -> None:
        self.consumed |= ids
        for region in self.regions.values():
            if region.sub is not None:
                region.sub.again -= ids

    def seek(self, here: Region, other: Region, number: int) -> None:
        sub = here.sub
        if sub is None:
            return
        position = here.first + number % (len(here.line) - here.first + 1)
        base = here.vector_at(position)
        sub.again |= sub.acked - ids_of(base)
        if self.rules.seek_masks:
            for origin, seq in sub.acked:
                sub.mask[origin] = max(seq, sub.mask.get(origin, 0))
        sub.acked, sub.base, sub.intent = set(), dict(base), dict(base)

    # --- vector mode ---

    def tell(self, here: Region, other: Region, number: int) -> None:
        """`here` hears of it some time, or never."""
        if other.sub is None:
            return
        acked = {one for one in other.sub.acked if number % 3 or hash(one[1] + number) % 2}
        if not self.rules.base_is_no_ack:
            acked |= ids_of(other.sub.base)
        bag = self.told.setdefault((other.name, here.name), [])
        bag.append((dict(other.sub.base), dict(other.sub.intent), acked, other.mark()))
        del bag[:-BAG_MAX]

    def hear(self, here: Region, other: Region, number: int) -> None:
        """Any of those, once more or for the first time."""
        bag = self.told.get((other.name, here.name))
        if not bag or other.name in here.excluded:
            return
        base, intent, acked, mark = bag[number % len(bag)]
        sub = self._made(here, base, intent)
        if self.rules.sets_not_positions:
            sub.take(acked)
        else:
            sub.take(set(here.line[:mark]))

    def _made(self, here: Region, base: Numbers, intent: Numbers) -> Sub:
        if here.sub is None:
            base = dict(base)
            if not self.rules.base_as_told:
                for origin, seq in here.vector_at(here.first).items():
                    base[origin] = max(seq, base.get(origin, 0))
            here.sub = Sub(base, dict(intent))
        return here.sub

    # --- snapshots ---

    def start(self, here: Region, other: Region, number: int) -> None:
        active = tuple(n for n in self.names if n != here.name and n not in here.excluded)
        if here.pending is None and active and not self.ring:
            self.ids += 1
            here.pending = Pending(self.ids, 1, active)
        elif here.pending is not None and number % 8 == 0:
            here.pending = None

    def answer(self, here: Region, other: Region, number: int) -> None:
        """`here` has got the request of `other`. (Where a request stands says nothing.)"""
        pending = other.pending
        if pending is None or other.name in here.excluded:
            return
        old = here.answers.get(other.name)
        if old is None or (old.id, old.round) != (pending.id, pending.round):
            at = len(here.line)
            here.answers[other.name] = Answer(pending.id, pending.round, at, here.vector_at(at))

    def answered(self, here: Region, other: Region, number: int) -> None:
        """The answer of `other` came over the link, perhaps again."""
        pending, answer = here.pending, other.answers.get(here.name)
        if pending is None or answer is None or other.name in here.excluded:
            return
        if other.name not in pending.participants or answer.id != pending.id:
            return
        if self.rules.rounds_are_numbered and answer.round != pending.round:
            return
        if not self._arrived(here, other, answer.position):
            return
        if self.rules.outsiders_checked and any(
            seq > here.have.get(origin, 0)
            for origin, seq in answer.vector.items()
            if origin != here.name and origin not in pending.participants
        ):
            return
        so_far = pending.first if pending.round == 1 else pending.second
        so_far.setdefault(other.name, answer.position)
        if len(so_far) < (len(pending.participants) if self.rules.all_answer else 1):
            return
        if pending.round == 1 and len(pending.participants) > 1 and self.rules.second_round:
            pending.round = 2
            return
        here.pending = None
        here.snapshots.append((len(here.line), pending.first))
        self._exact(here, pending.first)

    def _arrived(self, here: Region, other: Region, position: int) -> bool:
        """Whether the link has brought what stands before this position."""
        return not self.rules.markers_in_order or all(
            seq <= here.have.get(origin, 0)
            for origin, seq in other.line[:position]
            if self.carries(here, other, origin)
        )

    def _exact(self, here: Region, positions: Numbers) -> None:
        known = set(here.line) | here.holes
        for name, position in positions.items():
            beyond = set(self.regions[name].line[:position]) - known
            if beyond:
                raise Broken(f"a snapshot of {here.name} is beyond {beyond} in {name}")

    def update(self, here: Region, other: Region, number: int) -> None:
        """Use a snapshot that the mark has passed."""
        sub, mark = here.sub, here.mark()
        usable = [one for one in here.snapshots if one[0] <= mark]
        if sub is None or not usable:
            return
        position, positions = usable[number % len(usable)]
        without = ids_of(here.vector_at(position)) - sub.acked
        if self.rules.update_excepts_holes:
            # Also those at the end of what was here: no message stands behind them.
            without |= here.holes - sub.acked
        if not self.rules.update_excepts:
            without = set()
        here.updates.append(
            Update(len(here.line), positions, dict(sub.base), dict(sub.intent), frozenset(without))
        )
        del here.updates[:-BAG_MAX]

    def updated(self, here: Region, other: Region, number: int) -> None:
        if not other.updates or other.name in here.excluded:
            return
        update = other.updates[number % len(other.updates)]
        if not self._arrived(here, other, update.at) or here.name not in update.positions:
            return
        sub = self._made(here, update.base, update.intent)
        position = update.positions[here.name]
        if position < here.first and self.rules.old_positions_say_nothing:
            return
        vector = here.vector_at(max(position, here.first))
        sub.take(ids_of(vector) - update.without)

    # --- what must be ---

    def check(self) -> None:
        for region in self.regions.values():
            sub = region.sub
            if sub is None:
                continue
            untrue = sub.acked - self.consumed
            if untrue:
                raise Broken(f"{region.name} takes {untrue} for acknowledged")
            for one in region.line[region.first : region.mark()]:
                if one not in self.consumed and one[1] > sub.intent.get(one[0], 0):
                    raise Broken(f"{region.name} has passed {one}")
            if sub.acked & sub.again:
                raise Broken(f"{region.name} was moved on from where it was sought")
            lost = {
                one
                for one in ids_of(region.have)
                if one not in region.holes and one not in set(region.line)
            }
            if lost:
                raise Broken(f"{region.name} takes {lost} for being here")

    def settle(self) -> None:
        """All links are up, nobody does anything more: in the end all have the same."""
        regions = list(self.regions.values())
        for region in regions:
            region.excluded.clear()
        for _ in range(2 * len(regions)):
            for index, here in enumerate(regions):
                others = [regions[index - 1]] if self.ring else regions
                for other in (one for one in others if one is not here):
                    for _ in range(len(other.line) + 1):
                        self.pull(here, other, 4)
                    self.tell(here, other, 1)
                    self.hear(here, other, self._newest(here, other))
        self.check()
        self._converged(regions)

    def _newest(self, here: Region, other: Region) -> int:
        return len(self.told.get((other.name, here.name), ())) - 1

    def _converged(self, regions: list[Region]) -> None:
        subs = [(region, region.sub) for region in regions if region.sub is not None]
        acked: set[Id] = set()
        for _, sub in subs:
            acked |= sub.acked
        for region, sub in subs:
            if region.have != regions[0].have:
                raise Broken(f"{region.name} has {region.have}, not {regions[0].have}")
            # In a ring, what one masks does not get past it either.
            masks = [other.mask for _, other in subs] if self.ring else [sub.mask]
            missing = {
                (origin, seq)
                for origin, seq in acked - sub.acked
                if all(seq > mask.get(origin, 0) for mask in masks)
            }
            if missing:
                raise Broken(f"{region.name} was never told of {missing}")
        if subs and len(subs) < len(regions):
            raise Broken("the subscription is not everywhere")


OPERATIONS = (
    World.publish,
    World.publish,
    World.pull,
    World.pull,
    World.pull,
    World.trim,
    World.toggle_excluded,
    World.subscribe,
    World.acknowledge,
    World.acknowledge,
    World.acknowledge_to,
    World.seek,
    World.tell,
    World.tell,
    World.hear,
    World.hear,
    World.start,
    World.answer,
    World.answer,
    World.answered,
    World.answered,
    World.update,
    World.updated,
    World.updated,
)
