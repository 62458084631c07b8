"""From core format 2 on the texts of refusals are no part of the state."""

from __future__ import annotations

import inspect

import msgspec
import pytest

import raftkv_cluster_call.refusals
import raftkv_lcr.commands
import raftkv_limbo.refusals
import raftkv_subscriptions.refusals
import raftkv_txqueue.refusals
from raftkv.errors import InvalidSetting, PluginFault, Refused
from raftkv.kv.commands import LimitExceeded
from raftkv.kv.keyspace import KV
from raftkv.kv.wordings import WORDINGS
from raftkv.state import Envelope, OpenSession, SetSetting, SettleOutcome
from raftkv.state.refusals import Refusals

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


# What each class keeps

EXAMPLES = {
    "key_bytes_max": ((9, 8), "a key of 9 bytes exceeds key_bytes_max = 8"),
    "limit": ((-1,), "limit = -1 must be 0 (no limit) or more"),
    "rows_max": ((5,), "the command touches more than rows_max = 5 keys: split it"),
    "txn_ops_max": ((9, 8), "a transaction with 9 operations exceeds txn_ops_max = 8"),
    "of a later release": ((1, 2), "of a later release was exceeded (1, 2)"),
}


def kv_refusals() -> Refusals:
    refusals = Refusals()
    refusals.add("kv", KV.refusals)
    return refusals


@pytest.mark.parametrize("limit", list(EXAMPLES))
def test_a_limit_is_kept_by_name_and_numbers_and_worded_by_the_reader(limit: str) -> None:
    numbers, text = EXAMPLES[limit]
    refusals = kv_refusals()
    raised = LimitExceeded.of(limit, *numbers)
    live = refusals.kept(raised, texts=False)
    data = refusals.encode(live, texts=False)
    assert msgspec.msgpack.decode(data) == ["kv", "limit_exceeded", ["", limit, *numbers]]
    again = refusals.decode(data)
    assert str(raised) == str(live) == str(again) == text
    assert refusals.encode(again, texts=False) == data


def test_at_core_format_1_a_limit_is_kept_as_release_0_1_0_keeps_it() -> None:
    """Before and after a restart, so that nodes agree after the raise as well."""
    refusals = kv_refusals()
    text = "a value of 3 bytes exceeds value_bytes_max = 2"
    live = refusals.kept(LimitExceeded.of("value_bytes_max", 3, 2), texts=True)
    assert live.args == (text,)
    data = refusals.encode(live, texts=True)
    assert msgspec.msgpack.decode(data) == ["kv", "limit_exceeded", [text]]
    raised = refusals.encode(live, texts=False)
    assert raised == refusals.encode(refusals.decode(data), texts=False)
    assert str(live) == text


def test_every_wording_takes_its_numbers() -> None:
    for limit, wording in WORDINGS.items():
        numbers = range(wording.count("{}"))
        assert str(LimitExceeded.of(limit, *numbers)) == wording.format(*numbers)


@pytest.mark.parametrize("core_format", [1, 2])
def test_a_fault_of_a_plugin_keeps_no_name_of_an_exception(core_format: int) -> None:
    refusals, texts = Refusals(), core_format == 1
    fault = refusals.kept(PluginFault("bank", "KeyError"), texts=texts)
    assert fault.args == ("bank", "KeyError"), "its caller sees it"
    args = msgspec.msgpack.decode(refusals.encode(fault, texts=texts))[2]
    assert args == ["bank", "KeyError" if texts else ""]
    again = refusals.decode(refusals.encode(fault, texts=False))
    assert str(again) == "the plugin bank has raised an exception; the command was undone"


def test_no_refusal_of_a_plugin_keeps_a_sentence() -> None:
    """Every class that takes a text: the name of its parameter shows it, as its docstring does."""
    classes = (
        *raftkv_cluster_call.refusals.REFUSALS,
        *raftkv_lcr.commands.REFUSALS,
        *raftkv_limbo.refusals.REFUSALS,
        *raftkv_subscriptions.refusals.REFUSALS,
        *raftkv_txqueue.refusals.REFUSALS,
    )
    assert len(classes) > 60
    for cls in classes:
        names = list(inspect.signature(cls.__init__).parameters)[1:]
        places = {place for place, name in enumerate(names) if name in ("why", "text", "reason")}
        assert places <= set(cls.text_places), cls


def test_a_text_at_another_place_is_left_out_alone() -> None:
    refusals = Refusals()
    refusals.add("txqueue", raftkv_txqueue.refusals.REFUSALS)
    raised = raftkv_txqueue.refusals.IllegalState("1:ab:", "it is prepared")
    live = refusals.kept(raised, texts=False)
    assert str(live) == "this cannot be done to branch 1:ab: now: it is prepared"
    again = refusals.decode(refusals.encode(live, texts=False))
    assert again.args == ("1:ab:", "")
    assert str(again).startswith("this cannot be done to branch 1:ab: now: its state or")
