"""Exactly-once: duplicates, any order, floors, windows, ends of sessions, settled outcomes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import (
    OutcomeExpired,
    Refused,
    SequenceTooFar,
    SessionExpired,
    StaleIncarnation,
    TooManySessions,
    UnknownPlugin,
)
from raftkv.state import (
    Envelope,
    NodeDown,
    OpenSession,
    OutcomeReport,
    SettleOutcome,
    StateMachine,
)
from raftkv.state.sessions import ABANDONED, CLIENT_KEPT_MS, Session, Sessions
from raftkv.state.tables import ABSENT
from tests.state.harness import (
    Balance,
    Bank,
    Close,
    Deposit,
    Driver,
    Overdrawn,
    Shop,
    Transfer,
    copy_of,
    encode,
    node_up,
    replay,
)


def small(window: int = 4, clients_max: int = 3, idle_ms: int = 1000) -> StateMachine:
    return StateMachine([Bank(), Shop()], sessions=Sessions(window, clients_max, idle_ms))


def started(machine: StateMachine | None = None) -> Driver:
    driver = Driver(machine)
    driver.start()
    return driver


def test_a_repeated_command_takes_effect_once_and_gets_the_first_result() -> None:
    driver = started()
    first = driver.send(Deposit("a", 5), seq=1)
    assert driver.send(Deposit("a", 5), seq=1) == first == Balance("a", 5)
    assert driver.batch([driver.envelope(Deposit("a", 5), seq=2)] * 3) == [Balance("a", 10)] * 3
    assert driver.table("accounts") == {"a": 10}


def test_a_repeated_refusal_is_the_same_refusal_even_if_it_would_now_succeed() -> None:
    driver = started()
    first = driver.send(Transfer("a", "b", 5), seq=1)
    assert isinstance(first, Overdrawn)
    assert first.args == ("a", -5)
    driver.send(Deposit("a", 100), seq=2)
    again = driver.send(Transfer("a", "b", 5), seq=1)
    assert (type(again), again.args) == (Overdrawn, ("a", -5))
    assert again is not first
    assert driver.table("accounts") == {"a": 100}


def test_a_handed_out_refusal_does_not_change_the_kept_one() -> None:
    driver = started()
    first = driver.send(Transfer("a", "b", 5), seq=1)
    with pytest.raises(Overdrawn):
        raise first
    assert first.__traceback__ is not None
    assert driver.send(Transfer("a", "b", 5), seq=1).__traceback__ is None


def test_numbers_may_arrive_in_any_order() -> None:
    driver = started()
    for seq in (3, 1, 2, 1, 3):
        driver.send(Deposit("a", seq), seq=seq)
    assert driver.table("accounts") == {"a": 6}


def test_below_the_floor_there_is_no_answer_any_more() -> None:
    driver = started()
    driver.send(Deposit("a", 1), seq=1)
    driver.send(Deposit("a", 1), seq=2, floor=2)
    assert isinstance(driver.send(Deposit("a", 1), seq=1), OutcomeExpired)
    assert driver.send(Deposit("a", 1), seq=2) == Balance("a", 2)
    assert driver.table("accounts") == {"a": 2}


def test_an_older_floor_changes_nothing_and_a_floor_above_its_own_number_is_cut() -> None:
    driver = started()
    driver.send(Deposit("a", 1), seq=9, floor=9)
    assert driver.send(Deposit("a", 1), seq=10, floor=3) == Balance("a", 2)
    assert isinstance(driver.send(Deposit("a", 1), seq=8, floor=3), OutcomeExpired)
    assert driver.send(Deposit("a", 1), seq=11, floor=2**62) == Balance("a", 3)
    assert driver.send(Deposit("a", 1), seq=11) == Balance("a", 3)


def test_the_window_is_bounded_and_being_beyond_it_is_not_remembered() -> None:
    driver = started(small(window=4))
    assert driver.send(Deposit("a", 1), seq=3) == Balance("a", 1)
    assert isinstance(driver.send(Deposit("a", 1), seq=4), SequenceTooFar)
    driver.send(Deposit("a", 1), seq=2, floor=1)
    assert driver.send(Deposit("a", 1), seq=4) == Balance("a", 3)
    assert isinstance(driver.send(Deposit("a", 1), seq=-1), OutcomeExpired)
    assert isinstance(driver.send(Deposit("a", 1), seq=2**63 - 1), SequenceTooFar)


def test_an_unknown_session_is_refused_and_not_created() -> None:
    driver = started()
    driver.session += 1
    assert isinstance(driver.send(Deposit("a", 1)), SessionExpired)
    driver.session = 0
    assert isinstance(driver.send(Deposit("a", 1)), SessionExpired)
    assert isinstance(driver.send(NodeDown("n1", 1), plugin="core"), SessionExpired)
    assert isinstance(driver.batch([Envelope(0, 1, 0, "core", b"\xc1")])[0], SessionExpired)
    assert driver.table("accounts") == {}
    assert driver.machine.session_count == 1


def test_a_restarted_node_never_meets_the_answers_of_its_former_life() -> None:
    driver = started()
    driver.send(Deposit("a", 1), seq=1)
    old = driver.session
    driver.start()
    assert driver.session != old
    assert driver.send(Deposit("a", 1), seq=1) == Balance("a", 2)
    driver.session = old
    assert isinstance(driver.send(Deposit("a", 1), seq=1), SessionExpired)
    assert driver.machine.session_count == 1


def test_one_nonce_opens_one_session_also_when_the_duplicate_is_late() -> None:
    driver = Driver()
    first = driver.start()
    up = Envelope(0, 1, 0, "core", encode(node_up(1, "n1", driver.machine)))
    assert driver.batch([up, up]) == [first, first]
    second = driver.start()
    assert (second.incarnation, driver.machine.session_count) == (2, 1)
    # The duplicate of the first life must not end the second one.
    assert driver.batch([up]) == [first]
    assert driver.send(Deposit("a", 1)) == Balance("a", 1)
    assert driver.machine.session_of("n1", 1) == (first.session, 1)
    assert driver.machine.session_of("n1", 2) == (second.session, 2)
    assert driver.machine.session_of("n1", 3) is None


def test_remembered_nonces_are_bounded() -> None:
    driver = Driver()
    for _ in range(40):
        driver.start()
    assert len(driver.table("openings", "core")) == 16
    assert driver.machine.session_of("n1", 40) is not None


def test_a_declared_death_ends_the_session() -> None:
    driver = started()
    driver.start("n2")
    assert driver.send(NodeDown("n1", 1), plugin="core").incarnation == 2
    assert driver.machine.session_count == 1
    assert isinstance(driver.send(NodeDown("n1", 1), plugin="core"), StaleIncarnation)
    assert isinstance(driver.send(NodeDown("n1", 2), plugin="core"), StaleIncarnation)
    assert isinstance(driver.send(NodeDown("n9", 1), plugin="core"), StaleIncarnation)


def test_a_node_may_declare_itself_dead() -> None:
    driver = started()
    answer = driver.batch([driver.envelope(NodeDown("n1", 1), "core"), driver.envelope(Close("a"))])
    assert answer[0].incarnation == 2
    assert isinstance(answer[1], SessionExpired)


def test_sessions_are_opened_outside_of_sessions_only() -> None:
    driver = started()
    assert type(driver.send(OpenSession(5), plugin="core")) is Refused
    assert type(driver.send(node_up(9, "n1", driver.machine), plugin="core")) is Refused
    assert driver.machine.session_count == 1


def open_client(driver: Driver, nonce: int) -> int:
    outcome = driver.batch([Envelope(0, nonce, 0, "core", encode(OpenSession(nonce)))])[0]
    return int(outcome.session)


def test_client_sessions() -> None:
    driver = started()
    session = open_client(driver, 5)
    assert open_client(driver, 5) == session
    driver.session = session
    assert driver.send(Deposit("a", 1), seq=0) == Balance("a", 1)
    assert driver.send(Deposit("a", 1), seq=0) == Balance("a", 1)


def test_the_least_recently_used_client_makes_room() -> None:
    driver = started(small(clients_max=3))
    sessions = [open_client(driver, nonce) for nonce in (5, 6, 7)]
    driver.session = sessions[0]
    driver.send(Deposit("a", 1), seq=1)
    open_client(driver, 8)
    assert driver.machine.session_count == 4
    outcomes = []
    for driver.session in sessions:
        outcomes.append(type(driver.send(Deposit("a", 1), seq=2)))
    assert outcomes == [Balance, SessionExpired, Balance]


def at_format_2(machine: StateMachine) -> Driver:
    driver = started(machine)
    driver.machine.raise_format(driver.machine.index + 1, msgspec.msgpack.encode(2))
    return driver


def opened(driver: Driver, nonce: int) -> Any:
    """What opening one more session gives: its number, or a refusal."""
    outcome = driver.batch([Envelope(0, nonce, 0, "core", encode(OpenSession(nonce)))])[0]
    return outcome if isinstance(outcome, TooManySessions) else outcome.session


def test_a_flood_of_sessions_ends_none_that_writes() -> None:
    """From core format 2 on; in format 1 the least recently used one goes."""
    survives = []
    for driver in (started(small(clients_max=5)), at_format_2(small(clients_max=5))):
        client = driver.session = open_client(driver, 1)
        assert driver.send(Deposit("a", 1), seq=1) == Balance("a", 1)
        for nonce in range(2, 50):
            assert opened(driver, nonce)
        driver.session = client
        survives.append(type(driver.send(Deposit("a", 1), seq=1)))
        assert driver.machine.session_count == 1 + 5
    assert survives == [SessionExpired, Balance]


def test_the_oldest_session_that_never_wrote_makes_room() -> None:
    driver = at_format_2(small(clients_max=3))
    first, second, third = (open_client(driver, nonce) for nonce in (5, 6, 7))
    driver.session = first
    driver.send(Deposit("a", 1), seq=1)
    fourth = opened(driver, 8)
    nonces = [driver.machine.client_nonce(each) for each in (first, second, third, fourth)]
    assert nonces == [5, None, 7, 8]


def test_no_session_makes_room_within_ten_minutes_of_its_write() -> None:
    driver = at_format_2(small(clients_max=2, idle_ms=10 * CLIENT_KEPT_MS))
    clients = [open_client(driver, nonce) for nonce in (5, 6)]
    for driver.session in clients:
        driver.send(Deposit("a", 1), seq=1)
    driver.now += CLIENT_KEPT_MS - 100  # a batch takes 10 ms
    assert isinstance(opened(driver, 7), TooManySessions)
    driver.session = clients[0]
    driver.send(Deposit("a", 1), seq=2)
    driver.now += 100
    assert isinstance(opened(driver, 7), int)
    assert [driver.machine.client_nonce(each) for each in clients] == [5, None]
    # The same from a snapshot.
    restored = small(clients_max=2, idle_ms=10 * CLIENT_KEPT_MS)
    restored.restore(list(driver.machine.freeze().slices()), driver.machine.index)
    assert isinstance(opened(driver, 8), int), "7 never wrote"
    replay(driver.bodies[-1:], restored)
    assert restored.digest() == driver.machine.digest()


def test_idle_clients_expire_on_the_logs_clock_and_nodes_do_not() -> None:
    driver = started(small(idle_ms=1000))
    node = driver.session
    idle, busy = open_client(driver, 5), open_client(driver, 6)
    driver.now += 900
    driver.session = busy
    driver.send(Deposit("a", 1), seq=1)
    driver.now += 900
    assert driver.send(Deposit("a", 1), seq=2) == Balance("a", 2)
    driver.session = idle
    assert isinstance(driver.send(Deposit("a", 1), seq=1), SessionExpired)
    driver.session = node
    driver.now += 10**9
    assert driver.send(Deposit("a", 1), seq=1) == Balance("a", 3)
    assert driver.machine.session_count == 1


def test_expiring_many_clients_is_spread_over_batches() -> None:
    driver = started(small(clients_max=100, idle_ms=1000))
    for nonce in range(50):
        open_client(driver, nonce)
    driver.now += 10**6
    counts = []
    for _ in range(5):
        driver.send(Deposit("a", 1))
        counts.append(driver.machine.session_count - 1)
    assert counts == [34, 18, 2, 0, 0]


def test_the_order_of_use_survives_a_snapshot() -> None:
    drivers = started(small(clients_max=3))
    sessions = [open_client(drivers, nonce) for nonce in (5, 6, 7)]
    node = drivers.session
    for index in (1, 0, 2):
        drivers.session = sessions[index]
        drivers.send(Deposit("a", 1), seq=1)
    restored = small(clients_max=3)
    restored.restore(list(drivers.machine.freeze().slices()), drivers.machine.index)
    drivers.session = node
    before = len(drivers.bodies)
    open_client(drivers, 8)
    replay(drivers.bodies[before:], restored)
    assert restored.digest() == drivers.machine.digest()
    assert isinstance(restored.recall(sessions[1], 1, None), SessionExpired)


def test_settling_an_outcome() -> None:
    driver = started()
    driver.send(Deposit("a", 5), seq=1)
    driver.send(Transfer("b", "a", 5), seq=2)
    asker = driver.session

    def settle(seq: int, session: int = asker) -> OutcomeReport:
        report = driver.send(SettleOutcome(session, seq), plugin="core")
        assert isinstance(report, OutcomeReport)
        return report

    driver.seq = 100
    read = driver.machine.read_report
    assert settle(1).verdict == "applied"
    assert read(settle(1), Deposit) == Balance("a", 5)
    assert read(settle(1), None) == ["balance", "a", 5]
    assert settle(2).verdict == "refused"
    refusal = read(settle(2), Transfer)
    assert (type(refusal), refusal.args) == (Overdrawn, ("b", -5))
    assert settle(3) == settle(3) == OutcomeReport("not_applied")
    assert read(settle(3), Deposit) is None
    assert settle(1, session=12345).verdict == "expired"
    driver.send(Deposit("a", 0), seq=99, floor=2)
    assert settle(1).verdict == "expired"
    outcome = driver.send(SettleOutcome(asker, 2**40), plugin="core")
    assert isinstance(outcome, SequenceTooFar)


def test_what_was_settled_as_not_applied_never_applies() -> None:
    driver = started()
    assert driver.send(SettleOutcome(driver.session, 7), plugin="core").verdict == "not_applied"
    assert isinstance(driver.send(Deposit("a", 1), seq=7), OutcomeExpired)
    restored = copy_of(driver.machine)
    before = len(driver.bodies)
    assert isinstance(driver.send(Deposit("a", 1), seq=7), OutcomeExpired)
    assert driver.send(SettleOutcome(driver.session, 7), plugin="core").verdict == "not_applied"
    assert replay(driver.bodies[before:], restored).digest() == driver.machine.digest()
    assert driver.table("accounts") == {}


def test_outcomes_survive_a_snapshot_typed() -> None:
    driver = started()
    commands = [Deposit("a", 5), Transfer("b", "a", 5), Close("x")]
    outcomes = [driver.send(command, seq=seq) for seq, command in enumerate(commands)]
    driver.send(Close("x"), plugin="nobody", seq=3)
    other = Driver(copy_of(driver.machine))
    other.session = driver.session
    recalled = [
        other.machine.recall(other.session, seq, type(command))
        for seq, command in enumerate(commands)
    ]
    repeated = [other.send(command, seq=seq) for seq, command in enumerate(commands)]
    for first, again, known in zip(outcomes, repeated, recalled, strict=True):
        assert type(again) is type(known) is type(first)
        if not isinstance(first, Refused):
            assert again == known == first
        else:
            assert again.args == known.args == first.args
    assert isinstance(other.send(Close("x"), plugin="nobody", seq=3), UnknownPlugin)
    assert other.machine.recall(other.session, 55, Close) is ABSENT
    assert isinstance(other.machine.recall(999, 0, Close), SessionExpired)


def test_a_number_used_for_two_commands_keeps_its_first_answer_on_every_node() -> None:
    driver = started()
    driver.send(Deposit("a", 5), seq=1)
    restored = copy_of(driver.machine)
    before = len(driver.bodies)
    assert driver.send(Close("a"), seq=1) == Balance("a", 5)
    assert driver.send(Close("a"), seq=1, plugin="nobody") == Balance("a", 5)
    assert driver.batch([Envelope(driver.session, 1, 0, "bank", b"\xc1")]) == [Balance("a", 5)]
    replay(driver.bodies[before:], restored)
    assert restored.digest() == driver.machine.digest()


@pytest.mark.parametrize("gap", [1, 3, 10, 10**12])
def test_raising_the_floor_drops_what_is_below_and_nothing_else(gap: int) -> None:
    session = Session(1, "n", 1, 0)
    session.done = {seq: str(seq) for seq in (0, 1, 4, 7, 11)}
    session.raise_floor(gap)
    assert session.floor == gap
    assert session.done == {seq: str(seq) for seq in (0, 1, 4, 7, 11) if seq >= gap}


def test_abandoning_does_not_overwrite_an_outcome() -> None:
    sessions = Sessions()
    sessions.open_node(1, "n", 1, 0)
    sessions.by_id[1].done[5] = "first"
    sessions.abandon(1, 5)
    sessions.abandon(1, 6)
    assert sessions.by_id[1].done == {5: "first", 6: ABANDONED}


ARRIVAL = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from(["d", "t", "s"])),
    max_size=40,
)


@given(ARRIVAL, st.lists(st.integers(1, 5), min_size=1, max_size=20))
@settings(max_examples=200)
def test_exactly_once_against_a_model(arrivals: list[Any], cuts: list[int]) -> None:
    """Any arrival of numbers and floors, batched anyhow: the model is what the essay says."""
    driver = started(small(window=6))
    kept: dict[int, Any] = {}
    floor, balance = 0, 0
    envelopes, expected = [], []
    for seq, told, kind in arrivals:
        commands = {"d": Deposit("a", 1), "t": Transfer("a", "b", 1 + seq), "s": Close("z")}
        envelopes.append(driver.envelope(commands[kind], seq=seq, floor=told))
        floor = max(floor, min(told, seq))
        kept = {number: value for number, value in kept.items() if number >= floor}
        if seq in kept:
            expected.append(kept[seq])
        elif seq < floor:
            expected.append("expired")
        elif seq >= floor + 6:
            expected.append("far")
        else:
            if kind == "d":
                balance += 1
                kept[seq] = Balance("a", balance)
            elif kind == "s":
                kept[seq] = False
            elif balance < 1 + seq:
                kept[seq] = ("refused", ("a", balance - 1 - seq))
            else:
                balance -= 1 + seq
                kept[seq] = Balance("a", balance)
            expected.append(kept[seq])
    found, start = [], 0
    for cut in [*cuts, len(envelopes)]:
        found += driver.batch(envelopes[start : start + cut])
        start += cut
    assert [plain(outcome) for outcome in found] == expected
    assert driver.table("accounts").get("a", 0) == balance


def plain(outcome: Any) -> Any:
    if isinstance(outcome, OutcomeExpired):
        return "expired"
    if isinstance(outcome, SequenceTooFar):
        return "far"
    return ("refused", outcome.args) if isinstance(outcome, Refused) else outcome


def test_a_number_used_for_two_commands_is_recalled_as_the_first_after_a_restore() -> None:
    # Recalled while a snapshot is installed: a client's mistake must not stop the node.
    driver = started()
    driver.send(Deposit("a", 5), seq=1)
    restored = copy_of(driver.machine)
    assert restored.recall(driver.session, 1, Deposit) == Balance("a", 5)
    assert restored.recall(driver.session, 1, Close) == ["balance", "a", 5]
