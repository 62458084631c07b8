"""A work budget so small that a few keys take several iterations of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from raftkv.kv import KVApi
from raftkv.kv.work_budget import WorkBudget


def bounded_work(kv: KVApi, monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """An iteration of the loop has room for so many units, also the current one."""
    monkeypatch.setattr("raftkv.kv.work_budget.WORK_MAX", units)
    kv.budget._left = units


async def turns_beside_large(budget: WorkBudget, work: Coroutine[Any, Any, object]) -> int:
    """How many iterations of the loop `work` takes while 50 others have large work all the time."""

    async def read_on() -> None:
        while True:
            await budget.turn()

    others = [asyncio.create_task(read_on()) for _ in range(50)]
    for _ in range(3):
        await asyncio.sleep(0)
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await task
    return turns
