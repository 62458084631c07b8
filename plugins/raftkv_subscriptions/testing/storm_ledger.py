"""What is known of a storm of regions: all messages, all acknowledgements, and what each log did.

The ledger is written by the checks alone (`storm_check.py`), from what the logs apply first, and by
the programs (`asked`), before they call. Nothing in it comes from the plugin's own derived rows: of
each topic it keeps every position that was ever given, also of what was trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Ledger", "Number", "Step", "SubBook", "TopicBook"]

#: (origin, seq): a message, wherever it is.
Number = tuple[str, int]


@dataclass(frozen=True)
class Step:
    """One command when it is applied first. `tables`: the context, as it is afterwards."""

    region: str
    index: int
    now: int
    command: Any
    origin: tuple[str, int] | None
    members: Mapping[str, Any]
    settings: Mapping[str, Any]
    tables: Any
    result: Any = None
    refusal: Exception | None = None

    def __str__(self) -> str:
        return f"{self.region} index {self.index}, {type(self.command).__name__}"


@dataclass
class TopicBook:
    """One life of a topic in one region."""

    region: str
    id: int
    name: str
    #: The first position that was ever given, the first that is kept, the next one.
    begin: int
    first: int
    next: int
    at: dict[int, Number] = field(default_factory=dict)
    positions: dict[Number, int] = field(default_factory=dict)
    #: Of each origin the last seq, holes included.
    last: dict[str, int] = field(default_factory=dict)
    holes: set[Number] = field(default_factory=set)
    #: What is declared of it; empty: not seen yet.
    limits: dict[str, object] = field(default_factory=dict)

    def vector(self, position: int) -> dict[str, int]:
        """The highest seq of each origin at positions up to this one."""
        found: dict[str, int] = {}
        for at in range(self.begin, min(position, self.next - 1) + 1):
            origin, seq = self.at[at]
            found[origin] = seq
        return found

    def has(self, number: Number) -> bool:
        """Whether it came here, or never will."""
        return number in self.positions or number in self.holes


@dataclass
class SubBook:
    """One life of a subscription in one region. `acked`: its set now; `base`: as it should be."""

    region: str
    id: int
    topic: str
    name: str
    row: Any
    base: dict[str, int] = field(default_factory=dict)
    mask: dict[str, int] = field(default_factory=dict)
    acked: set[Number] = field(default_factory=set)
    #: The index of the entry by which each message of the set came into it.
    since: dict[Number, int] = field(default_factory=dict)
    mark: int = 0
    #: Shared: position -> who has it; position -> how often it was handed out in this epoch.
    hands: dict[int, int] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)

    def wants(self, number: Number) -> bool:
        origin, seq = number
        return seq > self.base.get(origin, 0) and number not in self.acked

    def had(self, number: Number, index: int) -> bool:
        """Whether a node that has applied the entries up to `index` has it as acknowledged."""
        return number in self.acked and self.since[number] <= index

    def apart(self, numbers: Iterable[Number]) -> set[Number]:
        """Those in runs that touch nothing of the set: each run takes a range of its own."""
        runs: list[list[Number]] = []
        for origin, seq in sorted(numbers):
            if not runs or runs[-1][-1] != (origin, seq - 1):
                runs.append([])
            runs[-1].append((origin, seq))
        found: set[Number] = set()
        for run in runs:
            (origin, first), last = run[0], run[-1][1]
            if all(self.wants((origin, seq)) for seq in range(first - 1, last + 2)):
                found.update(run)
        return found


class Ledger:
    """Of one run."""

    def __init__(self) -> None:
        #: (topic, origin, seq) -> what was published, by whatever region.
        self.originals: dict[tuple[str, str, int], Any] = {}
        self.topics: dict[tuple[str, int], TopicBook] = {}
        #: (region, name) -> the life that it has now, or had last.
        self.named: dict[tuple[str, str], TopicBook] = {}
        self.subs: dict[tuple[str, int], SubBook] = {}
        #: (region, topic, sub) -> the life that it has now.
        self.living: dict[tuple[str, str, str], SubBook] = {}
        #: (topic, sub) -> what anybody acknowledged, anywhere.
        self.acked: dict[tuple[str, str], set[Number]] = {}
        #: (region, topic, sub) -> what was ever in the set there; bases that it ever had.
        self.known: dict[tuple[str, str, str], set[Number]] = {}
        self.bases: dict[tuple[str, str, str], list[dict[str, int]]] = {}
        #: (region, topic, sub) -> positions that programs asked to be acknowledged, and up to.
        self.asked: dict[tuple[str, str, str], set[int]] = {}
        self.asked_to: dict[tuple[str, str, str], set[int]] = {}
        #: (region, consumer) -> its subscription, node and incarnation; those that were detached.
        self.consumers: dict[tuple[str, int], tuple[int, str, int]] = {}
        self.detached: set[tuple[str, int]] = set()
        #: (region, topic, id) -> position here, positions there.
        self.snapshots: dict[tuple[str, str, int], tuple[int, dict[str, int]]] = {}
        #: (region, source, topic, id, round) -> what it answered to that request of the source: the
        #: end of the topic, by the topic's id and the number of the marker.
        self.answers: dict[tuple[str, str, str, int, int], dict[tuple[int, int], int]] = {}
        #: (region, topic, id, round) -> what other regions answered, as counted by the region.
        self.counted: dict[tuple[str, str, int, int], dict[str, int]] = {}
        #: (topic, sub) that were sought, deleted, or switched off somewhere: no full convergence.
        self.sought: set[tuple[str, str]] = set()
        #: (source, target, topic) -> the last own message of the source that a link has sent.
        self.sent: dict[tuple[str, str, str], int] = {}
        self.published = 0

    def ask(self, region: str, topic: str, sub: str, *positions: int) -> None:
        """A program is about to acknowledge these."""
        self.asked.setdefault((region, topic, sub), set()).update(positions)

    def ask_to(self, region: str, topic: str, sub: str, position: int) -> None:
        """A program is about to acknowledge all up to this one."""
        self.asked_to.setdefault((region, topic, sub), set()).add(position)

    def book(self, region: str, topic: str) -> TopicBook | None:
        return self.named.get((region, topic))
