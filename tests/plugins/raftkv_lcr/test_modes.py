"""The mode, its steps and epochs, who is an old node: on one state machine."""

from __future__ import annotations

import itertools

import pytest

from raftkv.errors import Refused
from raftkv.state import StateMachine
from raftkv_lcr import LCR
from raftkv_lcr.commands import (
    MODES,
    Announce,
    Announced,
    BadEpoch,
    Mode,
    ModeChanged,
    ModeMoved,
    ModeRow,
    ModeSwitched,
    NodeRow,
    NoOrigin,
    NotAdopted,
    NotAMember,
    OldNodes,
    Open,
    Registered,
    SwitchMode,
    WrongStep,
)
from raftkv_lcr.modes import effective_mode, mode_of, not_adopted, old_nodes
from tests.plugins.raftkv_lcr.one_log import Log

# How to get to each mode from the beginning.
WAYS: dict[Mode, tuple[Mode, ...]] = {
    "disabled": (),
    "migration": ("migration",),
    "dual": ("migration", "dual"),
    "enabled": ("migration", "enabled"),
}
# From -> to: whether it needs adoption. What is missing is no step.
STEPS = {
    ("disabled", "migration"): True,
    ("migration", "disabled"): True,
    ("migration", "dual"): True,
    ("migration", "enabled"): True,
    ("dual", "disabled"): True,
    ("dual", "migration"): True,
    ("dual", "enabled"): True,
    ("enabled", "migration"): False,
    ("enabled", "dual"): False,
}


def in_mode(mode: Mode) -> Log:
    """Two nodes that have announced themselves, and adopted for `mode`."""
    log = Log()
    log.announce("n1", "n2")
    for step in WAYS[mode]:
        log.switch(step)
        log.announce("n1", "n2")
    assert mode_of(log.view()).mode == mode
    return log


def olds(log: Log) -> list[str]:
    return old_nodes(log.view(), log.machine.members)


def test_disabled_is_where_everything_begins() -> None:
    log = Log()
    assert mode_of(log.view()) == effective_mode(log.view()) == ModeRow("disabled", 0)
    assert olds(log) == ["n1", "n2"]


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(MODES, 2)))
def test_each_step_is_allowed_or_names_one_that_is(before: Mode, after: Mode) -> None:
    log = in_mode(before)
    row = mode_of(log.view())
    if (before, after) in STEPS:
        answer = log.switch(after)
        index = log.machine.index
        assert answer == ModeSwitched(after, index, index)
        row = mode_of(log.view())
        assert (row.mode, row.epoch) == (after, index)
    else:
        with pytest.raises(WrongStep, match=f"from {before} to {after}: switch to migration first"):
            log.switch(after)
        assert mode_of(log.view()) == row
        assert (before, "migration") in STEPS


@pytest.mark.parametrize(("step", "needs"), list(STEPS.items()))
def test_a_step_waits_for_adoption_if_it_needs_it(step: tuple[Mode, Mode], needs: bool) -> None:
    before, after = step
    log = in_mode(before)
    # n2 starts anew, and announces a former epoch: it has not adopted for the present one.
    log.node_up("n2")
    log.send("n2", Announce(2, 0))
    late = not_adopted(log.view(), log.machine.members)
    assert late == ([] if mode_of(log.view()).epoch == 0 else ["n2"])
    if needs and late:
        with pytest.raises(NotAdopted, match=f"adopted for {before} yet on n2:"):
            log.switch(after)
        assert mode_of(log.view()).mode == before
        log.announce("n2")
    assert log.switch(after).mode == after


def test_a_dead_node_need_not_adopt() -> None:
    log = in_mode("migration")
    log.switch("dual")
    log.announce("n1")
    with pytest.raises(NotAdopted, match="n2"):
        log.switch("enabled")
    log.node_down("n2")
    assert log.switch("enabled").mode == "enabled"


def test_switching_to_the_present_mode_changes_nothing() -> None:
    log = in_mode("migration")
    row = mode_of(log.view())
    assert log.switch("migration") == ModeSwitched("migration", row.epoch, log.machine.index)
    assert mode_of(log.view()) == row


def test_a_switch_from_another_epoch_is_refused() -> None:
    log = in_mode("migration")
    row = mode_of(log.view())
    log.send("n1", SwitchMode("enabled", row.epoch))
    with pytest.raises(ModeMoved, match=f"it is enabled since epoch {log.machine.index}"):
        log.send("n1", SwitchMode("dual", row.epoch))
    # Asked for once more, what stands already is no mistake.
    assert log.send("n1", SwitchMode("enabled", row.epoch)).mode == "enabled"


def test_the_old_registry_cannot_be_switched_off_while_old_nodes_are_members() -> None:
    log = Log(("n1", "n2", "n3"))
    log.announce("n1", "n2")
    log.switch("migration")
    log.announce("n1", "n2")
    with pytest.raises(OldNodes, match="upgrade n3 first"):
        log.switch("enabled")
    assert log.switch("dual").mode == "dual"
    log.announce("n1", "n2")
    with pytest.raises(OldNodes):
        log.switch("enabled")
    log.node_down("n3")
    assert log.switch("enabled").mode == "enabled"


def test_who_opens_is_no_old_node_even_before_it_announces_itself() -> None:
    """Or its channels, which the log knows best, would be looked for in the old registry."""
    log = in_mode("enabled")
    log.node_up("n3")
    log.open("n3", "a")
    assert olds(log) == []
    assert not_adopted(log.view(), log.machine.members) == ["n3"]
    log.node_up("n2")
    log.adopt("n1", log.living("n2", "b", "d"))
    assert olds(log) == ["n2"]  # somebody else did that for it
    log.adopt("n2", log.living("n2", "b", "d"))
    assert olds(log) == []


def test_enabled_acts_as_migration_while_there_are_old_nodes() -> None:
    log = in_mode("enabled")
    row = mode_of(log.view())
    assert effective_mode(log.view()) == row
    log.node_up("n3")
    assert olds(log) == ["n3"]
    assert mode_of(log.view()) == row
    assert effective_mode(log.view()) == ModeRow("migration", row.epoch, row.serial)
    log.announce("n3")
    assert effective_mode(log.view()) == row
    # A restart is another life, which has announced nothing.
    log.node_up("n3")
    assert effective_mode(log.view()).mode == "migration"
    log.node_down("n3")
    assert effective_mode(log.view()) == row


def test_other_modes_act_as_they_are_with_old_nodes() -> None:
    for mode in ("disabled", "migration", "dual"):
        log = in_mode(mode)
        log.node_up("n3")
        assert effective_mode(log.view()).mode == mode


def test_announcing_tells_the_present_mode_and_never_goes_back() -> None:
    log = in_mode("migration")
    first = mode_of(log.view()).epoch
    log.switch("dual")
    row = mode_of(log.view())
    assert log.send("n1", Announce(2, first)) == Announced("dual", row.epoch, log.machine.index)
    nodes = log.view().table("nodes")
    assert nodes.get("n1") == NodeRow(1, 2, first)
    log.announce("n1")
    log.send("n1", Announce(2, first))
    assert nodes.get("n1") == NodeRow(1, 2, row.epoch)
    assert not_adopted(log.view(), log.machine.members) == ["n2"]


def test_announcements_that_cannot_be_true_are_refused() -> None:
    log = in_mode("migration")
    with pytest.raises(BadEpoch, match="present one"):
        log.send("n1", Announce(2, mode_of(log.view()).epoch + 1))
    with pytest.raises(NoOrigin):
        log.run(log.client(), "lcr", Announce(2, 0))


def test_a_node_of_protocol_1_stays_an_old_node() -> None:
    log = Log()
    log.send("n1", Announce(1, 0))
    assert olds(log) == ["n1", "n2"]


def test_what_a_life_announced_ends_with_it() -> None:
    log = in_mode("migration")
    log.node_up("n2")
    assert "n2" not in log.view().table("nodes")
    log.announce("n2")
    log.node_down("n2")
    assert "n2" not in log.view().table("nodes")
    assert olds(log) == []


def test_what_a_former_life_has_to_announce_is_not_said_by_the_next() -> None:
    """Its command did not leave it in time, and is sent again in the new life's session."""
    log = in_mode("migration")
    epoch = mode_of(log.view()).epoch
    former = log.machine.members["n2"].incarnation
    log.node_down("n2")
    log.node_up("n2")
    with pytest.raises(NotAMember, match=f"incarnation {former} of n2"):
        log.send("n2", Announce(2, epoch, former))
    assert olds(log) == ["n2"]
    log.send("n2", Announce(2, epoch, log.machine.members["n2"].incarnation))
    assert olds(log) == []


def test_any_session_may_switch() -> None:
    """An operator's command comes over the door, but a switch is nobody's own."""
    log = Log()
    assert log.run(log.client(), "lcr", SwitchMode("migration")).mode == "migration"


def test_all_switch_at_one_index() -> None:
    """In one entry: an opening before the switch is written, one behind it is not."""
    log = Log()
    first = Open("c", "a", None, None, 0, True, 0)
    second = Open("d", "a", None, None, 0, True, 0)
    session = log.sessions["n1"]
    outcomes = log.run_batch(session, "lcr", [first, SwitchMode("migration"), second])
    index = log.machine.index
    assert isinstance(outcomes[0], Registered)
    assert outcomes[1:] == [
        ModeSwitched("migration", index, index),
        ModeChanged("migration", index, index),
    ]


def test_modes_survive_a_snapshot() -> None:
    log = in_mode("dual")
    copy = StateMachine([LCR()])
    copy.restore(list(log.machine.freeze().slices()), log.machine.index)
    assert mode_of(copy.view("lcr")) == mode_of(log.view())
    assert old_nodes(copy.view("lcr"), copy.members) == []
    assert copy.digest() == log.digest()


def test_refused_steps_leave_no_trace() -> None:
    log = in_mode("migration")
    log.node_up("n3")
    rows = list(log.view().table("nodes").scan())
    with pytest.raises(Refused):
        log.switch("enabled")
    assert list(log.view().table("nodes").scan()) == rows
    assert mode_of(log.view()).mode == "migration"
