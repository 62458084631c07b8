"""Limits that differ between nodes, with values around them, and what must not follow."""

from __future__ import annotations

import pytest

from raftkv.testing.scenario import draw, run_seed

SECONDS = 12.0
SEEDS = [seed for seed in range(200) if draw(seed).more.differing]
# The bug, and what the first violation may be.
FOUND = {
    "messenger-punished": {"no core pays for what it passes on"},
    "rejection-is-verdict": {"a refusal is a verdict", "refused writes stay away"},
    "limit-of-the-node-applied": {"linearizable", "equal digests", "state-machine safety"},
}


def test_where_limits_differ_clients_write_values_around_them() -> None:
    result = run_seed(SEEDS[0], seconds=4.0)
    assert not result.check, result.message
    drawn = [draw(seed) for seed in SEEDS]
    assert all(each.heavy is not None for each in drawn)
    larger = [each for each in drawn if not each.more.charged]
    for each in larger:
        assert each.heavy is not None
        assert each.heavy.value_bytes_max > each.limits.command_bytes_max


@pytest.mark.parametrize("bug", FOUND)
def test_an_injected_bug_is_found(bug: str) -> None:
    for seed in SEEDS:
        result = run_seed(seed, seconds=SECONDS, bug=bug)
        if result.check:
            assert result.check in FOUND[bug], result.message
            return
    pytest.fail(f"{bug} was not found")
