"""A node's role in the words of the log, looked up now and then: too dear for every row."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["RoleWatch"]

ROLE_EVERY_S = 0.1
"""How often a row's role is looked up: an election takes several times as long."""


class RoleWatch:
    """`current` is leader, follower or replicant."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.current = "follower"

    def start(self) -> None:
        """Look now and from now on, as long as the loop runs."""
        role = self._node.status().role
        # A core that stands for election serves its callers as a follower does.
        self.current = role if role in ("leader", "replicant") else "follower"
        asyncio.get_running_loop().call_later(ROLE_EVERY_S, self.start)
