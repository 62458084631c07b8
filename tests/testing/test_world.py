"""The world as a whole: determinism, faults, and a toy of three hosts end to end."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest

from raftkv.errors import DiskFailed
from raftkv.testing.host import HostCrashed
from raftkv.testing.nemesis import DISK_FAULTS, FAULTS, Nemesis
from raftkv.testing.runtime import SimRuntime
from raftkv.testing.trace import Trace
from raftkv.testing.world import NotReached, World, WorldFailed

TOY_PATH = pathlib.Path(__file__).with_name("world_toy.py")
REPOSITORY = TOY_PATH.parents[2]


def load_toy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("world_toy", TOY_PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


toy = load_toy()


async def idle(runtime: SimRuntime) -> None:
    await runtime.future()


def test_one_seed_gives_one_trace_in_one_process() -> None:
    first = toy.storm(4, 10)
    assert first == toy.storm(4, 10)
    assert first[0] != toy.storm(5, 10)[0]


def test_one_seed_gives_one_trace_whatever_the_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }
        digests.add(
            subprocess.run(
                [sys.executable, str(TOY_PATH), "4"],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout.strip()
        )
    assert digests == {toy.storm(4, 10)[0]}


def test_the_toy_survives_storms_and_every_fault_happens() -> None:
    totals = dict.fromkeys(FAULTS, 0)
    for seed in range(12):
        _, counts, numbers = toy.storm(seed, 15)
        assert min(numbers.values()) > 1
        for name, count in counts.items():
            totals[name] += count
    assert min(totals.values()) > 0, totals


def test_the_trace_says_what_happened() -> None:
    echoed: list[str] = []
    trace = Trace(lines_max=3, echo=echoed.append)
    with World(1, trace=trace) as world:
        world.start("a", idle)
        world.run(1.5)
        world.pause("a", 0.25)
        world.run(1)
        world.crash("a", power_cut=False)
        world.restart("a")
        assert echoed == [
            "0.000000 a start 1",
            "1.500000 a pause 0.250 s",
            "1.750000 a resume",
            "2.500000 a kill",
            "2.500000 a start 2",
        ]
        assert list(trace.lines) == echoed[-3:]
        assert trace.count == 5
        before = trace.digest()
        world.note("a", "once more")
        assert trace.digest() != before


def test_a_program_that_raises_fails_the_world() -> None:
    async def broken(runtime: SimRuntime) -> None:
        await runtime.sleep(1)
        raise ValueError("broken program")

    with World(1) as world:
        host = world.start("a", broken)
        world.run(0.5)
        with pytest.raises(WorldFailed, match="ValueError on a at 1") as caught:
            world.run(1)
        assert isinstance(caught.value.__cause__, ValueError)
        assert not host.is_up


def test_a_callback_and_a_background_task_that_raise_fail_the_world() -> None:
    def broken() -> None:
        raise ValueError("broken callback")

    async def broken_task() -> None:
        raise ValueError("broken task")

    with World(1) as world:
        runtime = world.start("a", idle).runtime
        assert runtime is not None
        runtime.call_soon(broken)
        with pytest.raises(WorldFailed, match="broken callback"):
            world.run(1)
    with World(1) as world:
        world.spawn(broken_task(), "client")
        with pytest.raises(WorldFailed, match="on client"):
            world.run(1)


def test_a_node_that_stops_itself_does_not_fail_the_world() -> None:
    async def faulty(runtime: SimRuntime) -> None:
        raise DiskFailed("no space left")

    with World(1) as world:
        host = world.start("a", faulty)
        world.run(1)
        assert isinstance(host.failure, DiskFailed)
        assert not host.is_up


def test_stop_lets_the_program_clean_up() -> None:
    seen: list[str] = []

    async def program(runtime: SimRuntime) -> None:
        try:
            await runtime.future()
        finally:
            await runtime.sleep(1)
            seen.append("clean")

    with World(1) as world:
        host = world.start("a", program)
        world.run(1)
        world.stop("a")
        world.wait(lambda: not host.is_up, timeout_s=2)
        assert seen == ["clean"]
        assert host.failure is None
        with pytest.raises(RuntimeError, match="down"):
            world.crash("a")


def test_a_call_runs_as_the_host_and_ends_with_it() -> None:
    async def answer(runtime: SimRuntime) -> float:
        await runtime.sleep(1)
        return runtime.monotonic()

    async def fail() -> None:
        raise ValueError("refused")

    with World(1) as world:
        host = world.start("a", idle)
        runtime = host.runtime
        assert runtime is not None

        async def client() -> float:
            return await world.call("a", answer(runtime))

        assert world.complete(client()) == pytest.approx(runtime.monotonic(), abs=0.02)
        failed = world.call("a", fail())
        unanswered = world.call("a", answer(runtime))
        world.run(0.5)
        with pytest.raises(ValueError, match="refused"):
            failed.result()
        world.crash("a")
        with pytest.raises(HostCrashed):
            unanswered.result()


def test_a_host_that_crashes_itself_dies_after_the_running_callback() -> None:
    seen: list[str] = []
    with World(1) as world:

        async def suicidal(runtime: SimRuntime) -> None:
            world.crash("a")
            seen.append("same callback")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seen.append("afterwards")

        host = world.start("a", suicidal)
        world.run(1)
        assert seen == ["same callback"]
        assert not host.is_up
        assert host.boots == 1


def test_waiting_for_what_never_comes_names_the_seed() -> None:
    with World(77) as world:
        with pytest.raises(NotReached, match="seed 77: a leader did not come within 3 s"):
            world.wait(lambda: False, 3, "a leader")
        with pytest.raises(NotReached):
            world.complete(world.until(lambda: False, 1))
        assert world.loop.time() == pytest.approx(4, abs=0.1)


def test_a_paused_host_does_nothing_and_then_everything() -> None:
    ticks: list[float] = []
    with World(1) as world:

        async def ticking(runtime: SimRuntime) -> None:
            while True:
                await asyncio.sleep(0.1)
                ticks.append(world.loop.time())

        host = world.start("a", ticking)
        world.run(1.05)
        assert len(ticks) == 10
        world.pause("a")
        world.run(5)
        assert len(ticks) == 10
        assert host.is_paused
        world.resume("a")
        world.run(1)
        assert 19 <= len(ticks) <= 21
        assert ticks[10] == pytest.approx(6.05)


def test_the_end_of_a_world_is_quiet(recwarn: pytest.WarningsRecorder) -> None:
    async def stubborn(runtime: SimRuntime) -> None:
        try:
            await runtime.future()
        finally:
            await runtime.sleep(1)

    world = World(1)
    world.start("a", stubborn)
    world.start("b", stubborn)
    world.spawn(asyncio.sleep(100), "sleeper")
    world.run(1)
    world.crash("a")
    world.run(1)
    world.close()
    world.close()
    assert [str(warning.message) for warning in recwarn] == []


def test_failing_disks_stop_programs_and_a_reboot_brings_back_what_was_synced() -> None:
    async def writing(runtime: SimRuntime) -> None:
        runtime.files.makedirs("/d")
        file = runtime.files.open("/d/f", "a")
        runtime.files.sync_dir("/d")
        assert file.size() >= synced[runtime.host]

        def step() -> int:
            file.write(b"x" * 10)
            file.datasync()
            return file.size()

        while True:
            try:
                synced[runtime.host] = await runtime.offload(step)
            except OSError as error:
                raise DiskFailed(str(error)) from error
            await runtime.sleep(0.01)

    synced = dict.fromkeys("abc", 0)
    with World(3) as world:
        for name in "abc":
            world.start(name, writing)
        nemesis = Nemesis(world, "abc", faults={**DISK_FAULTS, "power_cut": 1})
        nemesis.run(60)
        assert min(nemesis.counts.values()) > 3
        assert all(host.is_up for host in world.hosts.values())
        boots = sum(host.boots for host in world.hosts.values())
        assert boots > 3 + nemesis.counts["power_cut"]
        before = dict(synced)
        world.run(5)
        assert all(synced[name] > before[name] for name in synced)


def test_the_nemesis_keeps_a_majority_and_refuses_nonsense() -> None:
    with World(3) as world:
        for name in "abcde":
            world.start(name, idle)
        with pytest.raises(ValueError, match="earthquake"):
            Nemesis(world, "abcde", faults={"earthquake": 1})
        with pytest.raises(ValueError, match="two hosts"):
            Nemesis(world, "a")
        nemesis = Nemesis(world, "abcde", faults={"kill": 1, "power_cut": 1, "pause": 1})
        task = world.spawn(nemesis.storm(), "nemesis")
        worst = 5
        for _ in range(300):
            world.run(0.1)
            worst = min(worst, sum(h.is_up and not h.is_paused for h in world.hosts.values()))
        assert worst == 3
        task.cancel()
        nemesis.heal()
        assert all(host.is_up and not host.is_paused for host in world.hosts.values())
        assert sum(nemesis.counts.values()) > 15


async def count_steps(runtime: SimRuntime, counted: list[int]) -> None:
    while True:
        counted.append(len(counted))
        future = runtime.future()
        runtime.call_soon(future.set_result, None)
        await future
        if len(counted) % 10 == 0:
            await runtime.sleep(0.01)


def doomed_after(steps: int) -> tuple[int, int]:
    """How far the program came, and how often it was struck."""
    counted: list[int] = []
    struck: list[float] = []
    with World(1) as world:
        world.start("a", lambda runtime: count_steps(runtime, counted))
        world.doom("a", lambda: struck.append(world.loop.now), power_cut=False, steps=steps)
        world.run(1)
        assert not world.host("a").is_up
    return len(counted), len(struck)


@pytest.mark.parametrize("steps", [0, 1, 7, 30])
def test_a_program_dies_between_two_callbacks_of_one_instant(steps: int) -> None:
    # One turn of the loop in the program is two callbacks.
    assert doomed_after(steps + 2) == (doomed_after(steps)[0] + 1, 1)


def test_a_doom_that_was_taken_back_does_not_strike() -> None:
    with World(1) as world:
        counted: list[int] = []
        world.start("a", lambda runtime: count_steps(runtime, counted))
        world.doom("a", lambda: pytest.fail("struck"), power_cut=True, steps=50, changes=3)
        world.spare("a")
        world.run(1)
        assert world.host("a").is_up


@pytest.mark.parametrize("changes", range(8))
def test_a_program_dies_in_place_of_any_change_of_its_files(changes: int) -> None:
    """On the loop or in a worker; what the step would have written is not there."""
    steps: list[str] = []

    async def writer(runtime: SimRuntime) -> None:
        files = runtime.files
        files.makedirs("/d")
        steps.append("makedirs")
        file = files.open("/d/f", "w")
        steps.append("open")
        files.sync_dir("/d")
        steps.append("sync_dir")

        def work() -> None:
            for number in range(3):
                file.write(b"x")
                steps.append(f"write {number}")
            file.datasync()
            steps.append("datasync")

        await runtime.offload(work)
        files.rename("/d/f", "/d/g")
        steps.append("rename")
        await runtime.future()

    with World(3) as world:
        died: list[bool] = []
        world.host("a")
        world.start("a", writer)
        world.doom("a", lambda: died.append(True), power_cut=True, changes=changes)
        world.run(1)
        assert died == [True]
        assert len(steps) == changes
        world.restart("a", idle)
        world.run(0.1)
        assert world.host("a").is_up


def test_a_wiped_disk_holds_nothing_and_is_locked_by_nobody() -> None:
    with World(4) as world:
        disk = world.host("a").disk
        disk.makedirs("/d")
        file = disk.open("/d/f", "w")
        file.write(b"x")
        file.datasync()
        disk.sync_dir("/d")
        disk.lock("/d/lock")
        disk.wipe()
        assert disk.paths() == []
        assert not disk.exists("/d")
        with pytest.raises(OSError, match="closed"):
            file.write(b"y")
        disk.makedirs("/d")
        disk.lock("/d/lock")


def test_hosts_may_leave_while_a_nemesis_works() -> None:
    with World(5) as world:
        names = ["a", "b", "c"]
        for name in names:
            world.start(name, idle)
        nemesis = Nemesis(world, names, interval_s=(0.01, 0.05), duration_s=(0.1, 0.3))
        task = world.spawn(nemesis.storm(), "nemesis")
        world.run(2)
        for name in ("c", "b"):
            names.remove(name)
            nemesis.forget(name)
            if world.host(name).is_up:
                world.crash(name)
            world.run(1)
            assert not world.host(name).is_up
        task.cancel()
        nemesis.heal()
        assert world.host("a").is_up
        assert not world.host("c").is_up


def test_a_nemesis_takes_away_only_what_can_be_spared() -> None:
    with World(6) as world:
        names = ["a", "b", "c", "d"]
        for name in names:
            world.start(name, idle)
        asked: list[list[str]] = []

        def can_spare(away: list[str]) -> bool:
            asked.append(sorted(away))
            return "a" not in away

        faults = {"kill": 1.0, "pause": 1.0, "die_at_step": 1.0}
        nemesis = Nemesis(
            world,
            names,
            faults=faults,
            interval_s=(0.01, 0.05),
            can_spare=can_spare,  # type: ignore[arg-type]
        )
        nemesis.run(5)
        assert world.host("a").boots == 1
        assert world.host("b").boots > 1
        assert any(len(away) > 2 for away in asked)
