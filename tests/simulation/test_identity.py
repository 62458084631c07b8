"""Certificates for replicants, copied directories, what members and nodes leave in the state."""

from __future__ import annotations

import pytest

from raftkv.testing.scenario import Scenario, draw, run_seed

SECONDS = 10.0


def seeds(what: str, most: int, members: bool | None = None) -> list[int]:
    def fits(scenario: Scenario) -> bool:
        return bool(getattr(scenario, what, False) or getattr(scenario.more, what, False))

    drawn = {seed: draw(seed, members=members) for seed in range(200)}
    found = [seed for seed, each in drawn.items() if fits(each) and not each.more.charged]
    assert found, what
    return found[:most]


@pytest.mark.parametrize(
    ("what", "most", "mark"),
    [
        ("copied", 3, "second process refused"),
        # A replicant with a certificate for one.
        ("hostile", 2, "member call tried"),
    ],
)
def test_what_has_no_right_to_a_name_changes_nothing(what: str, most: int, mark: str) -> None:
    met = 0
    for seed in seeds(what, most):
        result = run_seed(seed, seconds=SECONDS)
        assert not result.check, result.message
        met += result.marks[mark]
    assert met > 0


# The bug, what a scenario must have, and what the first violation may be; any, if none is given:
# who changes the members at will breaks whatever comes first.
FOUND: dict[str, tuple[str, set[str]]] = {
    "member-calls-for-replicants": ("hostile", set()),
    "processes-not-told-apart": ("copied", {"one process under a raft id", "leases never overlap"}),
    "frozen-view-kept": ("cores", {"progress"}),
    "gone-members-count": ("upgraded", {"progress"}),
    "refusal-texts-are-state": ("cores", {"equal states agree", "equal digests"}),
}


@pytest.mark.parametrize("bug", FOUND)
def test_an_injected_bug_is_found(bug: str) -> None:
    what, checks = FOUND[bug]
    members = True if bug == "gone-members-count" else None
    for seed in seeds(what, 20, members):
        result = run_seed(seed, seconds=SECONDS, bug=bug, members=members)
        if result.check:
            assert not checks or result.check in checks, result.message
            return
    pytest.fail(f"{bug} was not found")
