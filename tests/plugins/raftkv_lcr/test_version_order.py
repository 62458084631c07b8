"""Versions are a total order: pairs of a time of the log's clock and a ticket."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.errors import UnknownCommand
from raftkv.state.core import AnnounceFormats
from raftkv_lcr.commands import (
    VERSION_MAX,
    Ahead,
    AheadAt,
    Channel,
    DrawTicket,
    OutdatedLate,
    Register,
    Registered,
    Restart,
    TakeTicket,
)
from raftkv_lcr.order import Times, carried, first_ticket, guess, is_newer
from tests.plugins.raftkv_lcr.one_log import Log

NOW = 10_000_000
AGE_MS = 60_000
NODES = ("n1", "n2", "n3")


def new_log(version: int = 3) -> Log:
    log = Log(NODES, version=version)
    log.now = NOW
    return log


def raised(log: Log) -> Log:
    """The core format is raised and all nodes announce format 3; their incarnations go on."""
    log.machine.raise_format(log.machine.index + 1, msgspec.msgpack.encode(2))
    for name in NODES:
        incarnation = log.machine.members[name].incarnation
        command = AnnounceFormats(name, incarnation, (("lcr", 3),))
        log.run(log.sessions[name], "core", command)
    assert log.view().version == 3
    return log


def owner(answer: Any) -> Channel:
    assert isinstance(answer, Registered), answer
    return answer.channel


# --- the pair -------------------------------------------------------------------------------------


def test_three_connections_that_mix_given_and_missing_times_form_no_cycle() -> None:
    """The case that was a cycle: given 10, none, given 5."""
    log = new_log()
    a = owner(log.register("n1", "A", version=NOW - 90))
    b = owner(log.register("n2", "B", a))
    c = log.register("n3", "C", b, version=NOW - 95)
    assert isinstance(c, OutdatedLate)
    assert log.entry().owner == b


@pytest.mark.parametrize(
    ("given_ms", "t"),
    [
        (None, NOW),
        (NOW - 1, NOW - 1),
        (NOW, NOW),
        (NOW + 1, NOW),
        (2**63 - 1, NOW),
        (NOW - AGE_MS, NOW - AGE_MS),
        (NOW - AGE_MS - 1, NOW - AGE_MS),
        (0, NOW - AGE_MS),
    ],
)
def test_a_connect_time_is_moved_between_the_stamp_and_the_oldest_one(
    given_ms: int | None, t: int
) -> None:
    row = owner(new_log().register("n1", "a", version=given_ms))
    assert (row.version, row.supplied) == (t, True)


def test_connect_age_max_ms_bounds_what_a_slow_transport_clock_costs() -> None:
    log = raised(new_log())
    log.set("connect_age_max_ms", 1_000)
    a = owner(log.register("n1", "a"))
    log.now += 1_000
    # Its clock is an hour slow: it loses against what registered within the last second only.
    assert isinstance(log.register("n2", "b", a, version=NOW - 3_600_000), Registered)


def test_connect_age_max_ms_of_0_leaves_the_order_to_the_log() -> None:
    log = raised(new_log())
    log.set("connect_age_max_ms", 0)
    a = owner(log.register("n1", "a", version=NOW))
    assert owner(log.register("n2", "b", a, version=NOW - 500)).version == NOW


def test_a_time_in_the_future_locks_no_client_out() -> None:
    log = new_log()
    a = owner(log.register("n1", "a", version=NOW + 86_400_000))
    assert isinstance(log.register("n2", "b", a), Registered)


def test_a_connection_with_slow_authentication_does_not_count_as_newer() -> None:
    """It connected first, and reaches the log last."""
    log = new_log()
    log.now += 20_000
    fast = owner(log.register("n1", "fast", version=NOW + 15_000))
    assert isinstance(log.register("n2", "slow", fast, version=NOW), OutdatedLate)


# --- retries --------------------------------------------------------------------------------------


def test_a_connection_does_not_become_newer_by_trying_again() -> None:
    log = new_log()
    log.register("n1", "a")
    log.now += 10
    first = log.register("n2", "b")
    assert isinstance(first, Restart)
    log.now += 10
    rival = log.register("n3", "c", first.predecessor)
    assert isinstance(rival, Registered)
    log.now += 10
    again = log.register(
        "n2",
        "b",
        first.predecessor,
        version=carried(None, first),
        ticket=first.claim.ticket,
    )
    assert isinstance(again, OutdatedLate)


@pytest.mark.parametrize("age_ms", [0, 1_000])
def test_a_connection_that_tries_again_after_connect_age_max_ms_keeps_its_time(
    age_ms: int,
) -> None:
    log = raised(new_log())
    log.set("connect_age_max_ms", age_ms)
    a = owner(log.register("n1", "a"))
    log.now += age_ms
    first = log.register("n2", "b", version=0)
    assert isinstance(first, Restart)
    log.now += 500
    c = owner(log.register("n3", "c", a))
    log.now += 5_000
    t = carried(0, first)
    assert isinstance(
        log.register("n2", "b", a, version=t, ticket=first.claim.ticket), OutdatedLate
    )
    log.unregister("n3", c)
    again = owner(log.register("n2", "b", version=t, ticket=first.claim.ticket))
    assert (again.version, again.ticket) == (NOW, first.claim.ticket)


def test_a_time_that_is_given_with_a_ticket_is_moved_between_its_bounds_at_the_node() -> None:
    times = Times()
    times.note(7, NOW)
    given = (None, NOW + 1, NOW, NOW - 5, NOW - 1_001, 0)
    moved = [times.of(each, 7, 1_000) for each in given]
    assert moved == [NOW, NOW, NOW, NOW - 5, NOW - 1_000, NOW - 1_000]
    assert [times.of(each, 8, 1_000) for each in (None, 3)] == [None, 3]


@pytest.mark.parametrize("answer", [AheadAt, Restart])
def test_a_caller_that_gives_its_own_time_again_does_not_become_older_by_trying(
    answer: type[AheadAt | Restart],
) -> None:
    times = Times()
    times.note(7, NOW)
    t = times.of(5, 7, 1_000)
    assert t == NOW - 1_000
    for _ in range(3):
        claim = Channel("c", "ch", "n1", 1, version=t, ticket=7, supplied=True)
        if answer is Restart:
            times.note_answer(Restart(claim, claim, 9))
        else:
            times.note_answer(AheadAt(None, 7, 9, t))
        assert [times.of(each, 7, 1_000) for each in (5, None, NOW)] == [t] * 3


def test_a_guess_moves_no_time_that_comes_with_a_ticket() -> None:
    log = new_log()
    a = owner(log.register("n1", "a"))
    me = Channel("c", "b", "n2", 1, version=NOW - 2 * AGE_MS, ticket=a.ticket + 1, supplied=True)
    assert guess(me, log.view(), NOW) == me
    new = msgspec.structs.replace(me, ticket=VERSION_MAX)
    assert guess(new, log.view(), NOW).version == NOW - AGE_MS


def test_ahead_gives_the_time_for_the_next_attempt() -> None:
    log = new_log()
    a = owner(log.register("n1", "a"))
    log.unregister("n1", a)
    ahead = log.register("n2", "b", a, version=NOW + 5)
    assert isinstance(ahead, AheadAt)
    assert ahead.at_ms == carried(NOW + 5, ahead) == NOW
    log.now += 1_000
    row = owner(log.register("n2", "b", version=ahead.at_ms, ticket=ahead.ticket))
    assert (row.version, row.ticket) == (NOW, ahead.ticket)


def test_a_drawn_ticket_has_the_time_of_its_entry() -> None:
    log = new_log()
    drawn = log.send("n2", DrawTicket())
    log.now += 500
    a = owner(log.register("n1", "a"))
    late = log.register("n2", "b", a, version=drawn.at_ms, ticket=drawn.ticket)
    assert drawn.at_ms == NOW
    assert isinstance(late, OutdatedLate)


# --- total and transitive -------------------------------------------------------------------------

connect_times = st.none() | st.integers(NOW - 2 * AGE_MS, NOW + 2 * AGE_MS)
moves = st.lists(st.tuples(connect_times, st.integers(0, AGE_MS // 2)), min_size=3, max_size=6)


def rows_of(log: Log, times: Any, name: str) -> list[Channel]:
    """Connections of one client each, so that all of them get a row."""
    rows = []
    for number, (given_ms, pause_ms) in enumerate(times):
        log.now += pause_ms
        command = Register(f"{name}{number}", f"{name}{number}", None, given_ms)
        rows.append(owner(log.send(NODES[number % 3], command)))
    return rows


@given(former=moves, present=moves)
def test_versions_are_total_and_transitive_also_across_the_raise(former: Any, present: Any) -> None:
    log = new_log(version=2)
    before = rows_of(log, former, "old")
    after = rows_of(raised(log), present, "new")
    first = first_ticket(log.view())
    for one, other in itertools.permutations(before + after, 2):
        assert is_newer(one, other, first) != is_newer(other, one, first)
    for one, two, three in itertools.permutations(before + after, 3):
        if is_newer(one, two, first) and is_newer(two, three, first):
            assert is_newer(one, three, first)
    # A place between them that does not depend on the units of former versions.
    assert all(is_newer(new, old, first) for new in after for old in before)


@given(times=moves)
def test_the_newest_of_all_owns_the_client_in_the_end(times: Any) -> None:
    """In whichever order they reach the log, and however they mix."""
    log = new_log()
    seen: list[Channel] = []
    for number, (given_ms, pause_ms) in enumerate(times):
        log.now += pause_ms
        entry = log.entry()
        answer = log.register(
            NODES[number % 3], f"ch{number}", entry and entry.owner, version=given_ms
        )
        stamp = log.now
        t = stamp if given_ms is None else max(stamp - AGE_MS, min(given_ms, stamp))
        seen.append(Channel("c", f"ch{number}", "", 0, t, log.machine.serial))
        newest = max(seen, key=lambda row: (row.version, row.ticket))
        assert log.entry().owner.channel == newest.channel
        assert isinstance(answer, Registered) == (newest is seen[-1])


# --- formats --------------------------------------------------------------------------------------


def test_before_format_3_the_order_is_that_of_0_1_0() -> None:
    log = new_log(version=2)
    a = owner(log.register("n1", "A", version=10))
    b = owner(log.register("n2", "B", a))
    assert (a.version, a.supplied, b.version, b.supplied) == (10, True, b.ticket, False)
    assert owner(log.register("n3", "C", b, version=5)).version == 5
    ahead = log.register("n1", "D", a, version=3)
    assert type(ahead) is not AheadAt
    assert isinstance(log.register("n1", "E", version=4), OutdatedLate)
    with pytest.raises(UnknownCommand):
        log.send("n1", DrawTicket())
    assert len(log.view().table("order")) == 0


def test_ahead_before_format_3_has_no_time() -> None:
    log = new_log(version=2)
    a = owner(log.register("n1", "a"))
    log.unregister("n1", a)
    ahead = log.register("n2", "b", a, version=7)
    assert type(ahead) is Ahead
    assert carried(7, ahead) == 7


@pytest.mark.parametrize("given_ms", [None, 0])
def test_a_row_from_before_the_raise_is_older_than_all_that_come_later(
    given_ms: int | None,
) -> None:
    """Its version may be in any unit, and must lock no client out for ever."""
    log = new_log(version=2)
    a = owner(log.register("n1", "a", version=2**63 - 2))
    claimant = log.register("n2", "b", version=2**63 - 1)
    assert isinstance(claimant, Restart)
    raised(log)
    assert is_newer(claimant.claim, a, first_ticket(log.view()))
    c = log.register("n3", "c", a, version=given_ms)
    assert owner(c).version == (NOW if given_ms is None else NOW - AGE_MS)


def test_a_ticket_from_before_the_raise_is_replaced() -> None:
    log = new_log(version=2)
    ticket = log.send("n2", TakeTicket()).ticket
    raised(log)
    row = owner(log.register("n2", "b", ticket=ticket))
    assert row.ticket == log.machine.serial > ticket
    assert row.ticket == first_ticket(log.view())


# --- channels that live already -------------------------------------------------------------------


def test_an_adopted_channel_keeps_its_time() -> None:
    log = new_log()
    drawn = log.send("n1", DrawTicket())
    row = msgspec.structs.replace(log.living("n1", "a"), ticket=drawn.ticket, supplied=True)
    long_ago = msgspec.structs.replace(row, version=7)
    assert log.adopt("n1", long_ago).channel == long_ago
    ahead = msgspec.structs.replace(row, client_id="d", version=NOW + 7)
    assert log.adopt("n1", ahead).channel.version == NOW


def test_an_adopted_channel_without_a_time_is_older_than_what_the_log_has_seen() -> None:
    log = new_log()
    untimed = log.adopt("n1", msgspec.structs.replace(log.living("n1", "a"), version=NOW)).channel
    assert (untimed.version, untimed.supplied) == (0, True)
    assert isinstance(log.register("n2", "b", untimed, version=0), Registered)
    # One that an old node has just opened is as new as its entry.
    other = msgspec.structs.replace(log.living("n2", "x"), client_id="d")
    assert log.adopt("n1", other).channel.version == NOW


def test_an_adopted_channel_from_before_the_raise_stays_older() -> None:
    log = new_log(version=2)
    a = owner(log.register("n1", "a", version=2**63 - 1))
    log.unregister("n1", a)
    adopted = raised(log).adopt("n1", a).channel
    assert adopted == a
    assert isinstance(log.register("n2", "b", a, version=0), Registered)
