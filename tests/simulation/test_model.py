"""The exhaustive small models: no state breaks a promise, and every injected bug is found."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import pytest

from raftkv.testing.model.__main__ import MODELS, main
from raftkv.testing.model.replication import Bounds, Replication
from raftkv.testing.model.search import Broken, search

# Small enough for a test; tools/model walks further.
NARROW = Bounds(terms=2, changes=2, crashes=0, entries=3)
BUGS = [(name, bug) for name, listed in MODELS.items() for bug in listed.bugs]


@pytest.mark.parametrize(("name", "bug"), BUGS)
def test_an_injected_bug_is_found(name: str, bug: str) -> None:
    listed = MODELS[name]
    outcome = search(listed.make(listed.bounds, bug))
    assert outcome.violation is not None
    assert outcome.violation.path


@pytest.mark.parametrize("name", ["epochs", "verdicts", "formats"])
def test_a_small_model_keeps_its_promises_in_every_state(name: str) -> None:
    outcome = search(MODELS[name].make(None, ""))
    assert outcome.violation is None
    assert outcome.complete
    assert outcome.states > 10


def test_replication_keeps_its_promises_within_narrow_bounds() -> None:
    outcome = search(Replication(NARROW))
    assert outcome.violation is None
    assert outcome.complete
    assert outcome.states > 10_000


def test_a_replicant_becomes_a_core_within_these_bounds() -> None:
    """Else the check of its base proves nothing."""

    class UntilPromoted(Replication):
        def broken(self, state: object) -> str:
            return "promoted" if state.nodes[3].base else ""  # type: ignore[attr-defined]

    outcome = search(UntilPromoted(NARROW))
    assert outcome.violation is not None


class Counting:
    """Two counters up to 3 in any order; `limit` is the sum that must not be reached."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def first(self) -> tuple[int, int]:
        return (0, 0)

    def steps(self, state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        one, other = state
        if state == (3, 3) and self.limit == 7:
            raise Broken("both are full")
        if one < 3:
            yield "left", (one + 1, other)
        if other < 3:
            yield "right", (one, other + 1)

    def broken(self, state: tuple[int, int]) -> str:
        return "too much" if sum(state) >= self.limit else ""

    def canonical(self, state: tuple[int, int]) -> Hashable:
        return tuple(sorted(state))


def test_equal_states_are_visited_once_and_the_path_is_a_shortest_one() -> None:
    everything = search(Counting(10))
    assert (everything.states, everything.complete) == (10, True)
    found = search(Counting(4))
    assert found.violation is not None
    assert found.violation.what == "too much"
    assert len(found.violation.path) == 4


def test_a_step_that_cannot_be_taken_is_a_violation_of_the_state_before() -> None:
    found = search(Counting(7))
    assert found.violation is not None
    assert found.violation.what == "both are full"
    assert len(found.violation.path) == 6


def test_a_walk_that_is_cut_short_does_not_count_as_complete() -> None:
    assert not search(Counting(10), states_max=4).complete


def test_the_command_prints_the_number_of_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["epochs"]) == 0
    assert "epochs: 31 states" in capsys.readouterr().out


def test_the_command_fails_when_a_walk_was_not_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", "--states", "100"]) == 1
    assert "not complete" in capsys.readouterr().out


def test_an_unknown_model_or_bug_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["no-such-model"], ["epochs", "--bug", "no-such-bug"]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert "no-such" in capsys.readouterr().err
