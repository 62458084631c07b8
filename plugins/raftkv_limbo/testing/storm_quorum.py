"""What a quorum is, said once more: from what nodes have told the log, and nothing else.

The plugin reads expressions with a parser of its own. Here each expression that a storm uses
stands beside what it is to mean, as a function of N, so that neither the parser nor the evaluator
is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raftkv.plugin import Member

from .storm_ledger import Ledger

__all__ = ["QUORUMS", "Basis", "has_quorum", "is_fast", "nodes_needed"]

QUORUMS: Mapping[str, Callable[[int], int]] = {
    "N / 2 + 1": lambda n: n // 2 + 1,
    "N": lambda n: n,
    "1": lambda n: 1,
    "2": lambda n: 2,
    "3": lambda n: 3,
    "4": lambda n: 4,
    "ceil(N * 2 / 3)": lambda n: -(-2 * n // 3),
    "max(2, N - 1)": lambda n: max(2, n - 1),
    "min(N, floor(N / 2) + 2)": lambda n: min(n, n // 2 + 2),
    "(N + 3) / 2": lambda n: (n + 3) // 2,
}


@dataclass(frozen=True, slots=True)
class Basis:
    """What a quorum is found from, besides what nodes say. `voters`: raft ids."""

    members: Mapping[str, Member]
    voters: tuple[str, ...]
    settings: Mapping[str, Any]

    def counting(self) -> list[str]:
        """The names of those that count, voters up or down, replicants only while they are up."""
        return [*self._cores(), *self._replicants()]

    @property
    def n(self) -> int:
        """N: a voter counts that never had a life, too."""
        return (len(self.voters) or len(self._cores())) + len(self._replicants())

    def _cores(self) -> list[str]:
        known = self.voters
        return [
            name
            for name, each in self.members.items()
            if (each.raft_id in known if known else each.role == "core")
        ]

    def _replicants(self) -> list[str]:
        if self.settings["quorum_over"] != "members":
            return []
        return [
            name
            for name, each in self.members.items()
            if each.role == "replicant" and each.up and each.raft_id not in self.voters
        ]


def nodes_needed(basis: Basis) -> int:
    """How many of those that count."""
    return QUORUMS[basis.settings["quorum"]](basis.n)


def is_fast(basis: Basis) -> bool:
    """Whether being applied is enough, for Raft has it on as many nodes."""
    settings = basis.settings
    if settings["quorum_zones"] or settings["quorum_validators"] or not basis.voters:
        return False
    return nodes_needed(basis) <= len(basis.voters) // 2 + 1


def has_quorum(number: int, ledger: Ledger, basis: Basis) -> bool:
    """Whether enough nodes, in the lives that they live now, hold the position."""
    if is_fast(basis):
        return True
    members, settings = basis.members, basis.settings
    holders = {name for name in members if _upto(ledger.acks.get(name), members[name]) >= number}
    if sum(name in holders for name in basis.counting()) < nodes_needed(basis):
        return False
    for zone, count in settings["quorum_zones"].items():
        here = [n for n in holders if ledger.zones.get(n) == (members[n].incarnation, zone)]
        if len(here) < count:
            return False
    for validator, count in settings["quorum_validators"].items():
        told = (_upto(ledger.approvals.get((validator, n)), members[n]) for n in members)
        if sum(upto >= number for upto in told) < count:
            return False
    return True


def _upto(told: tuple[int, int] | None, member: Member) -> int:
    """Up to where a node has told in the life that it lives."""
    return told[1] if told is not None and told[0] == member.incarnation else 0
