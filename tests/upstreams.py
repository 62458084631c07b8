"""The upstream of a replicant, which has none for a moment when it moves or a leader is elected."""

from __future__ import annotations

import asyncio

from raftkv import Node


async def upstream_of(replicant: Node, *, other_than: str = "") -> str:
    """Wait until it has one."""
    async with asyncio.timeout(30):
        while (found := replicant.status().upstream) in (None, other_than):
            await asyncio.sleep(0.005)
    assert found is not None
    return found
