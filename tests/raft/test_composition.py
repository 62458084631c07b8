"""Which commands a leader takes into the next entry: order, shares, fairness, no starvation."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from raftkv.raft.composition import (
    BURST,
    COSTLY_ROWS,
    FLIGHT_ROWS,
    SHARE_ROWS,
    Composition,
)
from tests.raft.harness import A, B, Bench, accepted

MARKS = (b"\xa3txn",)
# Bytes within which the mark stands.
REACH = 48
BYTES_MAX, COMMANDS_MAX = 4_000, 64


def command(session: int, number: int, rows: int = 1, size: int = 0) -> bytes:
    """An envelope as a node encodes it. Its estimate is `rows`, which stand in it."""
    tag = b"\xa3txn" if rows > 1 else b"\xa3put"
    body = tag + b"%d" % rows + b"\0" + bytes(size)
    return msgspec.msgpack.encode((session, number, 0, "kv", body))


def parts(data: bytes) -> tuple[int, int, int]:
    """(session, number, rows) of a command."""
    session, number, _, _, body = msgspec.msgpack.decode(data)
    return session, number, int(body[4 : body.index(b"\0")])


def estimate(data: bytes) -> int:
    return parts(data)[2]


def taken(composition: Composition, flight: int = 0) -> list[tuple[int, int, int]]:
    return [parts(each) for each in composition.take(BYTES_MAX, COMMANDS_MAX, flight, MARKS, REACH)]


def test_what_fits_and_cannot_be_costly_is_taken_as_it_came_and_never_estimated() -> None:
    def refuse(data: bytes) -> int:
        raise AssertionError("estimated")

    composition = Composition(refuse)
    commands = [command(session, number) for number in range(5) for session in (1, 2, 3)]
    composition.add(commands[:7])
    composition.add(commands[7:])
    assert composition.take(BYTES_MAX, COMMANDS_MAX, 0, MARKS, REACH) == commands
    assert (composition.commands, composition.bytes, composition.taken_rows) == (0, 0, 0)
    assert composition.take(BYTES_MAX, COMMANDS_MAX, 0, MARKS, REACH) == []


def test_costly_commands_stand_behind_the_cheap_ones_of_others() -> None:
    composition = Composition(estimate)
    composition.add([command(1, 1, SHARE_ROWS), command(2, 1), command(2, 2)])
    assert taken(composition) == [(2, 1, 1), (2, 2, 1), (1, 1, SHARE_ROWS)]
    assert composition.taken_rows == SHARE_ROWS


def test_an_entry_and_the_entries_on_their_way_hold_a_bounded_share() -> None:
    composition = Composition(estimate)
    composition.add([command(session, 1, SHARE_ROWS // 2) for session in range(10)])
    composition.add([command(77, 1)])
    assert [rows for _, _, rows in taken(composition)] == [1, SHARE_ROWS // 2, SHARE_ROWS // 2]
    assert len(taken(composition, flight=SHARE_ROWS)) == 2
    composition.add([command(77, 2)])
    assert taken(composition, flight=FLIGHT_ROWS) == [(77, 2, 1)]
    assert taken(composition, flight=FLIGHT_ROWS) == []
    assert composition.commands == 6


def test_a_command_beyond_all_bounds_goes_alone_once_no_other_is_on_its_way() -> None:
    composition = Composition(estimate)
    composition.add([command(1, 1, 10 * FLIGHT_ROWS), command(2, 1, COSTLY_ROWS + 1)])
    assert taken(composition, flight=1) == []
    assert taken(composition) == [(1, 1, 10 * FLIGHT_ROWS)]
    assert taken(composition) == [(2, 1, COSTLY_ROWS + 1)]


def test_a_session_waits_for_its_own_costly_command_and_others_do_not() -> None:
    composition = Composition(estimate)
    composition.add([command(1, 1, SHARE_ROWS), command(1, 2), command(2, 1)])
    assert taken(composition, flight=FLIGHT_ROWS) == [(2, 1, 1)]
    assert taken(composition) == [(1, 1, SHARE_ROWS)]
    assert taken(composition) == [(1, 2, 1)]


def test_a_flood_of_one_session_does_not_hold_up_another() -> None:
    composition = Composition(estimate)
    composition.add([command(1, number) for number in range(20 * COMMANDS_MAX)])
    composition.add([command(2, number) for number in range(20 * COMMANDS_MAX)])
    composition.add([command(3, 1)])
    counts = Counter(session for session, _, _ in taken(composition))
    assert counts[3] == 1
    assert abs(counts[1] - counts[2]) <= BURST


def test_large_commands_pass_one_by_one() -> None:
    composition = Composition(estimate)
    large = [command(session, 1, size=2 * BYTES_MAX) for session in (1, 2, 3)]
    composition.add(large)
    composition.add([command(4, 1, SHARE_ROWS, size=2 * BYTES_MAX)])
    assert [len(taken(composition)) for _ in range(4)] == [1, 1, 1, 1]


ORIGINS = ("a", "b", "c")
Commands = st.lists(
    st.tuples(
        st.integers(0, 300),  # the session: of two and more lengths in msgpack
        st.sampled_from([1, 1, 1, 50, COSTLY_ROWS, COSTLY_ROWS + 1, SHARE_ROWS, 200_000]),
        st.sampled_from([0, 0, 10, 500, 5_000]),
        st.sampled_from(["a", "a", "b", "c"]),
    ),
    max_size=150,
)


def test_what_is_held_back_is_bounded_in_bytes_and_leaves_room_for_cheap_commands() -> None:
    size = len(command(1, 1, SHARE_ROWS, 1_000))
    composition = Composition(estimate, 6 * size + 100)
    composition.add([command(session, 1, SHARE_ROWS, 1_000) for session in range(1, 9)])
    composition.add([command(9, 1), command(1, 2)])
    assert taken(composition) == [(9, 1, 1), (1, 1, SHARE_ROWS)]
    # Five costly ones; what stands behind one of them is so small that it finds room.
    assert composition.dropped == 5
    composition.add([command(4, 1, SHARE_ROWS, 1_000)])
    again = [taken(composition) for _ in range(4)]
    assert again == [
        [(1, 2, 1), (2, 1, SHARE_ROWS)],
        [(3, 1, SHARE_ROWS)],
        [(4, 1, SHARE_ROWS)],
        [],
    ]
    assert (composition.commands, composition.bytes, composition._held_bytes) == (0, 0, 0)


def test_what_stands_behind_a_costly_command_of_its_session_is_held_back_with_it() -> None:
    composition = Composition(estimate, len(command(1, 1, SHARE_ROWS)))
    composition.add([command(1, 1, SHARE_ROWS), command(1, 2), command(2, 1)])
    assert taken(composition) == [(2, 1, 1), (1, 1, SHARE_ROWS)]
    assert composition.dropped == 1


def test_no_origin_takes_the_room_of_others_for_what_is_held_back() -> None:
    size = len(command(1, 1, SHARE_ROWS, 1_000))
    composition = Composition(estimate, 6 * size)
    composition.add([command(session, 1, SHARE_ROWS, 1_000) for session in range(100)], "flood")
    composition.add([command(500, 1, SHARE_ROWS, 1_000)], "other")
    assert taken(composition, flight=FLIGHT_ROWS) == []
    assert composition.dropped == 97
    assert sum(taken(composition) == [(500, 1, SHARE_ROWS)] for _ in range(2)) == 1


def test_an_origin_gains_nothing_by_further_sessions() -> None:
    """Neither for costly commands nor for cheap ones, although all of them came before."""
    composition = Composition(estimate)
    many = [command(session, n, SHARE_ROWS) for n in range(3) for session in range(40)]
    composition.add(many, "many")
    composition.add([command(700, n, SHARE_ROWS) for n in range(3)], "one")
    sessions = [session for _ in range(6) for session, _, _ in taken(composition)]
    assert sessions.count(700) == 3

    composition = Composition(estimate)
    composition.add([command(n % 40, n) for n in range(20 * COMMANDS_MAX)], "many")
    composition.add([command(700, n) for n in range(20 * COMMANDS_MAX)], "one")
    counts = Counter(session == 700 for session, _, _ in taken(composition))
    assert abs(counts[True] - counts[False]) <= BURST


def test_origins_share_the_rows_of_costly_commands_and_not_their_number() -> None:
    composition = Composition(estimate)
    composition.add([command(1, n, SHARE_ROWS) for n in range(10)], "large")
    composition.add([command(2, n, SHARE_ROWS // 4) for n in range(20)], "small")
    rows: Counter[int] = Counter()
    for _ in range(10):
        for session, _, each in taken(composition):
            rows[session] += each
        if rows[2] < 20 * (SHARE_ROWS // 4):
            assert abs(rows[1] - rows[2]) <= SHARE_ROWS + SHARE_ROWS // 4


def test_an_origin_that_was_away_has_no_claim_for_that_time() -> None:
    composition = Composition(estimate)
    composition.add([command(1, n, SHARE_ROWS) for n in range(40)], "busy")
    for _ in range(20):
        assert len(taken(composition)) == 1
    composition.add([command(2, n, SHARE_ROWS) for n in range(10)], "late")
    sessions = [session for _ in range(10) for session, _, _ in taken(composition)]
    assert sessions.count(1) == sessions.count(2) == 5


def test_nothing_is_kept_of_origins_that_have_no_commands() -> None:
    composition = Composition(estimate)
    for number in range(100):
        composition.add([command(number, 1, SHARE_ROWS), command(number, 2)], f"node-{number}")
    while composition.commands:
        taken(composition)
    assert taken(composition) == []
    composition.add([command(1, 1, COSTLY_ROWS + 1)], "node-1")
    taken(composition)
    assert len(composition._origins) <= 1


def test_an_origin_whose_commands_fill_entries_does_not_keep_its_turn() -> None:
    composition = Composition(estimate)
    half = SHARE_ROWS // 10
    composition.add([command(1, n, half) for n in range(200)], "large")
    composition.add([command(2, 1)], "small")
    assert (2, 1, 1) in taken(composition) + taken(composition)


def test_a_large_cheap_command_finds_room_beside_large_costly_ones() -> None:
    composition = Composition(estimate)
    size = BYTES_MAX // 2 - 100
    composition.add([command(1, n, COSTLY_ROWS + 1, size) for n in range(50)], "costly")
    composition.add([command(2, 1, size=BYTES_MAX - 500)], "cheap")
    assert (2, 1, 1) in taken(composition) + taken(composition)


def test_a_command_larger_than_the_room_for_what_is_held_back_goes_alone() -> None:
    composition = Composition(estimate, 10)
    composition.add([command(1, 1, SHARE_ROWS, 1_000), command(2, 1, SHARE_ROWS, 1_000)])
    assert taken(composition) == [(1, 1, SHARE_ROWS)]
    assert composition.dropped == 1


@given(st.lists(Commands, min_size=1, max_size=6), st.integers(1, 3))
def test_order_bounds_and_progress(
    arrivals: list[list[tuple[int, int, int, str]]], lag: int
) -> None:
    """`lag`: after how many entries a costly command is applied."""
    composition = Composition(estimate)
    numbers: Counter[int] = Counter()
    sent: dict[int, list[int]] = {}
    got: dict[int, list[int]] = {}
    flights: list[int] = []
    entries = waited = 0
    while arrivals or composition.commands:
        if arrivals:
            for session, rows, size, origin in arrivals.pop(0):
                number = 1_000 * session + ORIGINS.index(origin)
                numbers[number] += 1
                sent.setdefault(number, []).append(numbers[number])
                composition.add([command(number, numbers[number], rows, size)], origin)
        flight = sum(flights[-lag:])
        left = composition.commands
        batch = composition.take(BYTES_MAX, COMMANDS_MAX, flight, MARKS, REACH)
        flights.append(composition.taken_rows if batch else 0)
        assert composition.commands == left - len(batch)
        costly = [rows for _, _, rows in map(parts, batch) if rows > COSTLY_ROWS]
        assert sum(costly) == flights[-1]
        assert sum(costly) <= SHARE_ROWS or (len(costly) == 1 and flight == 0)
        assert not costly or flight + sum(costly) <= FLIGHT_ROWS or flight == 0
        assert len(batch) <= COMMANDS_MAX
        assert sum(map(len, batch)) <= BYTES_MAX or len(batch) == 1
        for session, number, _ in map(parts, batch):
            got.setdefault(session, []).append(number)
        # Nothing is taken only while costly commands are on their way.
        assert batch or flight or not left
        entries += 1
        waited = 0 if batch or not left else waited + 1
        assert waited <= lag
        assert entries < 10_000
    assert got == sent
    assert composition.bytes == 0
    assert composition._held_bytes == 0
    assert not any(origin.sessions for origin in composition._origins.values())
    assert not composition._cheap
    assert not composition._costly


@given(st.integers(2, 40), st.integers(1, 40))
def test_each_session_gets_its_costly_command_in_its_turn(sessions: int, flood: int) -> None:
    """However many costly ones the first sessions have: one turn each is all others wait for."""
    composition = Composition(estimate)
    for session in range(1, sessions):
        composition.add([command(session, n, SHARE_ROWS) for n in range(flood)])
    composition.add([command(999, 1, SHARE_ROWS)])
    entries = 0
    while (999, 1, SHARE_ROWS) not in taken(composition):
        entries += 1
        assert entries <= sessions


def test_costly_commands_do_not_starve_among_cheap_ones() -> None:
    composition = Composition(estimate)
    composition.add([command(1, 1, SHARE_ROWS)])
    composition.add([command(2, number) for number in range(10 * COMMANDS_MAX)])
    assert (1, 1, SHARE_ROWS) in taken(composition)


# On a leader


def test_a_leader_takes_the_next_costly_command_once_the_former_is_applied() -> None:
    bench = Bench(A)
    term = bench.lead()
    first = bench.wal.last_index + 1
    rows = b"%d" % FLIGHT_ROWS
    bench.engine.propose([b"\x91\x01costly-" + rows, b"\x91\x02costly-" + rows, b"\x91\x03put"])
    bench.runtime.settle()
    entries = [entry.payload for entry in bench.wal.entries(first)]
    assert len(entries) == 1
    assert entries[0].index(b"put") < entries[0].index(b"costly-")
    bench.engine.propose([b"\x91\x04put"])
    bench.runtime.settle()
    assert b"costly-" not in bench.wal.entries(first + 1)[0].payload, "the first is not applied"
    bench.receive(B, accepted(term, bench.wal.last_index))
    bench.runtime.settle()
    assert bench.engine.applied == first + 1
    assert b"costly-" in bench.wal.entries(first + 2)[0].payload
