"""bench/loopwatch.py: what holds a loop up is measured and named."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from bench.loopwatch import LoopWatch, Watched
from raftkv.waste import Waste


def burn(seconds: float) -> None:
    """Use the processor for so long, however busy the machine is."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def watched(work: Callable[[], None]) -> Watched:
    async def run() -> Watched:
        watch = LoopWatch()
        try:
            watch.start()
            done = asyncio.get_running_loop().create_future()

            def working() -> None:
                work()
                done.set_result(None)

            asyncio.get_running_loop().call_later(0.005, working)
            await done
            await asyncio.sleep(0.005)  # the tick that was due meanwhile comes now
            return watch.stop()
        finally:
            watch.close()

    return asyncio.run(run())


def test_a_gap_is_found_and_put_down_to_what_ran_in_it() -> None:
    class Slow:
        def __len__(self) -> int:
            return 1000

        def drop_some(self, count: int) -> None:
            burn(0.03)

    waste = Waste()
    waste.add(Slow())
    seen = watched(lambda: print(waste.sweep()))
    assert seen.by_cpu.cpu_ms >= 25
    assert seen.by_wall.wall_ms >= 25
    assert seen.over_20_ms >= 1
    assert seen.by_cpu.cause == "free what is unused"
    assert seen.by_cpu.parts["free what is unused"] >= 25


def test_the_collector_is_named_too() -> None:
    circles: list[object] = [[] for _ in range(200_000)]

    def collect() -> None:
        for _ in range(4):
            gc.collect()

    seen = watched(collect)
    assert len(circles) == 200_000
    assert seen.by_cpu.gc_ms > 0
    assert seen.by_cpu.cause == "garbage collection"


def test_what_is_not_known_is_called_other_and_an_idle_loop_has_no_gaps() -> None:
    assert watched(lambda: burn(0.03)).by_cpu.cause == "other"
    assert watched(lambda: None).by_cpu.cpu_ms < 20
