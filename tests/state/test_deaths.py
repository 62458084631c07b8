"""A death verdict takes effect only in an entry of the term in which it was reached."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftkv.errors import SessionExpired, StaleIncarnation, UnknownCommand
from raftkv.state.core import DeclareDead, NodeDown

from .harness import Close, Driver, copy_of


def started(core_format: int = 2, term: int = 7) -> Driver:
    """Nodes n1 and n2 are up; the next entries are of this term."""
    driver = Driver()
    driver.start("n1")
    driver.start("n2")
    if core_format > 1:
        index = driver.machine.index + 1
        driver.machine.raise_format(index, msgspec.msgpack.encode(core_format))
    driver.term = term
    return driver


def test_in_an_entry_of_its_term_it_ends_the_incarnation_and_the_session() -> None:
    driver = started()
    assert driver.send(DeclareDead("n1", 1, 7), "core").incarnation == 2
    member = driver.machine.members["n1"]
    assert (member.up, member.incarnation, member.started_ms) == (False, 2, driver.now)
    assert driver.machine.session_count == 1
    assert isinstance(driver.send(DeclareDead("n1", 1, 7), "core"), StaleIncarnation)


@pytest.mark.parametrize("term", [0, 1, 6, 8])
def test_in_an_entry_of_another_term_it_is_passed_over(term: int) -> None:
    driver = started()
    before = driver.machine.members["n1"]
    assert driver.send(DeclareDead("n1", 1, term), "core") is None
    assert driver.machine.members["n1"] == before
    assert driver.machine.session_count == 2


def test_the_session_goes_on_when_it_is_passed_over() -> None:
    driver = started()
    driver.send(DeclareDead("n2", 1, 6), "core")
    assert not isinstance(driver.send(Close("a")), SessionExpired)


def test_every_entry_of_a_log_has_its_own_term() -> None:
    driver = started()
    driver.send(DeclareDead("n1", 1, 6), "core")
    driver.term = 8
    assert driver.send(DeclareDead("n1", 1, 7), "core") is None
    assert driver.send(DeclareDead("n1", 1, 8), "core") is not None


def test_what_applies_the_entries_later_comes_to_the_same_state() -> None:
    """After a restart, or on a replicant: from a snapshot or from the log, terms included."""
    driver = started()
    copied = copy_of(driver.machine)
    verdicts = [(7, 6), (7, 8), (8, 7), (9, 9)]
    for driver.term, term in verdicts:
        driver.send(DeclareDead("n1", 1, term), "core")
    for (term, _), body in zip(verdicts, driver.bodies[-len(verdicts) :], strict=True):
        assert body is not None
        copied.apply(copied.index + 1, body, term)
    assert not copied.members["n1"].up
    assert copied.digest() == driver.machine.digest()


def test_a_verdict_without_a_term_is_refused_from_core_format_2_on() -> None:
    driver = started()
    assert isinstance(driver.send(NodeDown("n1", 1), "core"), UnknownCommand)
    assert driver.machine.members["n1"].up


def test_core_format_1_knows_only_the_one_without() -> None:
    class Unheard(msgspec.Struct, frozen=True, array_like=True, tag="never_heard_of"):
        name: str
        incarnation: int
        term: int

    digests = []
    for kind in (DeclareDead, Unheard):
        driver = started(core_format=1)
        command: Any = kind("n1", 1, 7)
        assert isinstance(driver.send(command, "core"), UnknownCommand)
        assert driver.machine.members["n1"].up
        assert driver.send(NodeDown("n1", 1), "core").incarnation == 2
        digests.append(driver.machine.digest())
    assert digests[0] == digests[1]
