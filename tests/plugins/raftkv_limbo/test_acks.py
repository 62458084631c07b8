"""Acknowledgements, approvals and vetoes: what counts, and what is harmless."""

from __future__ import annotations

import pytest

from raftkv_limbo.commands import Ack, Declare, RollBack, Veto
from raftkv_limbo.refusals import BadDeclaration, NotAMember, NotAValidator
from raftkv_limbo.views import rollback_of
from tests.plugins.raftkv_limbo.pure import LimboLog, put


def test_repeated_lower_and_late_acks_write_nothing() -> None:
    log = LimboLog()
    log.sync()
    log.sync()
    log.ack("n1", upto=2)
    digests = []
    for upto in (2, 1, 0):
        before = log.table("nodes")
        log.ack("n1", upto=upto)
        digests.append(log.table("nodes") == before)
    assert digests == [True, True, True]
    log.ack("n2", "n3")
    state = log.state
    log.ack("n1", "n2", "n3")
    assert log.state == state  # confirmed once: the index is of the first time


def test_an_ack_before_the_entry_counts_up_to_the_last_one() -> None:
    log = LimboLog()
    first = log.sync()
    for node in ("n1", "n2", "n3"):
        log.ack(node, upto=1_000)
    second = log.sync()
    assert (log.fate(first), log.fate(second)) == ("confirmed", "pending")
    assert {node.acked for node in log.table("nodes").values()} == {1}


def test_an_ack_of_something_rolled_back_revives_nothing() -> None:
    log = LimboLog()
    log.sync()
    log.send("n1", RollBack(1, 1, "why"))
    log.ack("n1", "n2", "n3")
    assert log.fate(1) == "rolled back"
    assert log.fate(log.sync()) == "pending"


def test_what_an_ended_life_held_does_not_count() -> None:
    log = LimboLog()
    log.sync()
    log.ack("n2", "n3")
    log.node_up("n3")  # it was restarted, and nobody had noticed its end
    log.ack("n1")
    assert log.fate(1) == "pending"
    log.ack("n3")
    assert log.fate(1) == "confirmed"
    log.sync()
    log.ack("n3")
    log.node_down("n3")
    assert "n3" not in log.table("nodes")


def test_only_nodes_acknowledge() -> None:
    log = LimboLog()
    for command in (Ack(1), Declare("eu"), Veto(1, "audit", "")):
        with pytest.raises(NotAMember):
            log.run(log.client(), "limbo", command)


# --- validators -----------------------------------------------------------------------------------


def audited(**more: int) -> LimboLog:
    """A quorum of one, and of two auditors, on n2 and n3."""
    log = LimboLog(quorum="1")
    log.set("quorum_validators", {"audit": 2, **more})
    for node in ("n2", "n3"):
        log.send(node, Declare("", ("audit",)))
    return log


def test_approvals_are_counted_besides_the_quorum() -> None:
    log = audited()
    log.sync()
    log.ack("n1", "n2", "n3")
    assert log.fate(1) == "pending"
    log.ack("n2", validators=("audit",))
    log.ack("n1", validators=("audit",))  # it has declared none
    assert log.fate(1) == "pending"
    log.ack("n3", validators=("audit",))
    assert log.fate(1) == "confirmed"


def test_approvals_go_with_the_declaration_and_with_the_life() -> None:
    log = audited()
    log.sync()
    log.ack("n2", "n3", upto=0, validators=("audit",))
    log.ack("n2", validators=("audit",))
    log.send("n2", Declare("eu", ()))
    log.send("n2", Declare("eu", ("audit",)))
    log.ack("n3", validators=("audit",))
    assert log.table("approvals") == {("audit", "n3"): 1}
    log.node_down("n3")
    assert log.table("approvals") == {}
    assert log.fate(1) == "pending"


def test_a_veto_rolls_back_from_there() -> None:
    log = audited()
    for _ in range(3):
        log.sync()
    assert log.send("n2", Veto(2, "audit", "too much")).verdict == "rolled back"
    assert [log.fate(p) for p in (1, 2, 3)] == ["pending", "rolled back", "rolled back"]
    run = rollback_of(log.view(), 3)
    assert run is not None
    assert (run.reason, run.node) == ("vetoed by audit on n2: too much", "n2")
    assert log.send("n3", Veto(2, "audit", "me too")).verdict == "rolled back"


def test_a_veto_loses_against_a_confirm() -> None:
    log = audited()
    log.sync()
    log.ack("n2", "n3", validators=("audit",))
    log.ack("n1")
    assert log.send("n2", Veto(1, "audit", "late")).verdict == "confirmed"
    assert log.fate(1) == "confirmed"


def test_a_veto_needs_the_setting_and_the_declaration() -> None:
    log = audited(stock=1)
    log.sync()
    for node, validator in (("n1", "audit"), ("n2", "stock"), ("n2", "other")):
        with pytest.raises(NotAValidator):
            log.send(node, Veto(1, validator, "no"))
    log.set("quorum_validators", {"stock": 1})
    with pytest.raises(NotAValidator):
        log.send("n2", Veto(1, "audit", "no"))
    assert log.fate(1) == "pending"


def test_a_veto_says_nothing_of_async_ones_and_of_what_is_not_there() -> None:
    log = audited()
    log.sync()
    behind = log.taken("n1", put("a", b"k"))
    assert log.send("n2", Veto(behind, "audit", "no")).verdict == "unknown"
    assert log.send("n2", Veto(99, "audit", "no")).verdict == "unknown"
    assert log.state.pending == 2


def test_a_requirement_that_goes_away_confirms() -> None:
    log = audited()
    log.sync()
    log.ack("n1")
    log.set("quorum_validators", {})
    assert log.fate(1) == "confirmed"


# --- declarations ---------------------------------------------------------------------------------


def test_a_declaration_is_sorted_and_replaces_the_former() -> None:
    log = LimboLog()
    log.sync()
    log.ack("n1")
    log.send("n1", Declare("eu", ("b", "a", "b")))
    node = log.table("nodes")["n1"]
    assert (node.acked, node.zone, node.validators) == (1, "eu", ("a", "b"))
    log.send("n1", Declare(""))
    node = log.table("nodes")["n1"]
    assert (node.acked, node.zone, node.validators) == (1, "", ())


@pytest.mark.parametrize(
    "declaration",
    [
        Declare("z" * 65),
        Declare("", ("v" * 65,)),
        Declare("", ("",)),
        Declare("", tuple(f"v{i}" for i in range(17))),
    ],
)
def test_a_declaration_is_bounded(declaration: Declare) -> None:
    log = LimboLog()
    with pytest.raises(BadDeclaration):
        log.send("n1", declaration)
    assert log.table("nodes") == {}
