"""Commands of much work in the simulated world, and what they may cost others."""

from __future__ import annotations

import dataclasses

import pytest

from raftkv.testing.scenario import Result, plain, run_seed
from raftkv.testing.variations import Variations
from raftkv.testing.workload import Heavy

SECONDS = 10.0
HEAVY = Heavy(
    keys=10_000, large_share=0.05, compare_share=0.005, compared_keys=9_000, value_bytes_max=4_096
)
BUGS = {
    "entry-at-once": "applying yields",
    "costly-first": "costly commands stand behind cheap ones",
    "half-a-command": "commands take effect whole",
}


def run(seed: int, bug: str | None = None) -> Result:
    scenario = dataclasses.replace(
        plain(seed), faults={"reset": 1.0}, poison=True, heavy=HEAVY, more=Variations(charged=True)
    )
    return run_seed(seed, seconds=SECONDS, scenario=scenario, bug=bug)


def test_nodes_yield_and_readers_see_whole_commands() -> None:
    result = run(1)
    assert not result.check, result.message
    assert result.marks["entry applied in several turns"] > 10
    assert result.marks["thousands of keys deleted at once"] > 0
    assert result.marks["leader re-elected"] == 0


@pytest.mark.parametrize("bug", BUGS)
def test_an_injected_bug_is_found(bug: str) -> None:
    assert run(1, bug).check == BUGS[bug]
