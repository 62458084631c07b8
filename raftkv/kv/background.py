"""Work that is finished although its caller is cancelled.

asyncio cancels once; a scope as anyio's (and so Starlette's middleware) cancels at every `await`
until its block is left. What must be given back there, a lease for example, cannot be waited for:
a task of its own does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["finished"]

T = TypeVar("T")

# The loop keeps only weak references to tasks.
_running: set[asyncio.Task[Any]] = set()


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is done to its end also if the caller is cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)
