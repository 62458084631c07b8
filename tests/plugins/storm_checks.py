"""What is asked of the storms of every plugin: they find nothing, repeat, and see planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

Run = Callable[..., Any]
"""`run_storm` of a plugin: (seed, seconds=, bug=) -> its result."""


def finds_nothing(run: Run, seed: int, seconds: float, mark: str, operations: int = 5) -> None:
    """A storm in which something happened (`mark`), under faults, and nothing was wrong."""
    result = run(seed, seconds=seconds)
    assert not result.check, result.message
    assert result.operations > operations
    assert result.marks[mark] > 0
    assert sum(result.faults.values()) > 0


def takes_the_same_steps(run: Run, seed: int, seconds: float) -> None:
    """A seed replays."""
    first, second = run(seed, seconds=seconds), run(seed, seconds=seconds)
    assert first.fingerprint
    assert first.fingerprint == second.fingerprint
    assert first.marks == second.marks


def sees(run: Run, bug: str, check: str, seeds: Iterable[int], seconds: float) -> None:
    """The first of these seeds that sees the planted bug sees it by this check."""
    for seed in seeds:
        found = run(seed, seconds=seconds, bug=bug)
        if found.check:
            assert found.check == check, found.message
            assert f"seed {seed} " in found.message
            return
    pytest.fail(f"{bug} was not found")


def each_can_be_planted(
    bugs: Mapping[str, Any],
    planted: Callable[[str], AbstractContextManager[object]],
    quick: Iterable[str],
    least: int,
) -> None:
    """What the bugs patch is there, and there are at least so many of them."""
    assert len(bugs) >= least
    assert set(quick) <= set(bugs)
    for name, bug in bugs.items():
        assert bug.what
        with planted(name):
            pass
