"""Reads of the past beside compactions, in the simulated world."""

from __future__ import annotations

import dataclasses

import pytest

from raftkv.testing.scenario import Result, draw, run_seed

SEED = 2


def run(bug: str | None = None) -> Result:
    return run_seed(SEED, scenario=dataclasses.replace(draw(SEED), past=True), bug=bug)


def test_answers_are_what_was_and_compacted_revisions_are_refused() -> None:
    result = run()
    assert not result.check, result.message
    for mark in ("read of the past", "read of the past refused", "read of the past ended"):
        assert result.marks[mark] > 3, mark


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        ("past-read-checked-once", "no exception escapes"),
        ("past-read-goes-back-too-far", "reads of the past"),
    ],
)
def test_an_injected_bug_is_found(bug: str, check: str) -> None:
    assert run(bug).check == check
