"""A check of the simulated world: a state that was frozen is let go.

A frozen view makes every later write keep what it overwrites, for as long as the view is open. One
that is forgotten costs nothing but memory, so no other check would see it.

A walk for digests that is under way holds one rightly, and with much data it holds it for longer
than a cluster may take to heal (corruption_check.py): its own views do not count before it ends.
But it must go on: from the first look, one that reads no row any more has forgotten its views, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftkv.node import Node
from raftkv.state.snapshot import Frozen

__all__ = ["LetGo", "frozen_views"]


class LetGo:
    """Looks at nodes until they have let go of what was frozen; the first look is its beginning."""

    def __init__(self) -> None:
        # What the walks of each incarnation had read when it was looked at first.
        self._rows: dict[Node, int] = {}

    def all(self, nodes: Sequence[Node]) -> bool:
        """Whether all of them have, but for walks that are under way and go on."""
        for node in nodes:
            self._rows.setdefault(node, node.corruption.rows)
        return all(self._has(node) for node in nodes)

    def _has(self, node: Node) -> bool:
        goes_on = node.corruption.rows > self._rows[node]
        return not frozen_views(node) and (goes_on or _walked(node) is None)


def frozen_views(node: Node) -> int:
    """How many views of its tables and sessions are open that no walk for digests reads."""
    machine, walked = node.machine, _walked(node)
    views: list[object] = [view for table in machine._tables for view in table._frozen]
    views += machine._sessions.walks
    rightly = set[int]()
    if walked is not None:
        rightly = {id(walked._sessions), *(id(view) for _, _, view in walked._tables)}
    return sum(id(view) not in rightly for view in views)


def _walked(node: Node) -> Frozen | None:
    """The state that a walk for digests is reading."""
    check = node.corruption
    under_way = check._walking is not None and not check._walking.done()
    return check._walk_now._frozen if under_way and check._walk_now is not None else None
