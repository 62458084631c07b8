"""The virtual clock: order, time, deadlock, livelock, determinism."""

from __future__ import annotations

import asyncio
from contextvars import Context

import pytest

from raftkv.testing import clock
from raftkv.testing.clock import Deadlock, Livelock, SimLoop, run
from raftkv.testing.process import PROCESS, Process


def test_sleeping_moves_the_clock_and_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        await asyncio.sleep(0.25)
        return asyncio.get_running_loop().time()

    assert run(main()) == 3600.25


def test_timers_run_by_time_and_ties_in_the_order_they_were_made() -> None:
    loop = SimLoop()
    seen: list[str] = []
    loop.call_later(2, seen.append, "late")
    for name in "abcdefgh":
        loop.call_later(1, seen.append, name)
    loop.call_soon(seen.append, "now")
    loop.run_for(1.5)
    assert seen == ["now", *"abcdefgh"]
    assert loop.time() == 1.5
    loop.run_for(1)
    assert seen[-1] == "late"
    loop.close()


def test_a_due_timer_runs_even_when_callbacks_never_run_out() -> None:
    async def main() -> int:
        ticks = 0
        done = asyncio.Event()
        asyncio.get_running_loop().call_later(0, done.set)
        while not done.is_set():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert run(main()) < 5


def test_cancelled_timers_neither_run_nor_hold_the_clock() -> None:
    loop = SimLoop()
    seen: list[int] = []
    handles = [loop.call_later(10 + i, seen.append, i) for i in range(5000)]
    for handle in handles[:4999]:
        handle.cancel()
    assert len(loop._timers) < 2600
    loop.run_for(20_000)
    assert seen == [4999]
    handles[0].cancel()
    handles[4999].cancel()
    loop.call_later(1, seen.append, -1)
    loop.run_for(2)
    assert seen == [4999, -1]
    loop.close()


def test_time_outs_of_the_standard_library_work() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await asyncio.sleep(10)
        times.append(loop.time())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 2)
        times.append(loop.time())
        return times

    assert run(main()) == [1.5, 3.5]


def test_a_wait_for_nothing_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="nothing is scheduled"):
        run(main())


def test_running_for_a_while_with_nothing_to_do_is_no_deadlock() -> None:
    loop = SimLoop()
    loop.run_for(5)
    assert loop.time() == 5
    loop.close()


def test_callbacks_without_end_are_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "CALLBACKS_PER_INSTANT_MAX", 1000)
    loop = SimLoop()

    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(Livelock, match=r"stands at 0\.000000"):
        loop.run_for(1)
    loop.close()


def test_a_broken_callback_is_reported_and_the_others_run() -> None:
    loop = SimLoop()
    reports: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: reports.append(context["exception"]))
    seen: list[int] = []

    def broken() -> None:
        raise ValueError("broken")

    loop.call_soon(broken)
    loop.call_soon(seen.append, 1)
    loop.run_for(1)
    assert seen == [1]
    assert [str(error) for error in reports] == ["broken"]
    loop.close()


def test_threads_are_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(RuntimeError, match=r"Runtime\.offload"):
        run(main())


def test_an_aborted_task_group_cancels_in_the_order_of_creation() -> None:
    async def scenario() -> list[int]:
        order: list[int] = []

        async def child(number: int) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                order.append(number)

        async def failing() -> None:
            await asyncio.sleep(1)
            raise ValueError("enough")

        async def group_of_all() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(child(number))
                group.create_task(failing())

        with pytest.raises(ExceptionGroup):
            await group_of_all()
        return order

    first = run(scenario())
    assert sorted(first) == list(range(50))
    # Sets of tasks walk by serial number, not by address.
    assert first == run(scenario())


def test_tasks_have_names_of_their_own_loop() -> None:
    async def main() -> str:
        return asyncio.create_task(asyncio.sleep(0)).get_name()

    assert run(main()) == run(main()) == "task-2"


def test_the_seed_gives_the_loops_chance() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return [loop.rng.random() for _ in range(5)]

    assert run(main(), seed=7) == run(main(), seed=7)
    assert run(main(), seed=7) != run(main(), seed=8)


def test_callbacks_of_a_paused_process_wait_in_order_and_of_a_dead_one_vanish() -> None:
    loop = SimLoop()
    process = Process("p")
    seen: list[tuple[int, float]] = []
    context = Context()
    context.run(PROCESS.set, process)

    def note(number: int) -> None:
        seen.append((number, loop.time()))

    for number in range(4):
        loop.call_later(number + 1, note, number, context=context.copy())
    loop.run_for(1.5)
    process.pause()
    loop.call_later(2, loop.release, process)
    loop.run_for(2)
    assert seen == [(0, 1), (1, 3.5), (2, 3.5)]
    process.kill()
    loop.release(process)
    loop.run_for(10)
    assert len(seen) == 3
    loop.close()
