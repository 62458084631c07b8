"""A core whose disk loses what it had acknowledged, after the cluster has noticed it.

The walk of replication.py from a state in which core2 has lost an entry and the entry that marks it
as distrusted is committed. From then on its disk may lose any suffix of its log at any moment.

Checked: all that replication.py checks, hence that no such loss harms a committed entry. The rule:
votes and acknowledgements of a distrusted core count nowhere, it does not campaign, and it still
counts in the size of the quorum.

What no rule can help is left out: a loss that happens before a leader has noticed one. Until then
two copies of an entry may be one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from raftkv.testing.model.replication import (
    Bounds,
    Entry,
    Node,
    Replication,
    State,
    put,
)

__all__ = ["BOUNDS", "BUGS", "Distrust"]

BUGS: Final = {"distrusted-counts": "a core that has lost entries still votes and acknowledges"}

BOUNDS: Final = Bounds(terms=2, changes=0, crashes=1, writes=1)
LIAR: Final = 1
# Stands for the flag in the configuration entry: no configuration begins with that byte.
MARK: Final = b"\x01distrusted"


class Distrust(Replication):
    """See the module's text. `bug` is one of BUGS. `losses` bounds how often the disk loses."""

    def __init__(self, bounds: Bounds | None = None, bug: str = "", losses: int = 1) -> None:
        assert not bug or bug in BUGS, bug
        super().__init__(bounds or BOUNDS)
        self._distrusted_counts = bug == "distrusted-counts"
        self._losses = losses

    def first(self) -> State:
        state = super().first()
        log = (*state.nodes[0].log, Entry(1, MARK))
        nodes = list(state.nodes)
        for position in (0, 2):
            nodes[position] = nodes[position]._replace(log=log, commit=2, durable=2)
        nodes[0] = nodes[0]._replace(matches=(2, 1, 2, 0))
        return state._replace(nodes=tuple(nodes), decided=log)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super().steps(state)
        node = state.nodes[LIAR]
        if state.losses < self._losses:
            for kept in range(len(node.log)):
                after = node._replace(
                    role=0,
                    log=node.log[:kept],
                    commit=0,
                    durable=kept,
                    granted=0,
                    matches=(),
                )
                lost = put(state, LIAR, after)._replace(losses=state.losses + 1)
                yield f"the disk of {LIAR + 1} keeps {kept} entries", lost

    def counts(self, node: Node, position: int) -> bool:
        marked = any(entry.payload == MARK for entry in node.log)
        return position != LIAR or not marked or self._distrusted_counts

    def may_campaign(self, state: State, me: int) -> bool:
        """The one that is distrusted does not, once a leader has shown it the entry."""
        return self.counts(state.nodes[me], me)

    def exchange(self, state: State) -> State:
        """The names are not alike here: one has the bad disk."""
        return state
