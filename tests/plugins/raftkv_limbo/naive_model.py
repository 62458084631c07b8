"""The limbo as simply as it can be said: lists and dicts, everything counted anew each time.

It was written from the rules, not from the code beside which it is tested, and shares nothing with
it but the commands. A quorum is a function of N here, and a refusal is its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from raftkv_limbo.commands import Condition, Transaction, Write

#: Expressions that the random histories use, and what they mean.
QUORUMS: dict[str, Callable[[int], int]] = {
    "N / 2 + 1": lambda n: n // 2 + 1,
    "N": lambda n: n,
    "2": lambda n: 2,
    "1": lambda n: 1,
    "ceil(2 * N / 3)": lambda n: -(-2 * n // 3),
}

Place = tuple[str, bytes]


class No(Exception):
    """Refused, with this code (without the plugin's name)."""


@dataclass
class Item:
    """A transaction. `fate`: "pending", "confirmed" or "rolled back"."""

    position: int
    sync: bool
    independent: bool
    writes: tuple[Write, ...]
    fate: str
    #: The space that it drops.
    drops: str = field(default="", kw_only=True)
    reason: str = ""
    by: str = ""

    @property
    def bytes(self) -> int:
        return sum(len(w.key) + len(w.value or b"") for w in self.writes)


@dataclass
class Node:
    role: str
    life: int
    up: bool = True
    acked: int = 0
    zone: str = ""
    validators: tuple[str, ...] = ()
    approved: dict[str, int] = field(default_factory=dict)

    def ends(self, life: int) -> None:
        self.life, self.acked, self.zone, self.validators, self.approved = life, 0, "", (), {}


@dataclass
class Model:
    nodes: dict[str, Node] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    spaces: dict[str, bool] = field(default_factory=dict)
    rows: dict[Place, tuple[bytes, int]] = field(default_factory=dict)
    voters: set[str] = field(default_factory=set)
    owner: tuple[str, int] | None = None
    term: int = 0
    quorum: str = "N / 2 + 1"
    over: str = "cores"
    zones: dict[str, int] = field(default_factory=dict)
    validators: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    #: One of the present batch that was to wait has found no room.
    full: bool = False

    # --- the queue ---

    def pending(self) -> list[Item]:
        return [item for item in self.items if item.fate == "pending"]

    def count(self, fate: str) -> int:
        return sum(item.fate == fate for item in self.items)

    def _copies(self) -> list[str]:
        """Replicants that count."""
        if self.over == "cores":
            return []
        replicants = [name for name, n in self.nodes.items() if n.role == "replicant" and n.up]
        return [name for name in replicants if name not in self.voters]

    def _counting(self) -> list[Node]:
        cores = [n for name, n in self.nodes.items() if name in self.voters]
        return cores + [self.nodes[name] for name in self._copies()]

    def fast(self) -> bool:
        if self.zones or self.validators:
            return False
        return self._needed() <= len(self.voters) // 2 + 1

    def _needed(self) -> int:
        return max(1, QUORUMS[self.quorum](len(self.voters) + len(self._copies())))

    def _has_quorum(self, position: int) -> bool:
        if self.fast():
            return True
        counting, everyone = self._counting(), self.nodes.values()
        holders = sum(node.acked >= position for node in counting)
        if holders < self._needed():
            return False
        for zone, wanted in self.zones.items():
            if sum(n.zone == zone and n.acked >= position for n in everyone) < wanted:
                return False
        for name, wanted in self.validators.items():
            if sum(n.approved.get(name, 0) >= position for n in everyone) < wanted:
                return False
        return True

    def _settle(self) -> None:
        """CONFIRM from the oldest on, until one lacks its quorum."""
        for item in self.pending():
            if item.sync and not self._has_quorum(item.position):
                return
            item.fate = "confirmed"
            self._write(item)

    def _write(self, item: Item) -> None:
        if item.drops:
            self._remove(item.drops)
        for write in item.writes:
            if write.value is None:
                self.rows.pop((write.space, write.key), None)
            else:
                self.rows[write.space, write.key] = (write.value, item.position)

    def _roll_back(self, first: int, reason: str, by: str) -> list[int]:
        gone = [item for item in self.pending() if item.position >= first]
        for item in gone:
            item.fate, item.reason, item.by = "rolled back", reason, by
        return [item.position for item in gone]

    # --- what nodes do; each returns what the command returns, or raises No ---

    def submit(self, node: str, transactions: list[Transaction], term: int) -> list[str]:
        """A code for each of them, "" for those that were taken."""
        self.full = False
        return [self._submit(node, transaction, term) for transaction in transactions]

    def _submit(self, node: str, one: Transaction, term: int) -> str:
        try:
            sync = self._check(node, one, term)
        except No as refusal:
            return str(refusal)
        waits = not self.fast() if sync else bool(self.pending()) and not one.independent
        position = len(self.items) + 1
        fate = "pending" if waits else "confirmed"
        item = Item(position, sync, one.independent, one.writes, fate)
        self.items.append(item)
        if not waits:
            self._write(item)
        return ""

    def _check(self, node: str, one: Transaction, term: int) -> bool:
        if self.owner is not None:
            if self.owner[0] != node:
                raise No("foreign_owner")
            if self.owner[1] != self.nodes[node].life or term != self.term:
                raise No("stale_owner")
        if not one.writes:
            raise No("empty_transaction")
        for write in one.writes:
            self._require_space(write.space)
        places = [(write.space, write.key) for write in one.writes]
        if len(set(places)) < len(places):
            raise No("duplicate_write")
        for condition in one.conditions:
            self._require_space(condition.space)
        sync = any(self.spaces[write.space] for write in one.writes)
        if sync and one.independent:
            raise No("independent_sync")
        if sync and self.owner is None:
            raise No("unclaimed")
        if one.independent:
            waiting = {(w.space, w.key) for item in self.pending() for w in item.writes}
            if waiting & {*places, *((c.space, c.key) for c in one.conditions)}:
                raise No("key_pending")
        for condition in one.conditions:
            if not self._holds(condition, confirmed=one.independent):
                raise No("condition_failed")
        waits = not self.fast() if sync else not one.independent
        if waits and self.pending() and self.full:
            raise No("queue_full")
        self._check_room(one, waits)
        return sync

    def look(self, space: str, key: bytes, *, confirmed: bool) -> tuple[bytes | None, int]:
        if not confirmed:
            for item in reversed(self.pending()):
                for write in item.writes:
                    if (write.space, write.key) == (space, key):
                        return write.value, 0 if write.value is None else item.position
        return self.rows.get((space, key), (None, 0))

    def _holds(self, condition: Condition, *, confirmed: bool) -> bool:
        value, position = self.look(condition.space, condition.key, confirmed=confirmed)
        if condition.kind == "value":
            return value == condition.value
        if condition.kind == "position":
            return position == condition.position
        return (value is not None) == bool(condition.position)

    def _check_room(self, one: Transaction, waits: bool) -> None:
        pending = self.pending()
        if not pending:
            return
        self.full, before = self.full or waits, self.full
        span = self.items[pending[0].position - 1 :]
        times = 1 if waits else 10
        size = sum(len(w.key) + len(w.value or b"") for w in one.writes)
        if len(span) + 1 > times * self.limits["queue_entries_max"]:
            raise No("queue_full")
        if sum(item.bytes for item in span) + size > times * self.limits["queue_bytes_max"]:
            raise No("queue_full")
        writes = sum(len(item.writes) for item in pending)
        if waits and writes + len(one.writes) > self.limits["queue_writes_max"]:
            raise No("queue_full")
        self.full = before

    def ack(self, node: str, upto: int, validators: tuple[str, ...]) -> None:
        row = self.nodes[node]
        upto = min(upto, len(self.items))
        row.acked = max(row.acked, upto)
        for name in validators:
            if name in row.validators:
                row.approved[name] = max(row.approved.get(name, 0), upto)
        self._settle()

    def declare(self, node: str, zone: str, validators: tuple[str, ...]) -> None:
        row = self.nodes[node]
        row.zone, row.validators = zone, tuple(sorted(set(validators)))
        row.approved = {v: upto for v, upto in row.approved.items() if v in validators}
        self._settle()

    def veto(self, node: str, position: int, validator: str, reason: str) -> str:
        if validator not in self.validators or validator not in self.nodes[node].validators:
            raise No("not_a_validator")
        if not 1 <= position <= len(self.items):
            return "unknown"
        item = self.items[position - 1]
        if item.fate != "pending":
            return item.fate
        if not item.sync:
            return "unknown"
        self._roll_back(position, f"vetoed by {validator} on {node}: {reason}", node)
        return "rolled back"

    def roll_back(self, node: str, position: int, term: int, reason: str) -> tuple[int, int, int]:
        if term != self.term:
            raise No("stale_term")
        if not 1 <= position <= len(self.items):
            raise No("unknown_position")
        fate = self.items[position - 1].fate
        if fate != "pending":
            raise No("already_" + fate.replace(" ", "_"))
        gone = self._roll_back(position, reason, node)
        return gone[0], gone[-1], len(gone)

    def promote(self, node: str, term: int, upto: int) -> tuple[int, int]:
        life = self.nodes[node].life
        if term != self.term:
            raise No("interfering_promote")
        if self.owner == (node, life):
            return self.term, 0
        gone = self._change(upto, f"promotion of {node} in term {term + 1}", node)
        self.owner = node, life
        return self.term, gone

    def demote(self, node: str, term: int, upto: int) -> tuple[int, int]:
        if term != self.term:
            raise No("interfering_promote")
        if self.owner is None or self.owner[0] != node:
            raise No("not_owner")
        gone = self._change(upto, f"demotion of {node} in term {term + 1}", node)
        self.owner = None
        return self.term, gone

    def _change(self, upto: int, reason: str, node: str) -> int:
        if any(item.position <= upto for item in self.pending()):
            raise No("not_settled")
        gone = self._roll_back(1, reason, node)
        self.term += 1
        return len(gone)

    def _require_space(self, name: str) -> None:
        if name not in self.spaces:
            raise No("unknown_space")
        if any(item.drops == name for item in self.pending()):
            raise No("drop_pending")

    def _require_owner(self, node: str, term: int) -> None:
        if self.owner is None:
            raise No("unclaimed")
        if self.owner[0] != node:
            raise No("foreign_owner")
        if self.owner[1] != self.nodes[node].life or term != self.term:
            raise No("stale_owner")

    def alter_space(self, node: str, name: str, sync: bool, term: int) -> None:
        self._require_space(name)
        if self.spaces[name] and not sync:
            self._require_owner(node, term)
        self.spaces[name] = sync

    def create_space(self, name: str, sync: bool) -> None:
        if name in self.spaces:
            raise No("space_exists")
        self.spaces[name] = sync

    def drop_space(self, node: str, name: str, term: int) -> None:
        self._require_space(name)
        if any(write.space == name for item in self.pending() for write in item.writes):
            raise No("space_busy")
        if not self.spaces[name]:
            self._remove(name)
            return
        self._require_owner(node, term)
        waits, self.full = not self.fast(), False
        self._check_room(Transaction(()), waits)
        fate = "pending" if waits else "confirmed"
        item = Item(len(self.items) + 1, True, False, (), fate, drops=name)
        self.items.append(item)
        if not waits:
            self._write(item)

    def _remove(self, name: str) -> None:
        del self.spaces[name]
        self.rows = {place: row for place, row in self.rows.items() if place[0] != name}

    # --- what happens to nodes and settings ---

    def set_voters(self, names: Iterable[str]) -> None:
        self.voters = set(names)
        self._settle()

    def node_up(self, name: str, role: str) -> None:
        self._node_up(name, role)
        if role == "core" and name not in self.voters:
            self.set_voters((*self.voters, name))

    def _node_up(self, name: str, role: str) -> None:
        old = self.nodes.get(name)
        if old is None:
            self.nodes[name] = Node(role, 1)
        else:
            old.ends(old.life + 1)
            old.role, old.up = role, True
        self._settle()

    def node_down(self, name: str) -> None:
        node = self.nodes[name]
        node.ends(node.life + 1)
        node.up = False
        self._settle()

    def node_role(self, name: str, role: str) -> None:
        self.nodes[name].role = role
        self._settle()

    def changed(self) -> None:
        """Settings were changed."""
        self._settle()
