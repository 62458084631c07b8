"""The line of jobs, by itself: order, being told, being late, going together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from raftkv.errors import NotApplied, Overloaded, Stopped
from raftkv_subscriptions import NotSent, StillUnderWay
from raftkv_subscriptions import line as line_module
from raftkv_subscriptions.counting import Counters
from raftkv_subscriptions.line import Job, Line
from raftkv_subscriptions.rows import COMMAND_BYTES, ROWS_MAX

from .fakes import Cluster, story


class Workshop:
    """A line whose work takes a second for each command."""

    def __init__(self, cluster: Cluster) -> None:
        self.done: list[tuple[object, ...]] = []
        self.unheard: list[object] = []
        works = {"a": self.work, "b": self.work, "alone": self.work, "bad": self.bad}
        self.line = Line(
            cluster.nodes["core1"], Counters(), "work", works, alone=frozenset({"alone"})
        )

    async def work(self, jobs: Sequence[Job]) -> None:
        await asyncio.sleep(1)
        self.done.append(tuple(job.part for job in jobs))
        for job in jobs:
            job.succeed(job.part)

    async def bad(self, jobs: Sequence[Job]) -> None:
        if jobs[0].part == "silent":
            return
        raise NotApplied("no") if jobs[0].part == "no" else KeyError("defect")

    async def forget(self, result: object) -> None:
        self.unheard.append(result)
        raise NotApplied("cannot be undone")

    def begin(
        self, kind: str, part: object, timeout_s: float | None = None, **more: object
    ) -> asyncio.Task[object]:
        do: Any = self.line.do
        call: Awaitable[object] = do(kind, part, timeout_s, **more)
        return asyncio.ensure_future(call)


def workshop(body: Callable[[Workshop], Awaitable[None]]) -> Callable[[], None]:
    @story(cores=1)
    async def test(cluster: Cluster) -> None:
        shop = Workshop(cluster)
        await body(shop)
        await asyncio.sleep(20)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


@workshop
async def test_those_of_a_kind_go_together_in_order(shop: Workshop) -> None:
    kinds = ["a", "a", "b", "a", "alone", "alone", "a", "a"]
    tasks = [shop.begin(kind, n) for n, kind in enumerate(kinds)]
    assert await asyncio.gather(*tasks) == list(range(8))
    assert shop.done == [(0, 1), (2,), (3,), (4,), (5,), (6, 7)]
    assert shop.line.idle


@workshop
async def test_a_command_is_not_too_large(shop: Workshop) -> None:
    rows = [shop.begin("a", n, rows=ROWS_MAX // 2) for n in range(3)]
    await asyncio.gather(*rows)
    sizes = [shop.begin("a", n, size=COMMAND_BYTES) for n in range(2)]
    await asyncio.gather(*sizes)
    assert shop.done == [(0, 1), (2,), (0,), (1,)]


@workshop
async def test_who_is_late(shop: Workshop) -> None:
    begun = shop.begin("alone", "begun", 0.5)
    await asyncio.sleep(0.1)
    waits = shop.begin("alone", "waits", 0.5)
    must = shop.begin("alone", "must", 0.5, must=True)
    with pytest.raises(StillUnderWay):
        await begun
    with pytest.raises(NotSent):
        await waits
    with pytest.raises(StillUnderWay):
        await must
    assert await shop.begin("alone", "last") == "last"
    assert shop.done == [("begun",), ("must",), ("last",)]


@workshop
async def test_what_nobody_hears_has_an_afterthought(shop: Workshop) -> None:
    late = shop.begin("alone", "late", 0.5, unheard=shop.forget)
    left = shop.begin("alone", "left", unheard=shop.forget)
    dropped = shop.begin("alone", "dropped", unheard=shop.forget)
    heard = shop.begin("alone", "heard", unheard=shop.forget)
    await asyncio.sleep(1.5)
    left.cancel()
    dropped.cancel()
    assert await heard == "heard"
    assert shop.unheard == ["late", "left"]
    assert isinstance(late.exception(), StillUnderWay)
    # Cancelled at the very moment: it was told, and does not hear it.
    last = shop.begin("alone", "last", unheard=shop.forget)
    await asyncio.sleep(1)
    for _ in range(3):
        if ("last",) in shop.done:
            break
        await asyncio.sleep(0)
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    await asyncio.sleep(1)
    assert shop.unheard == ["late", "left", "last"]


@workshop
async def test_everybody_is_told_whatever_happens(shop: Workshop) -> None:
    with pytest.raises(NotApplied):
        await shop.begin("bad", "no")
    with pytest.raises(KeyError):
        await shop.begin("bad", "defect")
    with pytest.raises(StillUnderWay):
        await shop.begin("bad", "silent")
    assert await shop.begin("a", "fine") == "fine"
    waits = [shop.begin("alone", n) for n in range(3)]
    must = shop.begin("alone", "must", must=True)
    await asyncio.sleep(0.5)
    shop.line.fail_waiting(KeyError("over"))
    assert await waits[0] == 0
    for task in waits[1:]:
        with pytest.raises(KeyError):
            await task
    assert await must == "must"


@workshop
async def test_the_end(shop: Workshop) -> None:
    begun = shop.begin("alone", "begun")
    await asyncio.sleep(0.5)
    waits = shop.begin("alone", "waits")
    must = shop.begin("alone", "must", must=True)
    await asyncio.sleep(0)
    shop.line.stop()
    for task, error in ((begun, StillUnderWay), (waits, Stopped), (must, StillUnderWay)):
        with pytest.raises(error):
            await task
    with pytest.raises(Stopped):
        await shop.begin("a", 1)


@workshop
async def test_a_line_is_not_endless(shop: Workshop) -> None:
    limit, line_module.JOBS_MAX = line_module.JOBS_MAX, 2
    try:
        tasks = [shop.begin("alone", n) for n in range(4)]
        await asyncio.sleep(0)
        must = shop.begin("alone", "must", must=True)
        done = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        line_module.JOBS_MAX = limit
    assert done[:2] == [0, 1]
    assert all(isinstance(error, Overloaded) for error in done[2:])
    assert await must == "must"


def test_a_node_that_dies_leaves_nobody_waiting() -> None:
    @story()
    async def body(cluster: Cluster) -> None:
        shop = Workshop(cluster)
        begun = shop.begin("alone", "begun")
        waits = shop.begin("alone", "waits")
        await asyncio.sleep(0.5)
        cluster.nodes["core1"].runtime.die()
        with pytest.raises(StillUnderWay):
            await begun
        with pytest.raises(Stopped):
            await waits
        await cluster.restart("core1")
        cluster.lead("core1")

    body()
