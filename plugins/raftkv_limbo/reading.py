"""Reading: what is confirmed, what will be if everything pending is, or the newest there is.

"confirmed"     this node's copy, at once: never anything that may be rolled back. It may be old.
"pending"       the same, as if all that this node has in the queue were confirmed already.
"linearizable"  confirmed, and no older than the moment of the call: it waits for the leader.
"""

from __future__ import annotations

from typing import Literal

from raftkv.plugin import Host

from . import views
from .checking import check_key
from .commands import Row

__all__ = ["Reading", "Sight"]

Sight = Literal["confirmed", "pending", "linearizable"]


class Reading:
    """Reads on one node. All raise UnknownSpace, and with "linearizable" ReadTimeout."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def get(self, space: str, key: bytes, view: Sight, timeout_s: float) -> Row | None:
        check_key(space, key)
        await self._barrier(view, timeout_s)
        look = views.pending_row if view == "pending" else views.confirmed_row
        return look(self._host.view(), space, key)

    async def range(
        self,
        space: str,
        start: bytes,
        end: bytes | None,
        limit: int,
        reverse: bool,
        view: Sight,
        timeout_s: float,
    ) -> tuple[tuple[bytes, Row], ...]:
        check_key(space, start)
        if end is not None:
            check_key(space, end)
        if limit < 0:
            raise ValueError("limit is 0 (all) or more")
        await self._barrier(view, timeout_s)
        look = views.pending_range if view == "pending" else views.confirmed_range
        return look(self._host.view(), space, start, end, limit, reverse)

    async def _barrier(self, view: Sight, timeout_s: float) -> None:
        if view == "linearizable":
            await self._host.barrier("linearizable", timeout_s=timeout_s)
        elif view not in ("confirmed", "pending"):
            raise ValueError(f'view is "confirmed", "pending" or "linearizable", not {view!r}')
