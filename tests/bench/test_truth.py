"""The ground truth: what it expects, whom it accuses, and whom it must not accuse."""

from __future__ import annotations

import pytest

from bench.schema import AUDIT_ANOMALIES
from bench.truth import Expectation, History, Race, audit_outcome, is_unknown, merged


def test_a_first_connect_finds_no_session_and_a_second_one_does() -> None:
    history = History("c")
    assert history.present is False
    history.connected("a", None)
    assert history.present is True
    history.connected("b", "a")
    assert history.present is True
    assert history.expectation() == Expectation("c", "b", (), ("b",))


def test_a_goodbye_ends_the_session() -> None:
    history = History("c")
    history.connected("a", None)
    history.disconnected("a", "ok")
    assert history.present is False
    assert history.expectation() == Expectation("c", None, (), ())


def test_a_refused_goodbye_changes_nothing() -> None:
    history = History("c")
    history.connected("a", None)
    history.disconnected("a", "no_leader")
    assert history.present is True
    assert history.owner == "a"


def test_a_late_goodbye_of_an_old_channel_does_not_end_the_session() -> None:
    history = History("c")
    history.connected("a", None)
    history.connected("b", "a")
    history.disconnected("a", "ok")
    assert history.present is True
    assert history.expectation() == Expectation("c", "b", (), ("b",))


def test_an_unknown_connect_leaves_a_first_session_open() -> None:
    history = History("c")
    history.connect_failed("a", "timeout")
    assert history.present is None
    assert history.expectation() == Expectation("c", None, ("a",), ())
    history.connected("b", None)
    assert history.present is True
    assert history.expectation() == Expectation("c", "b", (), ("b",))


def test_an_unknown_connect_over_a_session_leaves_it_open() -> None:
    history = History("c")
    history.connected("a", None)
    history.connect_failed("b", "timeout")
    assert history.present is None
    assert history.expectation() == Expectation("c", "a", ("b",), ("a",))
    history.connected("d", "b")
    assert history.expectation() == Expectation("c", "d", (), ("d",))


def test_a_refused_connect_changes_nothing() -> None:
    history = History("c")
    history.connect_failed("a", "outdated_late")
    assert history.present is False
    assert history.expectation() == Expectation("c", None, (), ())


def test_an_unknown_goodbye_leaves_the_next_answer_open() -> None:
    history = History("c")
    history.connected("a", None)
    history.disconnected("a", "timeout")
    assert history.present is None
    assert history.expectation() == Expectation("c", None, ("a",), ())


def test_a_channel_that_nobody_took_over_stays_alive() -> None:
    history = History("c")
    history.connected("a", None)
    history.connected("b", None)
    assert history.expectation().live == ("a", "b")


@pytest.mark.parametrize(
    ("outcome", "unknown"),
    [
        ("ok", False),
        ("timeout", True),
        ("no_leader", False),
        ("outdated_early", False),
        ("error:node_fault", True),
        ("error:stopped", False),
    ],
)
def test_only_what_may_have_happened_is_unknown(outcome: str, unknown: bool) -> None:
    assert is_unknown(outcome) is unknown


# Races -------------------------------------------------------------------------------------------


def test_the_end_of_a_race_is_the_end_of_its_chain() -> None:
    one, two = Race("c"), Race("c")
    one.connected("a", 1, None)
    two.connected("b", 2, "a")
    one.connected("d", 3, "b")
    expected = merged([one.facts(), two.facts()])
    assert expected == Expectation("c", "d", (), ("d",))


def test_two_ends_are_two_live_sessions() -> None:
    one, two = Race("c"), Race("c")
    one.connected("a", 1, None)
    one.connected("b", 2, "a")
    two.connected("d", 3, "a")
    expected = merged([one.facts(), two.facts()])
    assert expected.owner == "d"
    assert set(expected.live) == {"b", "d"}
    assert audit_outcome(expected, ["d"]) == "duplicate_session"


def test_an_unknown_connect_excuses_one_surplus_end_and_no_more() -> None:
    race = Race("c")
    race.connected("a", 1, None)
    race.connect_failed("t", "timeout")
    race.connected("b", 3, "t")
    excused = merged([race.facts()])
    assert audit_outcome(excused, ["b"]) == "ok"
    race.connected("d", 4, None)
    accused = merged([race.facts()])
    assert audit_outcome(accused, ["d"]) == "duplicate_session"


def test_a_race_that_nobody_won_leaves_nothing() -> None:
    race = Race("c")
    race.connect_failed("a", "overloaded")
    expected = merged([race.facts()])
    assert expected == Expectation("c", None, (), ())
    assert audit_outcome(expected, ["a"]) == "leaked_registration"


# Audits ------------------------------------------------------------------------------------------

HELD = Expectation("c", "b", (), ("b",))
GONE = Expectation("c", None, (), ())
OPEN = Expectation("c", "a", ("b",), ("a",))


@pytest.mark.parametrize(
    ("expected", "registered", "outcome"),
    [
        (HELD, ["b"], "ok"),
        (HELD, [], "lost_registration"),
        (HELD, ["a"], "wrong_owner"),
        (HELD, ["a", "b"], "leaked_registration"),
        (Expectation("c", "b", (), ("a", "b")), ["b"], "duplicate_session"),
        (Expectation("c", "b", (), ("a", "b")), ["a", "b"], "duplicate_session"),
        (Expectation("c", "b", (), ("a", "b")), [], "lost_registration"),
        (GONE, [], "ok"),
        (GONE, ["a"], "leaked_registration"),
        (OPEN, ["a"], "ok"),
        (OPEN, ["b"], "ok"),
        (OPEN, [], "ok"),
        (OPEN, ["a", "b"], "duplicate_session"),
        (OPEN, ["x"], "wrong_owner"),
        (Expectation("c", None, ("a",), ()), ["a"], "ok"),
        (Expectation("c", None, ("a",), ()), [], "ok"),
        (Expectation("c", None, ("a",), ()), ["x"], "leaked_registration"),
    ],
)
def test_what_an_audit_finds(expected: Expectation, registered: list[str], outcome: str) -> None:
    assert audit_outcome(expected, registered) == outcome


def test_every_kind_of_anomaly_can_be_found() -> None:
    found = {
        audit_outcome(expected, registered)
        for expected in (HELD, GONE, Expectation("c", "b", (), ("a", "b")))
        for registered in ([], ["a"], ["b"])
    }
    assert found == {"ok", *AUDIT_ANOMALIES}
