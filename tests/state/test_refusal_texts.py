"""From core format 2 on the texts of refusals are no part of the state."""

from __future__ import annotations

import msgspec
import pytest

from raftkv.errors import InvalidSetting, Refused
from raftkv.state import Envelope, OpenSession, SetSetting, SettleOutcome

from .harness import Driver, copy_of, encode


def driven(core_format: int) -> Driver:
    driver = Driver()
    if core_format > 1:
        driver.machine.raise_format(1, msgspec.msgpack.encode(core_format))
    driver.start("n1")
    refused = driver.send(SetSetting("bank", "n2", None), plugin="core")
    assert isinstance(refused, InvalidSetting)
    assert "n2" in str(refused)
    return driver


def reworded(driver: Driver) -> None:
    """As another version would have worded it."""
    for session in driver.machine._sessions.by_id.values():
        for seq, outcome in session.done.items():
            if isinstance(outcome, Refused):
                session.done[seq] = type(outcome)("in other words", *outcome.args[1:])


@pytest.mark.parametrize("core_format", [1, 2])
def test_two_versions_may_word_a_refusal_differently(core_format: int) -> None:
    one, other = driven(core_format), driven(core_format)
    assert one.machine.digest() == other.machine.digest()
    reworded(other)
    same = one.machine.digest() == other.machine.digest()
    assert same is (core_format == 2)


def test_after_a_restart_the_reader_words_it() -> None:
    driver = driven(2)
    again = copy_of(driver.machine).recall(driver.session, driver.seq, SetSetting)
    assert isinstance(again, InvalidSetting)
    assert str(again) == "The setting does not exist, or its own check refused the value."
    assert copy_of(driver.machine).digest() == driver.machine.digest()


def test_the_answer_about_a_number_has_the_code_only() -> None:
    one, other = driven(2), driven(2)
    reworded(other)
    found = []
    for driver in (one, other):
        report = driver.send(SettleOutcome(driver.session, driver.seq), plugin="core")
        refusal = driver.machine.read_report(report, None)
        assert isinstance(refusal, InvalidSetting)
        found.append(report)
    assert found[0] == found[1]
    assert one.machine.digest() == other.machine.digest()


def test_what_a_client_session_counts_does_not_depend_on_a_restart_before_the_raise() -> None:
    driver = Driver()
    driver.start("n1")
    (opened,) = driver.batch([Envelope(0, 5, 0, "core", encode(OpenSession(5)))])
    for seq in range(1, 9):
        command = encode(SetSetting("bank", "n" * seq, None))
        (refused,) = driver.batch([Envelope(opened.session, seq, 0, "core", command)])
        assert isinstance(refused, InvalidSetting)
    live, restored_before = driver.machine, copy_of(driver.machine)
    for machine in (live, restored_before):
        machine.raise_format(machine.index + 1, msgspec.msgpack.encode(2))
    counted = {
        machine._sessions.by_id[opened.session].bytes
        for machine in (live, restored_before, copy_of(live))
    }
    assert len(counted) == 1
    assert counted != {0}
