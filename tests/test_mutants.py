"""Every rule has a test that fails when the rule's fix is taken out."""

from __future__ import annotations

import gc

import pytest

from tests.mutants import MUTANTS


# A test that fails half-way leaves coroutines behind that nobody will end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_without_the_fix_the_rules_test_fails(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.patch(), pytest.raises((Exception, pytest.fail.Exception)):
        mutant.test()
    gc.collect(1)


def test_every_rule_has_a_mutant() -> None:
    assert {mutant.rule for mutant in MUTANTS.values()} == set(range(1, 32))
