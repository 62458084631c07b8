"""Puts that the quota does not judge one by one: the decisions are those of the full judgement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import NoSpace, Refused
from raftkv.kv import (
    FROM_KEY,
    KV,
    Compact,
    DeleteRange,
    DeleteRangeOp,
    Grant,
    Put,
    PutOp,
    PutWith,
    Revoke,
    Txn,
)
from raftkv.plugin import Context, Plugin
from raftkv.state import DisarmAlarm, Envelope, PurePlugin, SetSetting, StateMachine
from raftkv.state.batch import encode_batch
from raftkv.state.quota import GROWTH_FACTOR, Gate, Usage
from tests.state.harness import copy_of, encode, node_up

KIB = 1024


class Entries:
    """A machine that applies whole entries of commands."""

    def __init__(
        self, quota: int, *, short_way: bool = True, plugins: Sequence[PurePlugin] = ()
    ) -> None:
        self.short_way = short_way
        self.seq = 0
        self._take(StateMachine(plugins or [KV()]))
        self.machine.raise_format(1, msgspec.msgpack.encode(2))
        up = Envelope(0, 9, 0, "core", encode(node_up(9, "n1", self.machine)))
        body = encode_batch(1, [up])
        self.session = self.machine.apply(self.machine.index + 1, body)[0][2].session
        self.apply([SetSetting.of("kv", "quota_bytes", quota)])

    def _take(self, machine: StateMachine) -> None:
        self.machine = machine
        if not self.short_way:
            for gate in machine._gates:
                gate.modest = frozenset()

    def restart(self) -> None:
        self._take(copy_of(self.machine, [KV()]))

    def body(self, commands: Sequence[Any]) -> bytes:
        envelopes = []
        for command in commands:
            self.seq += 1
            plugin = "core" if isinstance(command, SetSetting | DisarmAlarm) else "kv"
            plugin = "making" if isinstance(command, Make) else plugin
            envelopes.append(Envelope(self.session, self.seq, self.seq, plugin, encode(command)))
        return encode_batch(1, envelopes)

    def apply(self, commands: Sequence[Any]) -> list[Any]:
        self.last = self.body(commands)
        outcomes = self.machine.apply(self.machine.index + 1, self.last)
        return [outcome for _, _, outcome in outcomes]

    @property
    def bytes(self) -> int:
        return self.machine.usages["kv"].bytes


KEYS = st.sampled_from([b"a", b"b", b"ba", b"c", b"long" * 20])
VALUES = st.sampled_from([b"", b"x", b"y" * 300, b"z" * 3000])
PUTS = st.builds(Put, KEYS, VALUES)
COMMANDS = st.one_of(
    PUTS,
    PUTS,
    PUTS,
    PUTS,
    st.builds(PutWith, KEYS, VALUES, st.just(False), st.sampled_from([0, 1, 2])),
    # It keeps a value that is not in its encoding.
    st.builds(PutWith, KEYS, st.just(b""), ignore_value=st.just(True)),
    st.builds(DeleteRange, KEYS, st.sampled_from([b"", b"b", FROM_KEY])),
    st.builds(
        lambda key, value: Txn(success=(PutOp(key, value), DeleteRangeOp(b"b"))), KEYS, VALUES
    ),
    st.builds(Compact, st.integers(1, 60)),
    st.builds(Grant, st.just(60), st.sampled_from([1, 2])),
    st.builds(Revoke, st.sampled_from([1, 2])),
    st.builds(
        lambda kib: SetSetting.of("kv", "quota_bytes", kib * KIB),
        st.sampled_from([16, 64, 96, 999]),
    ),
    st.just(DisarmAlarm("NOSPACE")),
)
ENTRIES = st.one_of(st.lists(PUTS, max_size=20), st.lists(COMMANDS, max_size=12), st.none())


@settings(max_examples=100, deadline=None)
@given(st.lists(ENTRIES, max_size=20), st.sampled_from([16, 48, 96, 512, 2048]))
def test_the_short_way_decides_as_the_full_judgement(
    entries: list[list[Any] | None], quota_kib: int
) -> None:
    short, full = Entries(quota_kib * KIB), Entries(quota_kib * KIB, short_way=False)
    for commands in entries:
        if commands is None:
            short.restart()  # nothing that it knows is needed for a decision
            continue
        assert str(short.apply(commands)) == str(full.apply(commands))
        assert short.bytes == full.bytes
        assert short.machine.alarms == full.machine.alarms
    assert short.machine.digest() == full.machine.digest()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(PUTS, min_size=1, max_size=30), max_size=12))
def test_puts_add_no_more_than_the_bound_of_modest_commands(entries: list[list[Put]]) -> None:
    keyspace = Entries(1 << 40)
    for commands in entries:
        before, body = keyspace.bytes, keyspace.body(commands)
        keyspace.machine.apply(keyspace.machine.index + 1, body)
        assert keyspace.bytes <= 2 * before + GROWTH_FACTOR * len(body)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The counts at which commands were judged."""
    counts: list[int] = []
    exceeds = Usage.exceeds

    def noting(usage: Usage, quota_bytes: int) -> bool:
        counts.append(usage.bytes)
        return exceeds(usage, quota_bytes)

    monkeypatch.setattr(Usage, "exceeds", noting)
    return counts


def test_puts_are_judged_only_near_the_quota(judged: list[int]) -> None:
    keyspace = Entries(8 << 20)
    keyspace.apply([Put(b"k%d" % number, b"v" * KIB) for number in range(20)])
    assert judged == []
    near = []
    while keyspace.bytes <= 5 << 20:
        before, body = keyspace.bytes, keyspace.body([Put(b"k%d" % keyspace.seq, b"v" * 32 * KIB)])
        keyspace.machine.apply(keyspace.machine.index + 1, body)
        if 2 * before + GROWTH_FACTOR * len(body) > 8 << 20:
            near.append(keyspace.bytes)
    assert judged == near != []
    del judged[:]
    keyspace.apply([Put(b"a", b""), Put(b"b", b"")])
    assert len(judged) == 2


def test_what_was_judged_in_one_entry_is_not_room_for_the_next() -> None:
    keyspace = Entries(64 * KIB)
    keyspace.apply([Put(b"a", b"v" * 32400)])
    assert 64 * KIB - 300 < keyspace.bytes <= 64 * KIB
    # Small enough for the room that there was before that entry.
    restarted = copy_of(keyspace.machine, [KV()])
    assert isinstance(keyspace.apply([Put(b"b", b"v" * 100)])[0], NoSpace)
    assert keyspace.machine.alarms == [("NOSPACE", "kv")]
    restarted.apply(restarted.index + 1, keyspace.last)
    assert restarted.digest() == keyspace.machine.digest()


KEEPING = PutWith(b"big", b"", ignore_value=True)
LAST = Put(b"c", b"v" * 3000)


def with_big_value(quota: int) -> Entries:
    keyspace = Entries(quota)
    keyspace.apply([Put(b"big", b"v" * 64 * KIB)])
    return keyspace


def test_what_a_small_command_keeps_is_seen_by_the_puts_behind_it() -> None:
    # Each adds twice a value that is not in its encoding.
    before = [Put(b"a", b""), *[KEEPING] * 40]
    measured = with_big_value(1 << 40)
    measured.apply(before)
    keyspace = with_big_value(measured.bytes + 3000)
    outcomes = keyspace.apply([*before, LAST])
    assert not any(isinstance(outcome, Refused) for outcome in outcomes[:-1])
    assert isinstance(outcomes[-1], NoSpace)


def test_a_quota_lowered_between_puts_of_one_entry_is_seen() -> None:
    keyspace = with_big_value(32 << 20)
    lower = SetSetting.of("kv", "quota_bytes", 16 * KIB)
    outcomes = keyspace.apply([Put(b"a", b""), lower, LAST])
    assert not any(isinstance(outcome, Refused) for outcome in outcomes[:-1])
    assert isinstance(outcomes[-1], NoSpace)
    assert keyspace.machine.alarms == [("NOSPACE", "kv")]


class Make(msgspec.Struct, frozen=True, array_like=True, tag="make"):
    Result: ClassVar[Any] = bool


class Making(Plugin[None]):
    """Writes a large key of its own choice."""

    name: ClassVar[str] = "making"
    uses: ClassVar[tuple[str, ...]] = ("kv",)
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Make,)

    def apply(self, command: Any, ctx: Context) -> bool:
        ctx.call("kv", Put(b"made", b"v" * 512 * KIB))
        return True


def test_what_another_plugin_calls_between_puts_of_one_entry_is_seen() -> None:
    before = [Put(b"a", b""), Make()]
    measured = Entries(1 << 40, plugins=[KV(), Making()])
    measured.apply(before)
    keyspace = Entries(measured.bytes + 3000, plugins=[KV(), Making()])
    outcomes = keyspace.apply([*before, LAST])
    assert outcomes[1] is True
    assert isinstance(outcomes[2], NoSpace)


def test_an_alarm_of_a_used_plugin_ends_the_short_way() -> None:
    keyspace = Entries(1 << 30)
    keyspace.apply([Put(b"a", b"")])
    gate: Gate = keyspace.machine._gates[0]
    assert gate.ample == keyspace.machine.index
    keyspace.machine._overrun.append("kv")
    keyspace.machine._raise_alarms()
    assert isinstance(keyspace.apply([Put(b"b", b"")])[0], NoSpace)
    assert gate.ample == 0
