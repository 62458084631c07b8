"""A snapshot read chunk by chunk beside a state that goes on changing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import DamagedSnapshot
from raftkv.kv import KV
from raftkv.kv.commands import DeleteRange, Put
from raftkv.state.core import OpenSession
from raftkv.state.machine import StateMachine
from raftkv.waste import KEPT_ITEMS_MIN
from tests.state.install_tools import Log

KEYS = KEPT_ITEMS_MIN + 300


def filled(text: bytes = b"v", sessions: int = 3) -> Log:
    log = Log()
    for nonce in range(sessions):
        log.apply(0, nonce, "core", OpenSession(nonce))
    for number in range(KEYS):
        log.apply(log.sessions[number % sessions], number, "kv", Put(b"%05d" % number, text))
    return log


SOURCE = filled()
CHUNKS = list(SOURCE.machine.freeze().slices(40))
DIGEST = SOURCE.machine.digest()


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=len(CHUNKS), max_size=len(CHUNKS)))
def test_reading_and_applying_take_turns(applied: list[int]) -> None:
    log = Log()
    log.apply(0, 1, "core", OpenSession(1))
    (session,) = log.sessions
    twin = Log()
    twin.apply(0, 1, "core", OpenSession(1))
    reader, seq = log.machine.reader(), 0
    for chunk, count in zip(CHUNKS, applied, strict=True):
        reader.add(chunk)
        for _ in range(count):
            for each in (log, twin):
                each.apply(session, seq, "kv", Put(b"old-%d" % seq, b"x"))
            seq += 1
        assert log.machine.digest() == twin.machine.digest()
    image = reader.finish()
    log.machine.adopt(image, SOURCE.machine.index)
    assert log.machine.digest() == DIGEST
    assert log.machine.view("kv").table("keys").get(b"old-0") is None
    # And it goes on from there, as its source does.
    other = StateMachine([KV()])
    other.restore(CHUNKS, SOURCE.machine.index)
    for machine in (log.machine, other):
        Log.on(machine, SOURCE.sessions).apply(SOURCE.sessions[0], KEYS, "kv", Put(b"n", b"n"))
    assert log.machine.digest() == other.digest()


def test_a_walk_of_the_old_state_goes_on_and_is_freed_at_its_end() -> None:
    log = filled(b"old", sessions=1)
    before = log.machine.digest()
    walk = log.machine.freeze()
    slices = walk.slices(50)
    for _ in range(3):
        next(slices)
    log.machine.restore(CHUNKS, max(SOURCE.machine.index, log.machine.index))
    assert len(log.machine.waste) == 0
    for _ in slices:
        assert log.machine.digest() == DIGEST
    assert walk.digest == before
    assert len(log.machine.waste) == 2  # the keys, and their history
    steps = 1
    while log.machine.waste.sweep(100):
        steps += 1
    assert steps >= KEYS // 100
    assert log.machine.digest() == DIGEST


def test_what_was_read_and_is_not_used_is_freed_in_steps() -> None:
    log = Log()
    reader = log.machine.reader()
    for chunk in CHUNKS[:-1]:
        reader.add(chunk)
    with pytest.raises(DamagedSnapshot):
        reader.finish()
    reader.discard(log.machine.waste)
    assert len(log.machine.waste) == 2  # the keys, and their history
    while log.machine.waste.sweep():
        pass
    assert log.machine.index == 1


def test_freezing_many_sessions_copies_none_and_saves_what_changes() -> None:
    log = filled(sessions=200)
    before = log.machine.digest()
    walk = log.machine.freeze()
    sessions = log.machine._sessions
    (frozen,) = sessions.walks
    assert frozen._saved == {}
    last = log.sessions[-1]
    for seq in range(KEYS, KEYS + 5):
        log.apply(last, seq, "kv", Put(b"k", b"v"), floor=seq)
    assert list(frozen._saved) == [last]
    log.apply(last, KEYS + 9, "kv", DeleteRange(b"0", b"1"))
    for _ in walk.slices(30):
        pass
    assert walk.digest == before
    assert frozen._saved == {}
    assert sessions.walks == ()
