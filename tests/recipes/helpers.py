"""What the tests of the recipes share: the store on a virtual clock, and ways to lose a session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from raftkv.kv.commands import Revoke
from raftkv.recipes import Session
from tests.kv.memory_store import MemoryStore, run

__all__ = ["MemoryStore", "crash", "keys", "now", "run", "settled", "started", "take_away"]


def now() -> float:
    return asyncio.get_running_loop().time()


def keys(store: MemoryStore, prefix: bytes) -> list[bytes]:
    """The keys under a prefix, in the order of creation."""
    rows = store.view().table("keys").scan(prefix=prefix)
    return [key for key, _ in sorted(rows, key=lambda row: row[1].create_revision)]


async def started(work: Iterable[Any]) -> list[asyncio.Task[Any]]:
    """Tasks, begun one after the other so that their order is known."""
    tasks = []
    for each in work:
        tasks.append(asyncio.ensure_future(each))
        await asyncio.sleep(0.05)
    return tasks


async def settled() -> None:
    """Let everything that is on its way arrive."""
    await asyncio.sleep(0.2)


def crash(session: Session) -> None:
    """The process of this session dies: nothing is kept alive or given back."""
    task = session._keeping._task
    assert task is not None
    task.cancel()


def take_away(store: MemoryStore, session: Session) -> None:
    """The cluster ends the session's lease now."""
    store.apply(Revoke(session.lease))
