"""The checks checked: each planted bug must be seen by the simulation, and only the bug.

Only those bugs that a few short seeds find run here; docs/internals/planted-bugs.md has all of
them, with the seeds that each needs at full length (`tools/simulate --planted`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftkv.raft.wal import Wal
from raftkv.testing.patching import around, replaced
from raftkv.testing.planted import BUGS, planted
from raftkv.testing.scenario import run_seed

ROOT = Path(__file__).parents[2]

SECONDS = 8.0
# Chosen so that most bugs fall to the first; a change of the engine may need other ones.
SEEDS = (0, 4, 5, 7)

# The bug, and the checks that may be the first to see it.
QUICK = {
    "acknowledge-before-sync": {"promise on disk"},
    "apply-before-commit": {"state-machine safety"},
    "count-late-votes": {"election by a majority"},
    "forget-vote": {"term and vote on disk"},
    "lose-tail": {"acknowledged entries on disk"},
    "no-exactly-once": {"exactly once", "linearizable", "refused writes stay away"},
    "no-fsync": {"promise on disk"},
    "read-from-follower": {"linearizable"},
    "term-in-memory": {"promise on disk"},
    "truncate-matching": {"state-machine safety"},
    "lease-forgets-keep-alive": {"leases live as promised"},
    "watch-cuts-transaction": {"watch promises"},
}


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found_within_a_few_short_seeds(bug: str) -> None:
    for seed in SEEDS:
        # What comes twice by itself tells sooner whether it is applied twice.
        found = run_seed(seed, seconds=SECONDS, bug=bug, messages=bug == "no-exactly-once")
        if found.check:
            assert found.check in QUICK[bug], found.message
            assert f"seed {seed} " in found.message
            return
    pytest.fail(f"{bug} was not found")


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_bug_the_same_seeds_find_nothing(seed: int) -> None:
    result = run_seed(seed, seconds=SECONDS)
    assert not result.check, result.message
    assert result.acknowledged > 100
    assert sum(result.faults.values()) > 0


def test_there_are_at_least_twelve_bugs_each_with_a_limit() -> None:
    assert len(BUGS) >= 12
    assert set(QUICK) <= set(BUGS)
    assert all(bug.what and bug.seeds_max >= 1 for bug in BUGS.values())


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_bug_is_gone_when_its_time_is_over(bug: str) -> None:
    owners = _patched_places()
    before = [vars(owner)[name] for owner, name in owners]
    with planted(bug):
        during = [vars(owner)[name] for owner, name in owners]
    assert [vars(owner)[name] for owner, name in owners] == before
    assert during != before


def _patched_places() -> list[tuple[object, str]]:
    """Every place that some bug replaces, found by watching them being planted."""
    from raftkv.testing import patching

    places: list[tuple[object, str]] = []
    real = patching.replaced

    def spy(owner: object, name: str, replacement: object) -> object:
        places.append((owner, name))
        return real(owner, name, replacement)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(patching, "replaced", spy)
        for name, module in list(sys.modules.items()):
            if name.startswith("raftkv.testing.") and vars(module).get("replaced") is real:
                monkeypatch.setattr(module, "replaced", spy)
        for bug in BUGS:
            with planted(bug):
                pass
    return places


def test_a_renamed_function_is_an_error_not_a_check_that_never_runs() -> None:
    with pytest.raises(AttributeError, match="renamed"):
        around(Wal, "no_such_method", lambda original: original)
    with pytest.raises(AttributeError, match="renamed"), replaced(Wal, "no_such_method", None):
        pytest.fail("entered")


class Moves:
    """Its function got a parameter after a bug had been written for it."""

    def mark(self, sub: str, before: int = 0) -> int:
        return before


@pytest.mark.parametrize("replacement", [lambda self, sub: 0, lambda self, sub, before, more: 0])
def test_other_parameters_are_an_error_not_a_bug_that_is_found(replacement: Any) -> None:
    with pytest.raises(TypeError, match=r"Moves\.mark takes other parameters"):
        with replaced(Moves, "mark", replacement):
            pytest.fail("entered")
    for fits in (lambda *given: 1, lambda me, name, before=7: 1):
        with replaced(Moves, "mark", fits):
            assert Moves().mark("s") == 1
    assert Moves().mark("s", 2) == 2


def test_what_an_observer_has_wrapped_can_be_replaced() -> None:
    def observed(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: original(*given, **named)

    with around(Moves, "mark", observed), replaced(Moves, "mark", lambda me, name: 1):
        assert Moves().mark("s") == 1


def test_the_table_has_a_row_for_every_bug_and_no_other() -> None:
    page = (ROOT / "docs/internals/planted-bugs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(BUGS)
