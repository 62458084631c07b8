"""No test is judged by milliseconds; see clocks.py. Each rule is tested on a planted fault."""

from __future__ import annotations

import pytest

from tests.guards.clocks import EXCEPTIONS, Module, findings, modules, on_a_real_clock, unused


def test_no_verdict_hangs_on_the_speed_of_the_machine() -> None:
    found = [each for module in on_a_real_clock(modules()) for each in findings(module)]
    wrong = [str(each) for each in found if each.place not in EXCEPTIONS]
    assert not wrong, "\n" + "\n".join(wrong)
    assert unused(found) == [], "exceptions that nothing needs any more"


@pytest.mark.parametrize(
    ("fault", "sound"),
    [
        ("await asyncio.sleep(0.1)", "while not done: await asyncio.sleep(0.1)"),
        ("time.sleep(0.5)", "time.sleep(2)"),
        ("await asyncio.sleep(0.1)", "await asyncio.sleep(0)"),
        ("async with asyncio.timeout(0.5): pass", "async with asyncio.timeout(30): pass"),
        ("await asyncio.wait_for(f(), 0.2)", "await asyncio.wait_for(f(), 20)"),
        ("await f(timeout_s=0.3)", "await f(timeout_s=30)"),
        ("await f(ready_timeout_s=0.3)", "await f(wait_s=0.3)"),
        ("assert time.monotonic() - began < 1", "assert time.monotonic() - began >= 1"),
        ("assert 0.1 < loop.time() - began < 5", "assert 0.1 < loop.time() - began"),
        ("assert 2 > time.perf_counter() - began", "assert time.monotonic() < deadline"),
    ],
)
def test_each_form_is_found(fault: str, sound: str) -> None:
    assert len(findings(_module(fault))) == 1
    assert findings(_module(sound)) == []


def _module(statement: str) -> Module:
    return Module("tests/test_it.py", f"async def test() -> None:\n    {statement}\n")


def test_what_runs_in_simulated_time_may_count_in_milliseconds() -> None:
    simulated = Module("tests/kv/fakes.py", "from raftkv.testing.clock import run\n")
    below = Module("tests/kv/test_it.py", "from .fakes import run\n")
    both = Module("tests/kv/test_both.py", "from .fakes import run\nasyncio.run(f())\n")
    real = Module("tests/kv/test_real.py", "import asyncio\n")
    assert on_a_real_clock([simulated, below, both, real]) == [both, real]


def test_the_exceptions_are_few_and_have_a_reason() -> None:
    assert len(EXCEPTIONS) <= 35
    assert all(EXCEPTIONS.values())
