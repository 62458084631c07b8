"""How a recipe of asyncio is called from a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from raftkv.blocking.portal import Portal
from raftkv.errors import Stopped
from raftkv.recipes import Store as AsyncStore
from raftkv.validation import require_timeout

__all__ = ["Store", "leave", "wait"]

T = TypeVar("T")

# After Ctrl-C: a little more than what recipes allow themselves for cleaning up.
LEAVE_S: Final = 2.5


class Store(Protocol):
    """A `raftkv.blocking.Client`, or a `raftkv.blocking.Node` that was started."""

    def _behind(self) -> tuple[Portal, AsyncStore]: ...


def wait(
    portal: Portal, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None
) -> T:
    """What `work()` gives, run on the portal's loop. After `timeout_s` it is cancelled.

    Raises TimeoutError then. What a recipe does when it is cancelled (leave the queue, put back
    what was taken) is done before this raises, and takes two seconds at most; so it is after
    Ctrl-C, unless that comes twice.
    """
    require_timeout(timeout_s)
    ended = threading.Event()

    async def limited() -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await work()
        finally:
            ended.set()

    try:
        return portal.call(limited())
    except (KeyboardInterrupt, SystemExit):
        # It is cancelled by now, but a future of threads does not wait for what that entails.
        ended.wait(LEAVE_S)
        raise


def leave(portal: Portal, leaving: Coroutine[Any, Any, None], error: BaseException | None) -> None:
    """The end of a `with`, in which `error` was raised: it says more than `Stopped`.

    It may even be due to that: the client or node was closed inside, or under it.
    """
    try:
        portal.call(leaving)
    except Stopped:
        if error is None:
            raise
