"""What the tables of cluster calls mean, without tables: for tests that compare the two.

Plain lists, read from the beginning each time. No stretches of aborted ids, no table of what is
due, and no bound on the work of one command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raftkv_cluster_call.commands import (
    Aborted,
    Advanced,
    Behind,
    Committed,
    Expired,
    Forced,
    Granted,
    Joined,
    LeaveDone,
    Queued,
    ResetDone,
    StaleView,
    Trimmed,
    Withdrawn,
)

__all__ = ["HARD", "HISTORY", "QUEUE", "Answer", "Model", "Place", "Waiting"]

# In place of the defaults of history_max, history_hard_max and queue_max.
HISTORY, HARD, QUEUE = 2, 6, 4

Answer = Any


@dataclass
class Waiting:
    ticket: int
    node: str
    life: int
    deadline: int


@dataclass
class Place:
    id: int
    state: str = "following"
    as_of: int = 0
    attempts: int = 0


@dataclass
class Model:
    """What the tables mean. Refusals are the last word of their codes."""

    now: int = 0
    #: All ids ever: state and cause. The first one is id 1.
    ids: list[tuple[str, str]] = field(default_factory=list)
    kept: int = 1
    forget: int = 0
    running: Waiting | None = None
    queue: list[Waiting] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    left: dict[str, bool] = field(default_factory=dict)
    former: dict[str, int] = field(default_factory=dict)
    lost: set[tuple[str, int]] = field(default_factory=set)
    lives: dict[str, int] = field(default_factory=dict)
    up: set[str] = field(default_factory=set)

    @property
    def last(self) -> int:
        return len(self.ids)

    @property
    def decided(self) -> int:
        return self.last - (self.running is not None)

    def following(self) -> list[str]:
        return sorted(n for n, place in self.places.items() if place.state == "following")

    def next_of(self, node: str) -> int:
        """The next committed id for the node; 0: none."""
        id = self.places[node].id + 1
        while id <= self.last and self.ids[id - 1][0] == "aborted":
            id += 1
        return id if id <= self.decided else 0

    def settle(self) -> None:
        """After any change: cursors pass what is aborted, and the next one in line is granted."""
        while self.running is None and self.queue:
            head = self.queue.pop(0)
            reason = self.cannot_run(head)
            if reason:
                self.answers[head.ticket] = reason
            else:
                self.running = head
                self.ids.append(("reserved", ""))
        for place in self.places.values():
            while place.state == "following" and self.is_aborted(place.id + 1):
                place.id += 1

    def is_aborted(self, id: int) -> bool:
        return id <= self.last and self.ids[id - 1][0] == "aborted"

    def cannot_run(self, waiting: Waiting) -> str:
        if waiting.node not in self.up or self.lives[waiting.node] != waiting.life:
            return "initiator_ended"
        if waiting.deadline <= self.now:
            return "expired"
        place = self.places.get(waiting.node)
        if place is None:
            return "withdrawn"
        return "stale_view" if place.state != "following" or place.attempts >= 10 else ""

    def end_running(self, cause: str, may_have_run: bool) -> None:
        running = self.running
        assert running is not None
        place = self.places.get(running.node)
        if may_have_run and place and (place.state, place.id) == ("following", self.last - 1):
            self.lost.add((running.node, self.last))
        self.ids[-1] = ("aborted", cause)
        self.running = None
        for other in self.places.values():
            if other.state == "following" and other.id == self.last - 1:
                other.id = self.last

    def move(self, node: str, id: int) -> int:
        place = self.places[node]
        place.id, place.attempts = id, 0
        self.settle()
        return place.id

    def to_gap(self, node: str, as_of: int) -> None:
        if self.running is not None and self.running.node == node:
            self.end_running("stale_view", False)
        place = self.places[node]
        place.state, place.as_of, place.attempts = "gap", as_of, 0

    def part(self, node: str) -> int:
        if self.running is not None and self.running.node == node:
            self.end_running("withdrawn", True)
        place = self.places.pop(node, None)
        if place is not None:
            self.former[node] = max(self.former.get(node, 0), self.needed(place))
        mine = [waiting for waiting in self.queue if waiting.node == node]
        for waiting in mine:
            self.queue.remove(waiting)
            self.answers[waiting.ticket] = "withdrawn"
        return len(mine)

    def needed(self, place: Place) -> int:
        return place.id if place.state == "following" else place.as_of

    # --- what is answered ---

    def reserve(self, node: str, expected: int, ticket: int, ttl: int) -> Answer:
        place = self.places.get(node)
        if place is None or place.state != "following":
            return "not_taking_part"
        if place.attempts >= 10:
            return StaleView(self.last, place.id, place.attempts)
        idle = self.running is None and not self.queue
        if idle and not place.id == self.last == expected:
            return Behind(self.last, place.id)
        if len(self.queue) >= QUEUE:
            return "queue_full"
        self.queue.append(Waiting(ticket, node, self.lives[node], self.now + ttl))
        self.settle()
        if self.running is not None and self.running.ticket == ticket:
            return Granted(ticket, self.last)
        return Queued(ticket, len(self.queue))

    def finish(self, node: str, id: int, ticket: int, ok: bool, index: int) -> Answer:
        running = self.running
        if running is None or (self.last, running.ticket, running.node) != (id, ticket, node):
            return "not_reserved"
        if not ok:
            self.end_running("failed: x", False)
            self.settle()
            return Aborted(id, index)
        if self.places[node].id != id - 1:
            return "not_caught_up"
        self.ids[-1] = ("committed", "")
        self.running = None
        self.places[node].id = id
        nodes = tuple(self.following())
        self.settle()
        return Committed(id, nodes, index)

    def step(self, node: str, id: int) -> Answer:
        place = self.places.get(node)
        if place is None or place.state != "following":
            return "not_taking_part"
        return Advanced(self.move(node, id)) if id and id == self.next_of(node) else "bad_cursor"

    def failing(self, node: str, id: int, attempts: int) -> Answer:
        place = self.places.get(node)
        if place is None or place.state != "following":
            return "not_taking_part"
        if not id or id != self.next_of(node):
            return "bad_cursor"
        place.attempts = max(place.attempts, attempts)
        if place.attempts >= 10 and self.running is not None and self.running.node == node:
            self.end_running("stale_view", False)
        self.settle()
        return None

    def withdraw(self, node: str, ticket: int, index: int) -> Answer:
        for waiting in self.queue:
            if (waiting.ticket, waiting.node) == (ticket, node):
                self.queue.remove(waiting)
                self.answers[ticket] = "withdrawn"
                return Withdrawn("queued", index)
        running = self.running
        if running is not None and (running.ticket, running.node) == (ticket, node):
            self.end_running("withdrawn", False)
            self.settle()
            return Withdrawn("granted", index)
        return Withdrawn("gone", index)

    def expire(self, most: int) -> Answer:
        waiting = [*self.queue, *([] if self.running is None else [self.running])]
        due = sorted((w.deadline, w.ticket) for w in waiting if w.deadline <= self.now)[:most]
        for _, ticket in due:
            if self.running is not None and self.running.ticket == ticket:
                self.end_running("expired", True)
            else:
                self.queue = [w for w in self.queue if w.ticket != ticket]
                self.answers[ticket] = "expired"
        self.settle()
        waiting = [*self.queue, *([] if self.running is None else [self.running])]
        return Expired(len(due), any(w.deadline <= self.now for w in waiting))

    def join(self, node: str, wiped: bool) -> Answer:
        if self.left.get(node) is False:
            return "has_left"
        self.left.pop(node, None)
        place = self.places.get(node)
        if place is None or place.state == "joining":
            others = [p for n, p in self.places.items() if n != node and p.state != "joining"]
            if not self.last or not others:
                place = Place(self.decided)
            else:
                lowest = min(self.needed(other) for other in others)
                lowest = max(lowest, self.former.get(node, 0))
                place = Place(0, "joining", max(lowest, place.as_of if place else 0))
            self.places[node] = place
        elif place.state == "following" and wiped and place.id:
            self.to_gap(node, place.id)
        self.settle()
        return Joined(place.state, place.id, place.as_of)  # type: ignore[arg-type]

    def sync(self, node: str, as_of: int) -> Answer:
        place = self.places.get(node)
        if place is None:
            return "not_taking_part"
        if as_of > self.decided or (place.state == "following" and as_of > place.id):
            return "bad_cursor"
        if place.state != "following":
            reached = as_of
            while self.is_aborted(reached + 1):
                reached += 1
            if as_of < self.kept - 1 or reached < max(place.as_of, place.id):
                return "too_old"
            place.state, place.as_of, place.id = "following", 0, reached
        return Joined("following", place.id, 0)

    def leave(self, by: str, node: str, forced: bool) -> Answer:
        if not forced and by != node:
            return "not_your_node"
        if forced and node in self.up:
            return "node_is_up"
        found = node in self.places
        dropped = self.part(node)
        if not forced or self.left.get(node) is not False:
            self.left[node] = forced
        self.settle()
        return LeaveDone(found, dropped)

    def force(self, forward: dict[str, int], sync: dict[str, int], index: int) -> Answer:
        if self.running is not None or self.queue:
            return "moved"
        seen = {**forward, **sync}
        if any(n not in self.places or self.places[n].id != id for n, id in seen.items()):
            return "moved"
        if any(self.places[node].state != "following" for node in forward):
            return "moved"
        ahead = [n for n in self.following() if self.places[n].id == self.last]
        nodes = sorted({*ahead, *forward} - set(sync))
        if not nodes:
            return "not_taking_part"
        self.ids.append(("committed", ""))
        for node in nodes:
            self.move(node, self.last)
        for node in sync:
            self.to_gap(node, self.last)
        return Forced(self.last, tuple(nodes), index)

    def reset(self, expected: int) -> Answer:
        if expected != self.last or self.running is not None or self.queue:
            return "moved"
        self.places = {node: Place(self.last) for node in self.places}
        self.forget = self.last
        rows = self.last + 1 - self.kept if self.places else 0
        self.kept += rows
        return ResetDone(self.last, rows, False)

    def bound(self) -> int:
        floor = min((self.needed(place) for place in self.places.values()), default=0)
        surplus = floor - HISTORY
        completed = [id for id in range(self.kept, floor + 1) if self.ids[id - 1][0] == "committed"]
        if surplus >= self.kept:
            kept = completed[-HISTORY] if len(completed) >= HISTORY else self.kept
            # In front of an aborted one there is no reason to keep the record.
            surplus = max(min(surplus, self.decided - HARD), kept - 1)
        return max(min(floor, self.forget), surplus)

    def hard_bound(self) -> int:
        top = max((self.places[node].id for node in self.following()), default=0)
        return min(top, self.decided - HARD)

    def trim_due(self) -> bool:
        late = any(self.needed(place) < self.hard_bound() for place in self.places.values())
        return late or self.bound() >= self.kept

    def trim(self, most: int) -> Answer:
        bound = self.hard_bound()
        gaps = []
        for node in sorted(self.places):
            place = self.places[node]
            if self.needed(place) < bound and place.state == "following":
                self.to_gap(node, bound)
                gaps.append(node)
            elif self.needed(place) < bound:
                place.as_of = bound
        rows = max(0, min(most, self.bound() + 1 - self.kept))
        self.kept += rows
        self.settle()
        return Trimmed(rows, tuple(gaps), self.bound() >= self.kept)

    def node_down(self, node: str) -> None:
        running = self.running
        self.up.discard(node)
        if running is not None and (running.node, running.life) == (node, self.lives[node]):
            self.end_running("initiator_ended", True)
        self.lives[node] += 1

    def node_up(self, node: str) -> None:
        if node in self.up:
            self.node_down(node)
            self.lives[node] -= 1
        self.up.add(node)
        self.lives[node] = self.lives.get(node, 0) + 1
        self.settle()
