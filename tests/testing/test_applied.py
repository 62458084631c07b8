"""What nodes apply at one index is compared, within an epoch and where epochs share the log."""

from __future__ import annotations

import pytest

from raftkv.testing.applied import AppliedFacts


class Disagreed(Exception):
    """What a violation raises here."""


def violated(check: str, what: str) -> None:
    raise Disagreed(f"{check}: {what}")


@pytest.fixture
def facts() -> AppliedFacts:
    """Two nodes have applied 1 to 5, then the log was forked behind 3."""
    facts = AppliedFacts(violated)  # type: ignore[arg-type]
    for index in range(1, 6):
        facts.applied("core1", 0, index, 100 + index)
        facts.reached("core1", 0, index, f"state {index}")
    facts.fork(3)
    return facts


def test_the_new_epoch_shares_the_log_up_to_the_fork(facts: AppliedFacts) -> None:
    facts.applied("core3", 1, 3, 103)
    with pytest.raises(Disagreed, match="core3 applies something else at index 3"):
        facts.applied("core3", 1, 3, 999)
    with pytest.raises(Disagreed, match="core3 has another state at index 3"):
        facts.reached("core3", 1, 3, "another")


def test_behind_the_fork_each_epoch_has_entries_of_its_own(facts: AppliedFacts) -> None:
    facts.applied("core3", 1, 4, 204)
    facts.reached("core3", 1, 4, "another")
    facts.applied("replicant1", 0, 4, 104)
    with pytest.raises(Disagreed, match="replicant1 applies something else at index 4"):
        facts.applied("replicant1", 0, 4, 204)
    with pytest.raises(Disagreed, match="core2 applies something else at index 4"):
        facts.applied("core2", 1, 4, 104)


def test_two_forks(facts: AppliedFacts) -> None:
    facts.applied("core3", 1, 4, 204)
    facts.fork(4)
    with pytest.raises(Disagreed):
        facts.applied("core2", 2, 4, 104)
    facts.applied("core2", 2, 4, 204)
    facts.applied("core2", 2, 3, 103)
    facts.applied("core2", 2, 5, 305)
