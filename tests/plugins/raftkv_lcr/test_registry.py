"""The pure half on the real state machine: every outcome of the decision, fencing, cleaning."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import Refused, UnknownCommand
from raftkv.state import StateMachine
from raftkv_lcr import LCR
from raftkv_lcr.commands import (
    FORMAT_1,
    VERSION_MAX,
    Adopt,
    Ahead,
    Announce,
    BadTicket,
    Channel,
    Cleaned,
    Cleanup,
    InProgress,
    ModeChanged,
    NoOrigin,
    NotAMember,
    Open,
    OutdatedLate,
    Register,
    Registered,
    Restart,
    SelfTakeover,
    SwitchMode,
    TakeTicket,
    TrimPast,
    Unregister,
)
from raftkv_lcr.order import first_ticket, is_newer
from tests.plugins.raftkv_lcr.one_log import Log


def test_first_registration_is_new() -> None:
    log = Log()
    answer = log.register("n1", "a")
    assert isinstance(answer, Registered)
    assert answer.took_over is None
    assert not answer.session_present
    assert answer.channel == Channel("c", "a", "n1", 1, log.now, log.machine.serial, True)
    assert log.entry().owner == answer.channel


def test_registration_over_the_real_predecessor_takes_over() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    answer = log.register("n2", "b", a)
    assert isinstance(answer, Registered)
    assert answer.took_over == a
    assert answer.session_present
    assert log.entry().owner == answer.channel


def test_missed_predecessor_restarts_and_claims() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    answer = log.register("n2", "b")
    assert isinstance(answer, Restart)
    assert answer.predecessor == a
    assert log.entry().owner == a
    assert log.entry().claim.channel == answer.claim
    again = log.register("n2", "b", a, ticket=answer.claim.ticket)
    assert isinstance(again, Registered)
    assert again.channel == answer.claim
    assert log.entry().claim is None


def test_outdated_late_without_any_predecessor_seen() -> None:
    """Scenario 7 of the research page."""
    log = Log()
    log.register("n1", "new", version=20)
    before = log.entry()
    answer = log.register("n2", "old", version=10)
    assert isinstance(answer, OutdatedLate)
    assert answer.newer == before.owner
    assert log.entry() == before


def test_older_connection_that_has_seen_the_newer_one_is_refused() -> None:
    """Scenario 8: naming the newer owner as predecessor must not help."""
    log = Log()
    newer = log.register("n1", "new", version=20).channel
    before = log.entry()
    answer = log.register("n2", "old", newer, version=10)
    assert isinstance(answer, OutdatedLate)
    assert log.entry() == before


def test_older_ticket_that_has_seen_the_newer_one_is_refused() -> None:
    """Scenario 8 with versions of the log."""
    log = Log()
    ticket = log.send("n2", TakeTicket()).ticket
    newer = log.register("n1", "new").channel
    assert isinstance(log.register("n2", "old", newer, ticket=ticket), OutdatedLate)
    assert log.entry().owner == newer


def test_predecessor_gone_is_ahead_and_writes_nothing() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    log.send("n1", Unregister(a))
    answer = log.register("n2", "b", a)
    assert isinstance(answer, Ahead)
    assert answer.predecessor is None
    assert log.entry() is None
    again = log.register("n2", "b", None, ticket=answer.ticket)
    assert isinstance(again, Registered)
    assert again.channel.ticket == answer.ticket
    assert not again.session_present


def test_predecessor_replaced_by_an_older_one_is_ahead_too() -> None:
    log = Log()
    a = log.register("n1", "a", version=20).channel
    log.send("n1", Unregister(a))
    older = log.register("n1", "older", version=5).channel
    answer = log.register("n2", "b", a, version=30)
    assert isinstance(answer, Ahead)
    assert answer.predecessor == older
    assert log.entry().claim is None


def test_same_millisecond_is_decided_by_the_log() -> None:
    log = Log()
    a = log.register("n1", "a", version=1_000).channel
    b = log.register("n2", "b", a, version=1_000)
    assert isinstance(b, Registered)
    assert isinstance(log.register("n1", "a2", b.channel, version=999), OutdatedLate)


def test_repeated_registration_gets_the_same_answer() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    first = log.register("n2", "b", a)
    before = log.entry()
    again = log.register("n2", "b", a)
    assert isinstance(again, Registered)
    assert again.repeated
    assert again.channel == first.channel
    assert again.session_present
    assert log.entry() == before


def test_newer_claim_displaces_and_the_older_claimant_is_outdated() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    d = log.register("n2", "d")
    assert log.entry().claim.channel == d.claim
    late = log.register("n1", "b", a, ticket=b.claim.ticket)
    assert isinstance(late, OutdatedLate)
    assert late.newer == d.claim
    assert isinstance(log.register("n2", "d", a, ticket=d.claim.ticket), Registered)


def test_expired_claim_no_longer_counts() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    log.register("n2", "d")
    log.now += 30_000
    assert isinstance(log.register("n1", "b", a, ticket=b.claim.ticket), Registered)


def test_claim_of_a_dead_node_no_longer_counts() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    log.register("n2", "d")
    log.node_down("n2")
    assert isinstance(log.register("n1", "b", a, ticket=b.claim.ticket), Registered)


def test_policy_refuse_lets_the_claimant_finish() -> None:
    log = Log()
    log.set("policy", "refuse")
    a = log.register("n1", "a").channel
    b = log.register("n1", "b")
    third = log.register("n2", "d")
    assert isinstance(third, InProgress)
    assert third.claimant == b.claim
    assert isinstance(log.register("n1", "b", a, ticket=b.claim.ticket), Registered)


def test_settings_are_checked() -> None:
    log = Log()
    for key, value in (("policy", "first"), ("claim_ms", 1), ("cleanup_rows_max", 0)):
        with pytest.raises(Refused, match=key):
            log.set(key, value)


def test_unregister_deletes_the_exact_row_only() -> None:
    """Scenario 10: late, doubled, and naming what was written before."""
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n2", "b", a).channel
    assert not log.send("n1", Unregister(a)).removed
    assert not log.send("n1", Unregister(a)).removed
    assert log.entry().owner == b
    assert log.send("n2", Unregister(b)).removed
    assert not log.send("n2", Unregister(b)).removed
    # The same connection registers anew: a delete of its former row finds nothing.
    b2 = log.register("n2", "b").channel
    assert not log.send("n2", Unregister(b)).removed
    assert log.entry().owner == b2


def test_unregister_of_the_owner_ends_the_claim_and_the_claimant_gets_in() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n2", "b")
    log.send("n1", Unregister(a))
    assert log.entry() is None
    again = log.register("n2", "b", a, ticket=b.claim.ticket)
    assert isinstance(again, Ahead)
    assert isinstance(log.register("n2", "b", None, ticket=b.claim.ticket), Registered)


def test_unregister_of_a_claim_keeps_the_owner() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    b = log.register("n2", "b")
    assert log.send("n2", Unregister(b.claim)).removed
    assert log.entry().owner == a
    assert log.entry().claim is None


def test_refusals_write_nothing() -> None:
    log = Log()
    a = log.register("n1", "a").channel
    before = log.digest()
    serial = log.machine.serial
    with pytest.raises(SelfTakeover):
        log.register("n1", "a2", msgspec.structs.replace(a, channel="a2"))
    with pytest.raises(BadTicket, match="not been issued"):
        log.register("n2", "b", a, ticket=serial + 1_000)
    with pytest.raises(BadTicket, match="in use"):
        log.register("n2", "b", a, ticket=a.ticket)
    with pytest.raises(NoOrigin):
        log.run(log.client(), "lcr", Register("c", "x", None))
    assert log.entry().owner == a
    assert before != log.digest()  # sessions and serial went on, the tables did not
    assert len(log.machine.view("lcr").table("clients")) == 1


@pytest.mark.parametrize(
    "command",
    [
        Register("", "a", None),
        Register("c", "", None),
        Register("c", "a" * 257, None),
        Register("c" * 16_384, "a", None),
        Register("c", "a", None, version=-1),
        Register("c", "a", None, ticket=-1),
        Cleanup("n1", 1, ("c",) * 1_001, False),
    ],
)
def test_fields_beyond_their_limits_are_not_decoded(command: msgspec.Struct) -> None:
    log = Log()
    with pytest.raises(Refused, match="cannot decode"):
        log.send("n1", command)


def test_dead_node_is_fenced_at_once_and_cleaned_in_batches() -> None:
    log = Log()
    for number in range(5):
        log.send("n2", Register(f"client-{number}", "a", None))
    survivor = log.send("n1", Register("other", "a", None)).channel
    log.node_down("n2")
    # Fenced: a connection elsewhere meets an empty place, in the very next entry.
    answer = log.send("n1", Register("client-0", "b", None))
    assert isinstance(answer, Registered)
    assert not answer.session_present
    assert ("n2", 1) in log.machine.view("lcr").table("ended")
    first = log.send("n1", Cleanup("n2", 1, ("client-0", "client-1", "client-2"), False))
    assert isinstance(first, Cleaned)
    assert first.rows == 2
    ids = tuple(f"client-{n}" for n in range(5))
    assert log.send("n1", Cleanup("n2", 1, (*ids, "other"), True)).rows == 2
    assert log.entry("client-0").owner == answer.channel
    assert log.entry("other").owner == survivor
    assert len(log.machine.view("lcr").table("ended")) == 0


def test_cleanup_never_hits_the_returned_node() -> None:
    log = Log()
    log.register("n2", "a")
    log.node_down("n2")
    log.node_up("n2")
    fresh = log.register("n2", "a").channel
    assert fresh.incarnation == 3
    assert log.send("n1", Cleanup("n2", 3, ("c",), False)).rows == 0
    assert log.send("n1", Cleanup("n2", 1, ("c",), True)).rows == 0
    assert log.entry().owner == fresh


def test_restart_of_a_node_ends_its_rows_too() -> None:
    log = Log()
    a = log.register("n2", "a").channel
    log.node_up("n2")
    assert ("n2", 1) in log.machine.view("lcr").table("ended")
    answer = log.register("n1", "b", a)
    assert isinstance(answer, Ahead)


def test_snapshot_carries_the_registry() -> None:
    log = Log()
    log.register("n1", "a")
    log.register("n2", "b")
    frozen = log.machine.freeze()
    chunks = list(frozen.slices())
    copy = StateMachine([LCR()])
    copy.restore(chunks, log.machine.index)
    assert copy.digest() == log.digest()
    assert copy.view("lcr").table("clients").get("c") == log.entry()


# --- Open: the decision of Register, with a mode and a clean start --------------------------------


def test_open_takes_over_and_resumes() -> None:
    log = Log()
    a = log.open("n1", "a")
    assert isinstance(a, Registered)
    assert not a.session_present
    b = log.open("n2", "b", a.channel)
    assert isinstance(b, Registered)
    assert (b.took_over, b.session_present) == (a.channel, True)
    assert log.entry().session_present


def test_open_without_resume_takes_the_place_and_not_the_session() -> None:
    log = Log()
    a = log.open("n1", "a").channel
    b = log.open("n2", "b", a, resume=False)
    assert isinstance(b, Registered)
    assert (b.took_over, b.session_present) == (a, False)
    # What was said once is said again, whatever the repeated question would have.
    again = log.open("n2", "b", a, resume=True)
    assert again.repeated
    assert not again.session_present


def test_open_of_a_former_mode_writes_nothing() -> None:
    log = Log()
    a = log.open("n1", "a").channel
    epoch = log.switch("migration").epoch
    before = log.entry()
    answer = log.open("n2", "b", a, epoch=0)
    assert answer == ModeChanged("migration", epoch, log.machine.index)
    # Not even a repetition is answered: the first answer was for another mode's flow.
    assert isinstance(log.open("n1", "a", epoch=0), ModeChanged)
    assert isinstance(log.open("n2", "b", a, epoch=epoch + 1), ModeChanged)
    assert log.entry() == before
    assert isinstance(log.open("n2", "b", a, epoch=epoch), Registered)


def test_open_is_outdated_late_with_or_without_a_predecessor() -> None:
    """Scenarios 7 and 8 of the research page."""
    log = Log()
    newer = log.open("n1", "new", version=20).channel
    before = log.entry()
    for predecessor in (None, newer):
        for resume in (True, False):
            answer = log.open("n2", "old", predecessor, version=10, resume=resume)
            assert isinstance(answer, OutdatedLate)
            assert answer.newer == newer
            assert log.entry() == before


def test_a_clean_start_takes_over_whoever_is_there() -> None:
    """It continues nothing, so it need not know whose place it takes."""
    log = Log()
    a = log.open("n1", "a").channel
    for named in (None, a):
        answer = log.open("n2", f"b{named}"[:9], named, clean=True)
        assert isinstance(answer, Registered)
        assert not answer.session_present
        assert answer.took_over == a
        a = log.open("n1", "c", answer.channel).channel
    assert log.entry().owner == a


def test_a_clean_start_is_refused_by_a_newer_owner() -> None:
    log = Log()
    newer = log.open("n1", "a", version=20).channel
    answer = log.open("n2", "b", newer, version=10, clean=True)
    assert isinstance(answer, OutdatedLate)
    assert log.entry().owner == newer


def test_who_has_a_ticket_of_this_mode_is_newer_than_what_is_adopted() -> None:
    log = Log()
    log.announce("n1", "n2")
    log.switch("migration")
    ticket = log.send("n2", TakeTicket()).ticket
    adopted = log.adopt("n1", log.living("n1", "a")).channel
    assert adopted.ticket < ticket
    assert isinstance(log.open("n2", "b", adopted, ticket=ticket), Registered)


def test_clean_start_that_missed_the_predecessor_restarts_with_it() -> None:
    """Scenario 2, the log's part: the real predecessor is named, so that it can be discarded."""
    log = Log()
    a = log.open("n1", "a").channel
    answer = log.open("n2", "b", resume=False)
    assert isinstance(answer, Restart)
    assert answer.predecessor == a
    b = log.open("n2", "b", a, ticket=answer.claim.ticket, resume=False)
    assert (b.took_over, b.session_present) == (a, False)


def test_open_over_a_predecessor_that_left_is_ahead() -> None:
    log = Log()
    a = log.open("n1", "a").channel
    assert log.unregister("n1", a)
    answer = log.open("n2", "b", a)
    assert isinstance(answer, Ahead)
    assert (answer.predecessor, log.entry()) == (None, None)


def test_open_is_refused_like_register() -> None:
    log = Log()
    a = log.open("n1", "a").channel
    with pytest.raises(SelfTakeover):
        log.open("n1", "a2", msgspec.structs.replace(a, channel="a2"))
    with pytest.raises(BadTicket):
        log.open("n2", "b", a, ticket=log.machine.serial + 1_000)
    with pytest.raises(NoOrigin):
        log.run(log.client(), "lcr", Open("c", "x", None, None, 0, True, 0))


def test_late_deletes_after_open_are_harmless() -> None:
    """Scenario 10: twice after the successor, and before the row it will name could exist."""
    log = Log()
    a = log.open("n1", "a").channel
    b = log.open("n2", "b", a).channel
    assert not log.unregister("n1", a)
    assert not log.unregister("n1", a)
    assert log.entry().owner == b
    # A delete cannot come before its registration: the ticket is the place of that in the log, so
    # whatever is guessed names another row, and what is registered can be deleted by its name.
    guess = msgspec.structs.replace(b, channel="c", ticket=log.machine.serial + 3)
    assert not log.unregister("n2", guess)
    c = log.open("n2", "c", b).channel
    assert c != guess
    assert log.unregister("n2", c)
    assert log.entry() is None


# --- Adopt ----------------------------------------------------------------------------------------


def test_adopted_channel_gets_its_place_from_the_log() -> None:
    log = Log()
    answer = log.adopt("n1", log.living("n1", "a"), session_present=True)
    assert isinstance(answer, Registered)
    serial = log.machine.serial
    assert answer.channel == Channel("c", "a", "n1", 1, 0, serial, True)
    assert (answer.took_over, answer.session_present) == (None, True)
    assert log.entry().owner == answer.channel
    again = log.adopt("n1", log.living("n1", "a"), session_present=False)
    assert again.repeated
    assert (again.channel, again.session_present) == (answer.channel, True)


def test_adopted_channel_keeps_its_ticket_and_version() -> None:
    log = Log()
    ticket = log.send("n1", TakeTicket()).ticket
    row = msgspec.structs.replace(log.living("n1", "a"), ticket=ticket)
    timed = msgspec.structs.replace(row, version=log.now - 1, supplied=True)
    assert log.adopt("n1", timed).channel == timed
    other = msgspec.structs.replace(
        log.living("n2", "b"), client_id="d", version=log.now - 2, supplied=True
    )
    adopted = log.adopt("n2", other).channel
    assert adopted == msgspec.structs.replace(other, ticket=log.machine.serial)


def test_adopt_displaces_nobody_however_new_it_is() -> None:
    log = Log()
    owner = log.open("n1", "a", version=5).channel
    claim = log.open("n2", "b", version=7)
    assert isinstance(claim, Restart)
    before = log.entry()
    newer = msgspec.structs.replace(log.living("n2", "x"), version=99, supplied=True)
    answer = log.adopt("n2", newer)
    assert isinstance(answer, OutdatedLate)
    assert answer.newer == owner
    assert log.entry() == before


def test_adopt_for_an_old_node_names_that_node() -> None:
    log = Log()
    theirs = log.adopt("n1", log.living("n2", "a")).channel
    assert theirs.node == "n2"
    log.node_down("n2")
    # Fenced and marked like every other row.
    assert isinstance(log.open("n1", "b", theirs), Ahead)
    assert log.send("n1", Cleanup("n2", 1, ("c",), True)).rows == 1


def test_adopt_of_an_ended_life_is_refused() -> None:
    log = Log()
    theirs = log.living("n2", "a")
    log.node_down("n2")
    with pytest.raises(NotAMember, match="incarnation 1 of n2"):
        log.adopt("n1", theirs)
    log.node_up("n2")
    with pytest.raises(NotAMember):
        log.adopt("n2", theirs)
    with pytest.raises(NotAMember):
        log.adopt("n1", Channel("c", "a", "nobody", 1, 0, 0))
    assert log.entry() is None
    assert isinstance(log.adopt("n2", log.living("n2", "a")), Registered)


def test_adopt_takes_the_place_of_a_fenced_row_only() -> None:
    log = Log()
    fenced = log.open("n2", "a").channel
    log.node_down("n2")
    answer = log.adopt("n1", log.living("n1", "b"))
    assert isinstance(answer, Registered)
    assert answer.took_over is None
    assert not log.unregister("n1", fenced)
    assert log.send("n1", Cleanup("n2", 1, ("c",), True)).rows == 0


def test_adopt_checks_its_sender_and_its_ticket() -> None:
    log = Log()
    row = log.living("n1", "a")
    with pytest.raises(NoOrigin):
        log.run(log.client(), "lcr", Adopt(row, True))
    with pytest.raises(BadTicket):
        log.adopt("n1", msgspec.structs.replace(row, ticket=log.machine.serial + 10))


# --- formats --------------------------------------------------------------------------------------


class FirstFormat(LCR):
    """A member that knows format 1 only: it has never heard of the other commands."""

    version = 1
    commands = FORMAT_1


NEW_COMMANDS = (
    Open("c", "b", None, None, 0, True, 0),
    Adopt(Channel("d", "x", "n1", 1, 0, 0), True),
    Announce(2, 0),
    SwitchMode("migration"),
    TrimPast(10),
)


def test_format_1_answers_new_commands_as_a_member_that_knows_no_other() -> None:
    """Two machines, one of the former version, on one log: the same answers, the same state."""
    new = Log(version=1)
    new.set("policy", "refuse")
    new.register("n1", "a", version=10)
    answers = []
    for command in NEW_COMMANDS:
        with pytest.raises(UnknownCommand) as refusal:
            new.send("n2", command)
        answers.append(str(refusal.value))
    new.register("n2", "b", version=20)
    new.node_down("n2")
    new.send("n1", Cleanup("n2", 1, ("c",), True))
    old = StateMachine([FirstFormat()])
    outcomes = [old.apply(index, entry) for index, entry in enumerate(new.entries, 1)]
    refused = [str(o) for [(_, _, o)] in outcomes if isinstance(o, UnknownCommand)]
    assert refused == answers == ["the plugin 'lcr' cannot decode the command"] * 5
    assert old.digest() == new.digest()


def test_format_1_writes_no_history() -> None:
    """A member of format 1 has no such table, whatever setting a newer one has."""
    log = Log(version=1)
    log.set("history_ms", 60_000)
    log.unregister("n1", log.register("n1", "a").channel)
    assert len(log.view().table("past")) == 0


def test_format_2_begins_with_the_last_member() -> None:
    log = Log(version=1)
    a = log.register("n1", "a").channel
    log.node_up("n2", version=2)
    with pytest.raises(UnknownCommand):
        log.open("n2", "b", a)
    log.node_up("n1", version=2)
    assert isinstance(log.open("n2", "b"), Registered)
    assert isinstance(log.register("n1", "c", log.entry().owner), Registered)


@pytest.mark.parametrize(
    "command",
    [
        Open("", "b", None, None, 0, True, 0),
        Open("c", "b" * 257, None, None, 0, True, 0),
        Open("c", "b", None, -1, 0, True, 0),
        Open("c", "b", None, None, 0, True, -1),
        Adopt(Channel("c", "", "n1", 1, 0, 0), True),
        Announce(0, 0),
        SwitchMode("on"),  # type: ignore[arg-type]
        TrimPast(0),
        TrimPast(1_001),
    ],
)
def test_new_fields_beyond_their_limits_are_not_decoded(command: msgspec.Struct) -> None:
    log = Log()
    with pytest.raises(UnknownCommand, match="cannot decode"):
        log.send("n1", command)


versions = st.none() | st.integers(1, 5)
channel = st.builds(
    lambda version, ticket: Channel(
        "c", f"{ticket}", "n", 1, version or ticket, ticket, version is not None
    ),
    versions,
    st.integers(100, 110),
)


@given(channel, channel, st.sampled_from([None, 0, 3, VERSION_MAX]))
def test_newer_is_strict_and_total_for_different_tickets(
    one: Channel, other: Channel, first: int | None
) -> None:
    assert not (is_newer(one, other, first) and is_newer(other, one, first))
    if one.ticket != other.ticket:
        assert is_newer(one, other, first) or is_newer(other, one, first)


steps = st.lists(
    st.tuples(
        st.sampled_from(["register", "follow", "unregister", "down", "up", "clean"]),
        st.sampled_from(["n1", "n2", "n3"]),
        st.integers(0, 3),
        versions,
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(steps)
def test_any_history_keeps_the_invariants_and_never_moves_backwards(
    history: list[tuple[str, str, int, int | None]],
) -> None:
    """Every node proposes with what it knows, possibly stale; an older channel never wins."""
    log = Log(("n1", "n2", "n3"))
    known: dict[str, Channel | None] = {}
    tickets: dict[str, int] = {}
    for action, node, number, version in history:
        before = log.entry()
        name = f"{node}-{number}"
        if action == "register":
            if not log.machine.members[node].up:
                continue
            result = log.register(
                node, name, _not_self(known.get(node), node, name, log), version=version
            )
            tickets[name] = result.claim.ticket if isinstance(result, Restart) else 0
            if isinstance(result, Registered) and not result.repeated and before is not None:
                live = _is_live(before.owner, log)
                first = first_ticket(log.view())
                assert not (live and is_newer(before.owner, result.channel, first))
        elif action == "follow":
            known[node] = None if before is None else before.owner
        elif action == "unregister" and log.machine.members[node].up and before is not None:
            log.send(node, Unregister(before.owner))
        elif action == "down" and log.machine.members[node].up and node != "n1":
            log.node_down(node)
        elif action == "up":
            log.node_up(node)
        elif action == "clean":
            for key, _ in list(log.machine.view("lcr").table("ended").scan()):
                log.send("n1", Cleanup(key[0], key[1], ("c",), True))


def _not_self(row: Channel | None, node: str, name: str, log: Log) -> Channel | None:
    if row is not None and (row.channel, row.node) == (name, node):
        return None
    return row


def _is_live(row: Channel, log: Log) -> bool:
    member = log.machine.members[row.node]
    return member.up and member.incarnation == row.incarnation
