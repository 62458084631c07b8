"""The checks of connect storms, checked: what is right passes, and each wrong is found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftkv_lcr.commands import (
    Adopt,
    Ahead,
    AheadAt,
    Announce,
    Announced,
    Channel,
    Claim,
    Cleaned,
    Cleanup,
    Entry,
    InProgress,
    ModeChanged,
    Open,
    OutdatedLate,
    Registered,
    Restart,
    Unregister,
    Unregistered,
)
from raftkv_lcr.testing.storm_check import (
    Decision,
    Ending,
    Registry,
    Story,
    anomalies,
    check_announcement,
    check_answer,
    check_decision,
    check_deletion,
    check_ending,
    check_handovers,
    check_older,
    named_clients,
)
from raftkv_lcr.testing.storm_order import TimeAndTicket, check_further_attempts, newer

INDEX, EPOCH = 100, 7


def row(channel: str, ticket: int, node: str = "n1", incarnation: int = 1, **more: Any) -> Channel:
    return Channel("c", channel, node, incarnation, more.pop("version", ticket), ticket, **more)


OLD, NEW, THIRD = row("old", 10), row("new", 20, "n2"), row("third", 30, "n3")


def entry(owner: Channel, claim: Channel | None = None, *, present: bool = False) -> Entry:
    return Entry(owner, present, None if claim is None else Claim(claim, 0))


def open_(
    predecessor: Channel | None, *, resume: bool = True, epoch: int = EPOCH, clean: bool = False
) -> Open:
    return Open("c", "new", predecessor, None, 20, resume, epoch, clean)


def decide(
    command: Any, result: Any, before: Entry | None, after: Entry | None, **more: Any
) -> Decision:
    fields: dict[str, Any] = {
        "origin": ("n2", 1),
        "lives": {"n1": 1, "n2": 1, "n3": 1},
        "epoch": EPOCH,
        "serial": 40,
        **more,
    }
    return Decision(
        index=INDEX,
        command=command,
        before={"c": before},
        after={"c": after},
        result=result,
        **fields,
    )


def registered(
    channel: Channel, over: Channel | None, *, present: bool | None = None
) -> Registered:
    resumed = over is not None if present is None else present
    return Registered(channel, over, resumed, False, INDEX)


TOOK_OVER = decide(open_(OLD), registered(NEW, OLD), entry(OLD), entry(NEW, present=True))
RIGHT = [
    TOOK_OVER,
    decide(open_(None), registered(NEW, None), None, entry(NEW)),
    decide(open_(OLD, resume=False), registered(NEW, OLD, present=False), entry(OLD), entry(NEW)),
    decide(
        open_(None),
        registered(NEW, None),
        entry(row("dead", 50, "n1", 0)),
        entry(NEW),
    ),
    decide(open_(None, clean=True), registered(NEW, OLD, present=False), entry(OLD), entry(NEW)),
    decide(open_(None), Restart(OLD, NEW, INDEX), entry(OLD), entry(OLD, NEW)),
    decide(open_(OLD), Ahead(None, 20, INDEX), None, None),
    decide(open_(OLD), OutdatedLate(THIRD, INDEX), entry(THIRD), entry(THIRD)),
    decide(open_(OLD), OutdatedLate(THIRD, INDEX), entry(OLD, THIRD), entry(OLD, THIRD)),
    decide(open_(OLD), InProgress(THIRD, INDEX), entry(OLD, THIRD), entry(OLD, THIRD)),
    decide(open_(OLD, epoch=3), ModeChanged("dual", EPOCH, INDEX), entry(OLD), entry(OLD)),
    decide(open_(OLD), None, entry(OLD), entry(OLD), refusal="BadTicket"),
    decide(open_(None), Registered(NEW, None, False, True, INDEX), entry(NEW), entry(NEW)),
    decide(Adopt(NEW, True), registered(NEW, None, present=True), None, entry(NEW, present=True)),
    decide(Adopt(NEW, True), OutdatedLate(OLD, INDEX), entry(OLD), entry(OLD)),
    decide(Unregister(OLD), Unregistered(True, INDEX), entry(OLD, NEW), None),
    decide(Unregister(NEW), Unregistered(True, INDEX), entry(OLD, NEW), entry(OLD)),
    decide(Cleanup("n1", 0, ("c",), True), Cleaned(1, INDEX), entry(row("x", 1, "n1", 0)), None),
]


@pytest.mark.parametrize("decision", RIGHT)
def test_right_decisions_pass(decision: Decision) -> None:
    assert check_decision(decision) == []


WRONG = {
    "the older": decide(
        open_(THIRD), registered(NEW, THIRD), entry(THIRD), entry(NEW, present=True)
    ),
    "won over": decide(
        open_(OLD),
        registered(row("new", 20, "n2", version=4, supplied=True), OLD),
        entry(row("old", 10, version=5, supplied=True)),
        entry(row("new", 20, "n2", version=4, supplied=True)),
    ),
    "Unregister deleted": decide(Unregister(OLD), Unregistered(True, INDEX), entry(NEW), None),
    "whose life goes on": decide(
        Cleanup("n1", 1, ("c",), True), Cleaned(1, INDEX), entry(OLD), None
    ),
    "Cleanup deleted": decide(Cleanup("n1", 0, ("c",), True), Cleaned(1, INDEX), entry(OLD), None),
    "Open deleted": decide(open_(OLD), Ahead(None, 20, INDEX), entry(OLD), None),
    "and answered": decide(open_(OLD), OutdatedLate(OLD, INDEX), entry(OLD), entry(NEW)),
    "whose life is over": decide(
        open_(None), registered(NEW, None), None, entry(NEW), lives={"n1": 1}
    ),
    "displaced": decide(
        Adopt(NEW, True), registered(NEW, None, present=True), entry(OLD), entry(NEW, present=True)
    ),
    "the table holds": decide(open_(OLD), registered(NEW, OLD), entry(OLD), entry(OLD)),
    "registered as if at index": decide(
        open_(None), Registered(NEW, None, False, False, INDEX - 1), None, entry(NEW)
    ),
    "kept as": decide(open_(OLD), registered(NEW, OLD), entry(OLD), entry(NEW)),
    "for epoch 3": decide(open_(None, epoch=3), registered(NEW, None), None, entry(NEW)),
    "for ('n3', 1)": decide(open_(None), registered(NEW, None), None, entry(NEW), origin=("n3", 1)),
    "repeated": decide(open_(None), Registered(NEW, None, False, True, INDEX), None, entry(NEW)),
    "the owner was": decide(open_(OLD), registered(NEW, None), entry(OLD), entry(NEW)),
    "having named": decide(open_(None), registered(NEW, OLD), entry(OLD), entry(NEW, present=True)),
    "session present True over": decide(
        open_(OLD, resume=False), registered(NEW, OLD), entry(OLD), entry(NEW, present=True)
    ),
    "True over Channel": decide(
        open_(OLD, clean=True), registered(NEW, OLD), entry(OLD), entry(NEW, present=True)
    ),
    "with the answer": decide(open_(OLD), Ahead(OLD, 20, INDEX), entry(OLD), entry(OLD, NEW)),
    "answered as if": decide(open_(OLD), Ahead(None, 20, 3), None, None),
    "neither owner nor": decide(open_(OLD), OutdatedLate(THIRD, INDEX), entry(OLD), entry(OLD)),
    "to restart with": decide(open_(None), Restart(THIRD, NEW, INDEX), entry(OLD), entry(OLD, NEW)),
    "although it had named": decide(
        open_(OLD), Restart(OLD, NEW, INDEX), entry(OLD), entry(OLD, NEW)
    ),
    "is not kept": decide(open_(None), Restart(OLD, NEW, INDEX), entry(OLD), entry(OLD)),
    "ahead of": decide(open_(None), Ahead(THIRD, 20, INDEX), entry(OLD), entry(OLD)),
    "said to claim": decide(open_(OLD), InProgress(THIRD, INDEX), entry(OLD), entry(OLD)),
    "the present one is": decide(open_(OLD), ModeChanged("dual", 3, INDEX), entry(OLD), entry(OLD)),
}


@pytest.mark.parametrize("words", WRONG)
def test_each_wrong_decision_is_found(words: str) -> None:
    found = check_decision(WRONG[words])
    assert any(words in each for each in found), found
    assert all(each.startswith("index 100: ") for each in found)


def test_newer_goes_by_versions_only_where_both_brought_one() -> None:
    early, late = row("a", 5, version=9, supplied=True), row("b", 6, version=8, supplied=True)
    assert newer(early, late)
    assert not newer(late, early)
    assert newer(row("b", 6), early)
    same = msgspec.structs.replace(late, version=9)
    assert newer(same, early)


def test_newer_goes_by_times_from_format_3_on() -> None:
    """A ticket below the first one of that format is of no time."""
    early, late = row("a", 6, version=8, supplied=True), row("b", 5, version=9, supplied=True)
    assert newer(late, early, 5)
    assert newer(early, late, 6)
    assert newer(early, msgspec.structs.replace(late, version=8), 5)


TIMED = {"now": 1_000, "age_max_ms": 100, "first": 3, "serial": 20}


@pytest.mark.parametrize(
    ("given", "ticket", "t", "placed_at"),
    [
        (None, 0, 1_000, 20),
        (1_001, 7, 1_000, 7),
        (950, 2, 950, 20),
        (899, 2, 900, 20),
        (899, 3, 899, 3),
    ],
)
def test_a_registration_of_format_3_has_its_time_and_ticket(
    given: int | None, ticket: int, t: int, placed_at: int
) -> None:
    command = Open("c", "new", None, given, ticket, True, EPOCH)
    right = row("new", placed_at, "n2", version=t, supplied=True)
    wrong = [
        msgspec.structs.replace(right, version=t + 1),
        msgspec.structs.replace(right, ticket=placed_at + 1),
    ]
    for made in (right, *wrong):
        decision = decide(command, registered(made, None), None, entry(made), **TIMED)
        assert bool(check_decision(decision)) == (made != right)
        decision = decide(command, Restart(OLD, made, INDEX), entry(OLD), entry(OLD, made), **TIMED)
        assert bool(check_decision(decision)) == (made != right)


def test_a_connection_that_becomes_newer_by_trying_again_is_found() -> None:
    told = row("new", 20, "n2", version=950, supplied=True)
    for answer in (Restart(OLD, told, INDEX), AheadAt(None, 20, INDEX, 950)):
        places: dict[tuple[str, str], TimeAndTicket] = {}
        assert (
            check_further_attempts(places, decide(open_(None), answer, None, None, **TIMED)) == []
        )
        for version, ticket, found in ((950, 20, False), (1_000, 20, True), (950, 30, True)):
            again = row("new", ticket, "n2", version=version, supplied=True)
            decision = decide(open_(OLD), registered(again, OLD), None, None, **TIMED)
            assert bool(check_further_attempts(places, decision)) == found
        # Not even up to the oldest time that counts by now for another connection.
        moved = registered(row("new", 20, "n2", version=1_100, supplied=True), OLD)
        later = decide(open_(OLD), moved, None, None, **{**TIMED, "now": 1_200})
        assert check_further_attempts(places, later) != []


def test_commands_that_touch_no_client_name_none() -> None:
    assert named_clients(open_(None)) == ("c",)
    assert named_clients(Cleanup("n1", 1, ("a", "b"), True)) == ("a", "b")
    assert named_clients(Unregister(OLD)) == ("c",)
    assert named_clients(object()) == ()


# Channels ----------------------------------------------------------------------------------------


def story(channel: str, over: str = "", **more: Any) -> Story:
    """A channel that was answered ok, and went on from `over` if that is given."""
    fields: dict[str, Any] = {"outcome": "ok", "row": row(channel, 1), **more}
    if over:
        fields = {
            "predecessor": row(over, 0),
            "present": True,
            "content": True,
            "handover": "complete",
            **fields,
        }
    return Story("c", channel, "n1", **fields)


def log_of(*decisions: Decision) -> Registry:
    registry = Registry()
    for decision in decisions:
        registry.note(decision)
    return registry


ANSWERED = {
    "outcome": "ok",
    "row": NEW,
    "predecessor": OLD,
    "present": True,
    "content": True,
    "handover": "complete",
}


def answered(**changed: Any) -> list[str]:
    registry = log_of(TOOK_OVER)
    return check_answer(Story("c", "new", "n2", **{**ANSWERED, **changed}), registry)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"handover": "lost"},
        {"handover": "lost", "present": False, "content": False},
        {"clean": True, "handover": "none", "present": False, "content": False},
        {"outcome": "outdated_late", "present": False, "content": False, "row": OLD},
    ],
)
def test_true_answers_pass(changed: dict[str, Any]) -> None:
    assert answered(**changed) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"outcome": "ahead"}, "was refused, and given a session"),
        ({"content": False}, "content given: False"),
        ({"present": False}, "content given: True"),
        ({"clean": True}, "started clean"),
        ({"predecessor": None}, "of nobody"),
        ({"present": False, "content": False}, "not to be present"),
        ({"present": False, "content": False, "handover": "none"}, "nothing was lost"),
        ({"row": THIRD}, "which the log never registered"),
        ({"row": None}, "which the log never registered"),
        ({"predecessor": THIRD}, "and was told"),
    ],
)
def test_each_wrong_answer_is_found(changed: dict[str, Any], words: str) -> None:
    found = answered(**changed)
    assert any(words in each for each in found), found
    assert found[0].startswith("channel new of c on n2 ")


def test_session_present_that_the_log_denies_is_found() -> None:
    decision = decide(
        open_(OLD, resume=False), registered(NEW, OLD, present=False), entry(OLD), entry(NEW)
    )
    found = check_answer(Story("c", "new", "n2", **ANSWERED), log_of(decision))
    assert any("which the log says is not continued" in each for each in found), found


def test_rows_of_live_channels_must_stay() -> None:
    deletion = decide(Unregister(NEW), Unregistered(True, INDEX), entry(NEW), None)
    registry = Registry()
    assert registry.note(TOOK_OVER) is None
    assert registry.note(deletion) == NEW
    live = Story("c", "new", "n2", **ANSWERED)
    assert any("lives, and its row" in each for each in check_deletion(NEW, live, lives=True))
    assert any("was deleted at index" in each for each in check_answer(live, registry))
    live.ended = "disconnected"
    assert check_deletion(NEW, live, lives=True) == []
    assert check_answer(live, registry) == []
    live.ended = ""
    assert check_deletion(NEW, live, lives=False) == []
    assert check_deletion(NEW, None, lives=True) == []
    live.outcome = ""
    assert check_deletion(NEW, live, lives=True) == []


def test_a_returned_node_that_announces_itself_too_early_is_found() -> None:
    back = {"origin": ("n1", 2), "lives": {"n1": 2, "n2": 1}}
    announced = Announced("enabled", EPOCH, INDEX)

    def found(channel: Story, registry: Registry, epoch: int = EPOCH, **more: Any) -> list[str]:
        decision = decide(Announce(2, epoch, 2), announced, None, None, **{**back, **more})
        return check_announcement(decision, [channel], registry)

    stayed = story("old", row=OLD)
    assert found(stayed, Registry()) == [f"{stayed} is not registered by incarnation 2"]
    again = row("old", 10, incarnation=2)
    assert found(story("old", row=again), Registry()) == []
    # Another connection has the client: since before the node returned, or when it asked.
    assert found(stayed, log_of(TOOK_OVER)) == []
    asked = decide(Adopt(again, True), OutdatedLate(NEW, INDEX), entry(NEW), entry(NEW), **back)
    assert found(stayed, log_of(asked)) == []
    # What it asked in a former incarnation is no answer for this one.
    assert found(stayed, log_of(asked), origin=("n1", 3))
    assert found(story("old", row=OLD, ended="kicked"), Registry()) == []
    assert found(story("old", row=None, outcome="given up"), Registry()) == []
    assert found(stayed, Registry(), epoch=EPOCH - 1) == []
    assert found(stayed, Registry(), mode="disabled") == []
    assert found(stayed, Registry(), refusal="NotAMember") == []


def test_the_deletion_of_a_claim_deletes_no_owner() -> None:
    claim = decide(Unregister(NEW), Unregistered(True, INDEX), entry(OLD, NEW), entry(OLD))
    assert Registry().note(claim) is None


def chain(*stories: Story) -> dict[str, Story]:
    return {each.channel: each for each in stories}


def test_a_chain_that_hands_everything_on_passes() -> None:
    first = story("a", accepted=["m1", "m2"])
    second = story("b", "a", inherited=("m1", "m2"), accepted=["m3"])
    third = story("d", "b", inherited=("m1", "m2", "m3"))
    assert check_handovers(chain(first, second, third)) == []


@pytest.mark.parametrize(
    ("inherited", "words"),
    [
        (("m1",), "lost m2"),
        (("m1", "m2", "m2"), "doubled m2"),
        (("m1", "m2", "m9"), "invented m9"),
        (("m2", "m1"), "in another order"),
    ],
)
def test_what_a_handover_did_wrong_is_named(inherited: tuple[str, ...], words: str) -> None:
    first = story("a", accepted=["m1", "m2"])
    (found,) = check_handovers(chain(first, story("b", "a", inherited=inherited)))
    assert words in found


def test_a_loss_that_was_answered_may_miss_some_and_invents_nothing() -> None:
    first = story("a", accepted=["m1", "m2", "m3"])
    assert not check_handovers(chain(first, story("b", "a", inherited=("m1",), handover="lost")))
    assert not check_handovers(
        chain(first, story("b", "a", present=False, content=False, handover="lost"))
    )
    for wrong in (("m2", "m1"), ("m1", "m1"), ("m4",)):
        lost = story("b", "a", inherited=wrong, handover="lost")
        assert check_handovers(chain(first, lost)), wrong


def test_of_a_session_whose_client_had_gone_only_doubles_are_known_to_be_wrong() -> None:
    gone = story("a", outcome="given up")
    assert not check_handovers(chain(gone, story("b", "a", inherited=("m1", "m2"))))
    (found,) = check_handovers(chain(gone, story("b", "a", inherited=("m1", "m1"))))
    assert "doubled m1" in found


def test_a_clean_start_inherits_nothing() -> None:
    first = story("a", accepted=["m1"])
    clean = story("b", "a", clean=True, present=False, handover="none")
    assert check_handovers(chain(first, clean)) == []
    clean.inherited = ("m1",)
    assert "out of nowhere" in check_handovers(chain(first, clean))[0]


def test_one_session_is_given_to_one_successor() -> None:
    first = story("a")
    found = check_handovers(chain(first, story("b", "a"), story("d", "a")))
    assert found == ["channel d of c on n1 and b were both given a"]


def test_a_session_of_a_stranger_is_found() -> None:
    assert "which nobody opened" in check_handovers(chain(story("b", "x")))[0]


def test_what_the_old_registry_did_is_counted_and_no_violation() -> None:
    first = story("a", accepted=["m1", "m2"], mode="disabled")
    second = story("b", "a", inherited=("m1",), mode="disabled")
    third = story("d", "b", present=False, content=False, handover="none", mode="disabled")
    anew = story("f", present=False, content=False, handover="none", mode="disabled", beside=True)
    stories = chain(first, second, third, anew, story("e", outcome="timeout", mode="disabled"))
    assert check_handovers(stories) == []
    assert anomalies(stories) == {
        "opened": 4,
        "content lost or doubled": 1,
        "wrong answer": 1,
        "second session": 1,
    }


# The end -----------------------------------------------------------------------------------------


def ending() -> tuple[Ending, dict[str, Story]]:
    first = story("old", accepted=["m1"])
    rows = {"c": OLD}
    left = Ending(
        rows={"n1": rows, "n2": dict(rows)},
        marks={"n1": 0, "n2": 0},
        lives={"n1": 1, "n2": 1},
        sessions={("n1", "c", "old"): ("m1",)},
        held={"n1": [OLD], "n2": []},
        in_doubt={"n1": 0, "n2": 0},
        handovers={"n1": 0, "n2": 0},
    )
    return left, chain(first)


def test_a_good_end_passes() -> None:
    assert check_ending(*ending()) == []


def test_each_trace_that_is_left_is_found() -> None:
    def found(words: str) -> None:
        violations = check_ending(left, stories)
        assert any(words in each for each in violations), violations

    left, stories = ending()
    left.rows["n2"] = {}
    found("show other owners")
    left, stories = ending()
    left.lives["n1"] = 2
    found("has outlived the incarnation")
    left, stories = ending()
    left.sessions.clear()
    found("its broker has no such channel")
    left, stories = ending()
    left.sessions[("n2", "c", "old")] = ("m1",)
    found("lives on n2; registered:")
    left, stories = ending()
    left.sessions[("n1", "c", "old")] = ()
    found("has (), and should have ('m1',)")
    left, stories = ending()
    left.frozen.append(("n1", "c", "old"))
    found("is still frozen")
    left, stories = ending()
    left.held["n2"] = [NEW]
    found("n2 holds")
    for field, words in (
        ("marks", "lives to clean up after"),
        ("in_doubt", "registrations in doubt"),
        ("handovers", "handovers that it remembers"),
    ):
        left, stories = ending()
        getattr(left, field)["n2"] = 1
        found(f"n2 has 1 {words}")


def test_item_5_older_connection_that_was_connected_must_not_be_displaced() -> None:
    former = Story("c", "a", "n1", outcome="ok", row=row("a", 1))
    story = Story("c", "b", "n2", outcome="ok", predecessor=row("a", 1))
    stories = {"a": former, "b": story}
    assert check_older(story, stories)
    former.connected = False
    assert check_older(story, stories) == []
    former.connected, former.ended = True, "disconnected"
    assert check_older(story, stories) == []
