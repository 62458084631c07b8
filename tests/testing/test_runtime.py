"""The simulated runtime: clocks, chance, crash at any await, the worker and the disk."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable
from typing import Any

import pytest

from raftkv.runtime import Runtime
from raftkv.testing import current
from raftkv.testing.gate import PowerFailure
from raftkv.testing.host import Host
from raftkv.testing.network import NetworkOptions
from raftkv.testing.runtime import SimRuntime
from raftkv.testing.world import World, WorldOptions


async def idle(runtime: SimRuntime) -> None:
    await runtime.future()


def start(world: World, name: str = "a") -> tuple[Host, SimRuntime]:
    host = world.start(name, idle)
    assert host.runtime is not None
    return host, host.runtime


def test_it_is_a_runtime() -> None:
    with World(1) as world:
        runtime: Runtime = start(world)[1]
        runtime.close()
        with pytest.raises(RuntimeError, match="closed"):
            runtime.offload(int)


def test_clocks_drift_and_wall_clocks_jump() -> None:
    with World(1, WorldOptions(clock_drift_max=0.01, wall_skew_ms_max=1000)) as world:
        runtimes = [start(world, name)[1] for name in "abc"]
        before = [(r.monotonic(), r.wall_ms()) for r in runtimes]
        world.run(1000)
        passed = [r.monotonic() - b[0] for r, b in zip(runtimes, before, strict=True)]
        assert all(990 <= seconds <= 1010 for seconds in passed)
        assert len(set(passed)) == 3
        assert len({wall for _, wall in before}) == 3
        wall, monotonic = runtimes[0].wall_ms(), runtimes[0].monotonic()
        world.jump_wall("a", -5000)
        assert runtimes[0].wall_ms() == wall - 5000
        assert runtimes[0].monotonic() == monotonic


def test_timers_count_the_hosts_own_seconds() -> None:
    with World(5, WorldOptions(clock_drift_max=0.01)) as world:
        _, runtime = start(world)
        begin = runtime.monotonic()
        ends: list[float] = []
        runtime.call_later(100, lambda: ends.append(runtime.monotonic()))
        world.run(110)
        assert ends == [pytest.approx(begin + 100)]
        world.complete(runtime.sleep(1))


def test_chance_and_tokens_come_from_the_seed_the_host_and_the_boot() -> None:
    def draws(seed: int, name: str) -> list[object]:
        with World(seed) as world:
            host, first = start(world, name)
            drawn: list[object] = [first.rng.random(), first.token(16)]
            world.crash(name)
            host.start(idle)
            second = host.runtime
            assert second is not None
            return [*drawn, second.rng.random(), second.token(16)]

    assert draws(1, "a") == draws(1, "a")
    assert len({*draws(1, "a"), *draws(1, "b"), *draws(2, "a")}) == 12


def test_a_crash_ends_everything_of_the_process_at_any_await() -> None:
    for step_ms in range(0, 100, 7):
        seen: list[str] = []

        async def program(runtime: SimRuntime, seen: list[str] = seen) -> None:
            async def child() -> None:
                try:
                    while True:
                        await asyncio.sleep(0.002)
                        seen.append("child")
                finally:
                    seen.append("finally")

            # Both ways to make a task, timers, and asyncio's own context managers.
            runtime.spawn(child(), "child")
            task = asyncio.create_task(child())
            runtime.call_later(0.05, seen.append, "timer")
            try:
                async with asyncio.timeout(1):
                    await task
            finally:
                seen.append("finally")

        with World(step_ms) as world:
            host = world.start("a", program)
            world.run(step_ms / 1000)
            host_runtime = host.runtime
            assert host_runtime is not None
            world.crash("a")
            count = len(seen)
            # Not even what is asked of the dead runtime from outside runs.
            host_runtime.call_soon(seen.append, "ghost")
            host_runtime.spawn(idle(host_runtime), "ghost")
            world.run(10)
            assert len(seen) == count
            assert "finally" not in seen
            assert not host.is_up


def test_what_is_started_from_outside_dies_with_the_process() -> None:
    with World(1) as world:
        _, runtime = start(world)
        seen: list[str] = []

        async def work() -> None:
            await asyncio.sleep(1)
            seen.append("work")

        runtime.spawn(work(), "work")
        runtime.call_later(1, seen.append, "timer")
        world.crash("a")
        world.run(2)
        assert seen == []


def test_offloaded_work_takes_time_and_keeps_its_order() -> None:
    with World(3) as world:
        _, runtime = start(world)
        order: list[int] = []

        def square(number: int) -> int:
            order.append(number)
            return number * number

        async def work() -> list[int]:
            begin = world.loop.time()
            results = await asyncio.gather(
                *(runtime.offload(square, number) for number in range(20))
            )
            assert 0.002 < world.loop.time() - begin < 2
            return results

        assert world.complete(work()) == [n * n for n in range(20)]
        assert order == list(range(20))


def test_offloaded_errors_reach_the_caller_and_cancelled_work_is_not_run() -> None:
    with World(3) as world:
        _, runtime = start(world)
        ran: list[int] = []

        async def work() -> None:
            failing = runtime.offload(int, "x")
            cancelled = runtime.offload(ran.append, 1)
            cancelled.cancel()
            with pytest.raises(ValueError, match="invalid literal"):
                await failing
            await runtime.offload(ran.append, 2)

        world.complete(work())
        assert ran == [2]


def test_a_stalled_disk_delays_what_is_being_done() -> None:
    with World(3) as world:
        _, runtime = start(world)
        future = runtime.offload(int)
        world.stall_disk("a", 4)
        world.run(3.9)
        assert not future.done()
        world.run(1)
        assert future.result() == 0


def test_bulk_work_does_not_hold_up_the_rest() -> None:
    with World(3) as world:
        _, runtime = start(world)
        runtime.bulk_worker.stall(5)
        bulk = runtime.offload_bulk(int)
        quick = runtime.offload(int)
        world.run(1)
        assert quick.done()
        assert not bulk.done()
        world.run(5)
        assert bulk.result() == 0


def crash_states(count: int) -> set[str]:
    """What a crash during write, sync and rename leaves, over many seeds."""
    states = set()
    for seed in range(count):
        with World(seed) as world:
            host, runtime = start(world)
            files = runtime.files
            files.makedirs("/d")

            def work(files: Any = files) -> None:
                file = files.open("/d/new", "w")
                file.write(b"content")
                file.datasync()
                files.rename("/d/new", "/d/done")
                files.sync_dir("/d")

            future = runtime.offload(work)
            while not future.done() and world.rng.random() < 0.6:
                world.run(0.0004)
            world.crash("a")
            host.start(idle)
            assert host.runtime is not None
            after = host.runtime.files
            if after.exists("/d/done"):
                states.add("told" if future.done() else "done, untold")
            else:
                states.add("half" if after.exists("/d/new") else "nothing")
    return states


def test_a_crash_finds_blocking_work_not_begun_done_or_in_between() -> None:
    assert crash_states(200) >= {"nothing", "done, untold", "told"}


def test_a_dead_process_touches_no_file_and_loses_its_locks() -> None:
    with World(1) as world:
        host, runtime = start(world)
        runtime.files.makedirs("/d")
        file = runtime.files.open("/d/f", "a")
        runtime.files.lock("/d/LOCK")
        with pytest.raises(BlockingIOError):
            runtime.files.lock("/d/LOCK")
        file.write(b"kept")
        world.crash("a", power_cut=False)
        forbidden: list[Callable[[], object]] = [
            lambda: file.write(b"ghost"),
            lambda: file.datasync(),
            lambda: file.pread(0, 1),
            lambda: runtime.files.open("/d/g", "w"),
            lambda: runtime.files.remove("/d/f"),
            lambda: runtime.files.lock("/d/LOCK"),
        ]
        for action in forbidden:
            with pytest.raises(PowerFailure):
                action()
        file.close()
        host.start(idle)
        assert host.runtime is not None
        files = host.runtime.files
        # A killed process leaves what the page cache has.
        assert files.open("/d/f", "r").pread(0, 10) == b"kept"
        assert files.listdir("/d") == ["LOCK", "f"]
        files.lock("/d/LOCK")


def test_streams_run_as_the_process_at_each_end() -> None:
    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(b"%r" % current.current_monotonic())

    async def server(runtime: SimRuntime) -> None:
        await runtime.listen(Echo, "0.0.0.0", 7000)
        await runtime.future()

    async def ask(runtime: SimRuntime) -> float:
        reader = asyncio.StreamReader()
        transport = await runtime.connect(
            lambda: asyncio.StreamReaderProtocol(reader), "server", 7000
        )
        transport.write(b"time?")
        answer = await reader.read(100)
        transport.close()
        return float(answer)

    # Without splits, so that the answer comes whole.
    whole = WorldOptions(network=NetworkOptions(split_probability=0))
    with World(1, whole) as world:
        host = world.start("server", server)
        world.start("client", idle)
        client = world.host("client").runtime
        assert client is not None
        world.run(0.1)
        answer = world.call("client", ask(client))
        world.run(1)
        assert host.runtime is not None
        assert answer.result() == pytest.approx(host.runtime.monotonic(), abs=1.2)
        assert abs(answer.result() - client.monotonic()) > 2


def test_module_globals_are_dispatched_to_the_running_host() -> None:
    module = types.ModuleType("library")
    module.monotonicTime = float  # type: ignore[attr-defined]
    module.random = None  # type: ignore[attr-defined]

    def use() -> tuple[float, float, int]:
        chance = module.random
        assert chance is not None
        return module.monotonicTime(), chance.random(), chance.randint(1, 10**9)

    with World(1) as world:
        host_a, runtime_a = start(world, "a")
        host_b, _ = start(world, "b")
        with current.installed(module):
            assert host_a.inside(use)[0] == runtime_a.monotonic()
            assert host_a.inside(use) != host_b.inside(use)
            in_timer: list[tuple[float, float, int]] = []
            runtime_a.call_later(1, lambda: in_timer.append(use()))
            world.run(2)
            assert runtime_a.monotonic() - in_timer[0][0] == pytest.approx(1, abs=0.01)
            with pytest.raises(RuntimeError, match="no simulated host"):
                use()
        assert module.monotonicTime is float
        assert module.random is None
