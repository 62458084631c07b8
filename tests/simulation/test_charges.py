"""Processor time in the simulated world: long work is late work, by constants."""

from __future__ import annotations

import dataclasses

import pytest

from raftkv.testing.process import PROCESS
from raftkv.testing.runtime import SimRuntime
from raftkv.testing.scenario import run_seed, steady
from raftkv.testing.simulate import main
from raftkv.testing.variations import Variations
from raftkv.testing.workload import Heavy
from raftkv.testing.world import World

WORK_S = 0.25


def test_work_holds_back_what_comes_behind_it_and_the_own_clock_shows_it_at_once() -> None:
    seen: list[tuple[str, float, float]] = []

    with World(1) as world:

        async def program(runtime: SimRuntime) -> None:
            process = PROCESS.get()
            assert process is not None
            before = runtime.monotonic()
            runtime.call_later(0.01, lambda: seen.append(("timer", world.loop.now, 0.0)))
            process.charge(WORK_S)
            seen.append(("work", world.loop.now, runtime.monotonic() - before))
            await runtime.sleep(0.1)
            seen.append(("sleep", world.loop.now, runtime.monotonic() - before))

        world.start("a", program)
        world.run(1.0)
    (_, worked_at, shown_s), (timer, timer_at, _), (_, slept_at, all_s) = seen
    assert worked_at == 0.0
    assert shown_s == pytest.approx(WORK_S, rel=0.01)
    assert timer == "timer"
    assert timer_at == pytest.approx(WORK_S, rel=0.01)
    assert slept_at == pytest.approx(WORK_S + 0.1, rel=0.01)
    assert all_s == pytest.approx(WORK_S + 0.1, rel=0.01)


def test_a_pause_during_work_ends_when_both_are_over() -> None:
    ran_at: list[float] = []

    with World(1) as world:

        async def program(runtime: SimRuntime) -> None:
            process = PROCESS.get()
            assert process is not None
            process.charge(WORK_S)
            await runtime.sleep(0.0)
            ran_at.append(world.loop.now)

        world.start("a", program)
        world.run(0.1)
        world.pause("a", 0.5)
        world.run(0.3)
        assert ran_at == []
        assert world.host("a").is_paused
        world.run(0.5)
    assert ran_at == [pytest.approx(0.6)]


def test_a_heavy_load_has_long_entries_and_breaks_no_promise() -> None:
    scenario = dataclasses.replace(
        steady(1),
        rate_per_s=300.0,
        heavy=Heavy(keys=10_000, compare_share=0.02, compared_keys=9_000),
        more=Variations(charged=True),
    )
    result = run_seed(1, seconds=1.0, scenario=scenario)
    assert not result.check, result.message
    assert result.marks["entry that takes long"] > 0
    assert result.marks["range of many keys compared"] > 0


@pytest.mark.parametrize("profile", ["heavy", "steady"])
def test_the_heavy_profiles_draw_no_harsh_messages(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--profile", profile, "--harsh"])
    assert "neither" in capsys.readouterr().err
