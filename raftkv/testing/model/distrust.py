"""A core whose disk loses what it had acknowledged, and the flag by which it counts no more.

The walk of replication.py in which the disk of core2 may lose any suffix of its log, more than
once. The leader notices it when core2 answers that it lacks what it had acknowledged; from then on
that leader counts it for nothing, and it appends the configuration in which core2 is distrusted.

Checked: all that replication.py checks, hence that no such loss harms a committed entry. The rule:
votes and acknowledgements of a distrusted core count nowhere, it does not campaign, and it still
counts in the size of the quorum. The configurations are those of `distrust`, `trusts` and
`majority` of the project itself.

What no rule can help is left out. After a loss a committed entry may be on less than a majority of
the disks, or a leader may still rely on an acknowledgement that is void; if the leader is lost
then, so may the entry be. So there is no vote in such a state, unless the flag is committed: with
it, no loss may do harm any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from raftkv.raft.changing import distrust
from raftkv.raft.membership import Configuration, encode
from raftkv.testing.model.replication import (
    FEEDS,
    LEADS,
    NODES,
    Bounds,
    Entry,
    Node,
    Replication,
    State,
    configuration_at,
    decoded,
    is_change,
    put,
)

__all__ = ["BOUNDS", "BUGS", "Distrust"]

BUGS: Final = {
    "distrusted-counts": "a core that has lost entries still votes and acknowledges",
    "flag-ignored": "only the leader that has noticed the loss counts that core for nothing",
}

BOUNDS: Final = Bounds(terms=2, changes=0, crashes=1, entries=3, writes=1)
LOSSES_MAX: Final = 2
LIAR: Final = 1


class Distrust(Replication):
    """See the module's text. `bug` is one of BUGS. `losses` bounds how often the disk loses."""

    def __init__(
        self,
        bounds: Bounds | None = None,
        bug: str = "",
        behind: Sequence[str] = (),
        losses: int = LOSSES_MAX,
    ) -> None:
        assert not bug or bug in BUGS, bug
        super().__init__(bounds or BOUNDS, behind=behind)
        self._injected = bug
        self._losses = losses

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super().steps(state)
        yield from self._lose(state)
        for me, node in enumerate(state.nodes):
            if node.role == LEADS:
                yield from self._notice(state, me, node)

    def counts(self, state: State, node: Node, position: int) -> bool:
        if position != LIAR or self._injected == "distrusted-counts":
            return True
        noticed = node.role == LEADS and _has_noticed(state, node)
        return not noticed and self.latest(node).trusts(NODES[LIAR])

    def latest(self, node: Node) -> Configuration:
        """With a bug: as a node takes it that does not know the flag."""
        latest = super().latest(node)
        return msgspec.structs.replace(latest, distrusted=()) if self._injected else latest

    def may_campaign(self, state: State, me: int) -> bool:
        """The one that is distrusted does not, once a leader has shown it the entry."""
        return self.counts(state, state.nodes[me], me)

    def candidate(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        """No vote in a state in which no rule can help."""
        if _flagged(state) or not (_at_risk(state) or _unnoticed(state)):
            yield from super().candidate(state, me, node)

    def exchange(self, state: State) -> State:
        """The names are not alike here: one has the bad disk."""
        return state

    def _lose(self, state: State) -> Iterator[tuple[str, State]]:
        node = state.nodes[LIAR]
        if state.losses >= self._losses:
            return
        for kept in range(len(node.log)):
            after = node._replace(
                role=0, log=node.log[:kept], commit=0, durable=kept, granted=0, matches=()
            )
            lost = put(state, LIAR, after)._replace(losses=state.losses + 1)
            yield f"the disk of {LIAR + 1} keeps {kept} entries", lost

    def _notice(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        """The leader reads an answer that cannot be; then it appends the flag, once it may."""
        liar = state.nodes[LIAR]
        if me == LIAR:
            return
        if not _has_noticed(state, node):
            if liar.last < node.matches[LIAR] and liar.term <= node.term:
                noticed = state._replace(noticed=state.noticed | 1 << node.term)
                yield f"{me + 1} notices the loss", noticed
            return
        in_force = decoded(configuration_at(node, node.last))
        first = next(
            node.base + position + 1
            for position, entry in enumerate(node.log)
            if entry.term == node.term
        )
        settled = max(first, self.latest_index(node, node.last))
        if not in_force.trusts(NODES[LIAR]) or node.commit < settled:
            return
        proposed = distrust(in_force, NODES[LIAR])
        held = [
            voter
            for position, voter in enumerate(NODES)
            if (node.durable if position == me else node.matches[position]) >= node.commit
        ]
        if proposed.majority(held):
            flagged = node._replace(log=(*node.log, Entry(node.term, encode(proposed))))
            yield f"{me + 1} appends: distrust {LIAR + 1}", put(state, me, flagged)


def _has_noticed(state: State, leader: Node) -> bool:
    return bool(state.noticed >> leader.term & 1)


def _flagged(state: State) -> bool:
    """Whether the flag is committed."""
    changes = [entry.payload for entry in state.decided if is_change(entry)]
    return bool(changes) and bool(decoded(changes[-1]).distrusted)


def _at_risk(state: State) -> bool:
    """Whether a committed entry is on less than a majority of the voters' disks."""
    index = len(state.decided)
    changes = [entry.payload for entry in state.decided if is_change(entry)]
    voters = decoded(changes[-1]).voters if changes else NODES[: len(NODES) - 1]
    holding = [
        name
        for name, node in zip(NODES, state.nodes, strict=True)
        if node.role != FEEDS
        and node.durable >= index
        and node.log[: index - node.base] == state.decided[node.base :]
    ]
    return not Configuration(voters).majority(holding)


def _unnoticed(state: State) -> bool:
    """Whether a leader counts on what the liar holds no more."""
    liar = state.nodes[LIAR]
    return any(
        node.role == LEADS
        and not _has_noticed(state, node)
        and decoded(configuration_at(node, node.last)).trusts(NODES[LIAR])
        and liar.last < node.matches[LIAR]
        for node in state.nodes
    )
