"""Injected bugs of authority that does not come from the log, each found by a few hostile seeds."""

from __future__ import annotations

import pytest

from raftkv.testing.scenario import draw, run_seed

SEEDS = [seed for seed in range(100) if draw(seed).hostile][:6]

# The bug, and what the first violation may be.
FOUND = {
    # A forged command may also take the number of one of the node's own.
    "commands-not-judged": {"announced voters do vote", "no exception escapes"},
    "consensus-from-a-replicant": {
        "state-machine safety",
        "leader completeness",
        "log matching",
        "election safety",
    },
}


@pytest.mark.parametrize("bug", FOUND)
def test_what_the_table_of_permissions_keeps_out_is_seen(bug: str) -> None:
    for seed in SEEDS:
        result = run_seed(seed, seconds=10.0, bug=bug)
        if result.check:
            assert result.check in FOUND[bug], result.message
            return
    pytest.fail(f"{bug} was not found")
