"""The quota of the keyspace: what counts, what is refused beyond it, the alarm NOSPACE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import InvalidSetting, NoSpace, Refused, UnknownCommand
from raftkv.kv import (
    FROM_KEY,
    KV,
    ClaimLessor,
    Compact,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    Expire,
    Grant,
    Put,
    PutOp,
    PutWith,
    RangeOp,
    Revoke,
    Txn,
    history,
)
from raftkv.plugin import Context, MemberChange, Plugin
from raftkv.state import DisarmAlarm, Envelope, PurePlugin, SetSetting, StateMachine
from raftkv.state.batch import encode_batch
from tests.state.harness import copy_of, encode, node_up

KIB = 1024
LIMIT = 64 * KIB
VALUE = b"v" * KIB


class Keyspace:
    """One machine of a keyspace with a small quota."""

    def __init__(
        self,
        core_format: int = 2,
        quota: int | None = LIMIT,
        plugins: Sequence[PurePlugin] = (),
    ) -> None:
        self.machine = StateMachine(plugins or [KV()])
        if core_format > 1:
            self.machine.raise_format(1, msgspec.msgpack.encode(core_format))
        self.seq = 0
        up = node_up(9, "n1", self.machine)
        self.session = self._apply(Envelope(0, 9, 0, "core", encode(up))).session
        if quota is not None:
            assert self.core(SetSetting.of("kv", "quota_bytes", quota)) is None

    def _apply(self, envelope: Envelope) -> Any:
        body = encode_batch(1, [envelope])
        return self.machine.apply(self.machine.index + 1, body)[0][2]

    def _send(self, plugin: str, command: Any) -> Any:
        self.seq += 1
        return self._apply(Envelope(self.session, self.seq, self.seq, plugin, encode(command)))

    def core(self, command: Any) -> Any:
        return self._send("core", command)

    def kv(self, command: Any) -> Any:
        return self._send("kv", command)

    def fill(self) -> int:
        """Put until the quota refuses; the keys that stand."""
        for number in range(1000):
            if isinstance(self.kv(Put(b"k%03d" % number, VALUE)), NoSpace):
                return number
        raise AssertionError("the quota never refused")

    @property
    def bytes(self) -> int:
        return self.machine.usages["kv"].bytes

    @property
    def alarms(self) -> list[tuple[str, str]]:
        return self.machine.alarms


def test_a_write_beyond_the_quota_is_refused_undone_and_raises_the_alarm() -> None:
    keyspace = Keyspace()
    stands = keyspace.fill()
    assert stands > 10
    assert keyspace.bytes <= LIMIT
    assert keyspace.alarms == [("NOSPACE", "kv")]
    assert (b"k%03d" % stands) not in keyspace.machine.view("kv").table("keys")
    # Whatever would add is refused now, however small it is.
    adding = [
        Put(b"k000", b""),
        PutWith(b"a", b""),
        Txn(success=(PutOp(b"a", b""),)),
        Txn(compare=(Compare(b"zz", "version", "=", 7),), success=(PutOp(b"a", b""),)),
        Grant(60),
    ]
    for command in adding:
        assert isinstance(keyspace.kv(command), NoSpace), command


def test_what_frees_space_or_only_reads_works_beyond_the_quota() -> None:
    keyspace = Keyspace()
    lease = keyspace.kv(Grant(60)).id
    keyspace.kv(PutWith(b"leased", b"", lease=lease))
    keyspace.fill()
    commands = [
        Txn(success=(RangeOp(b"k000"), DeleteRangeOp(b"k001"))),
        DeleteRange(b"k002"),
        Revoke(lease),
        ClaimLessor(),
        Expire(1, ()),
        Compact(20),
    ]
    for command in commands:
        assert not isinstance(keyspace.kv(command), Refused), command
    assert keyspace.core(SetSetting.of("kv", "history_revisions", 5)) is None
    assert not isinstance(keyspace.core(node_up(10, "n2", keyspace.machine)), NoSpace)


def test_only_a_disarm_ends_the_alarm_and_what_is_beyond_raises_it_again() -> None:
    keyspace = Keyspace()
    keyspace.fill()
    # Room alone does not end it.
    deleted = keyspace.kv(DeleteRange(b"k", b"l"))
    keyspace.kv(Compact(deleted.revision))
    assert keyspace.bytes < LIMIT // 8
    assert isinstance(keyspace.kv(Put(b"a", b"")), NoSpace)
    assert keyspace.core(DisarmAlarm("NOSPACE")) == ("kv",)
    assert keyspace.alarms == []
    assert keyspace.core(DisarmAlarm("NOSPACE")) == ()
    assert not isinstance(keyspace.kv(Put(b"a", b"")), Refused)
    keyspace.fill()
    assert keyspace.core(DisarmAlarm("NOSPACE", "kv")) == ("kv",)
    assert isinstance(keyspace.kv(Put(b"z", VALUE * 8)), NoSpace)
    assert keyspace.alarms == [("NOSPACE", "kv")]


def test_the_events_of_a_large_deletion_are_summed_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keyspace = Keyspace(quota=None)
    for number in range(2000):
        keyspace.kv(Put(b"k%04d" % number, b""))
    revision = keyspace.kv(DeleteRange(b"k", b"l")).revision
    summed = 0
    real = history.event_bytes

    def counting(kv: Any, prev: Any) -> int:
        nonlocal summed
        summed += 1
        return real(kv, prev)

    monkeypatch.setattr(history, "event_bytes", counting)
    # Small commands that are judged by the quota, and leave that row the newest one.
    swap = Txn((Compare(b"a", "version", "=", 5),), (PutOp(b"a", b""),))
    for number in range(20):
        assert not keyspace.kv(swap).succeeded
        keyspace.kv(Grant(60, number + 1))
    keyspace.kv(Compact(revision))
    assert summed <= 2000


class Noting(Plugin[None]):
    """Notes each change of the members in the keyspace."""

    name: ClassVar[str] = "noting"
    uses: ClassVar[tuple[str, ...]] = ("kv",)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        assert change.new is not None
        ctx.call("kv", Put(b"noted/" + change.new.name.encode(), 4 * VALUE))


def test_what_a_hook_writes_beyond_the_quota_raises_the_alarm_with_its_command() -> None:
    keyspace = Keyspace(plugins=[KV(), Noting()])
    while keyspace.bytes <= LIMIT - 2 * KIB:
        keyspace.kv(Put(b"k%d" % keyspace.seq, VALUE))
    up = node_up(10, "n2", keyspace.machine)
    keyspace._apply(Envelope(0, 10, 0, "core", encode(up)))
    assert keyspace.bytes > LIMIT
    # What waited for the next command would be lost to those that begin with a snapshot.
    assert keyspace.alarms == [("NOSPACE", "kv")]
    twin = StateMachine([KV(), Noting()])
    twin.restore(list(keyspace.machine.freeze().slices()), keyspace.machine.index)
    body = encode_batch(1, [Envelope(keyspace.session, 999, 0, "kv", encode(DeleteRange(b"k0")))])
    for machine in (keyspace.machine, twin):
        machine.apply(machine.index + 1, body)
    assert twin.digest() == keyspace.machine.digest()


def test_a_lowered_quota_refuses_the_next_write() -> None:
    keyspace = Keyspace(quota=None)
    for number in range(40):
        keyspace.kv(Put(b"k%d" % number, VALUE))
    assert keyspace.core(SetSetting.of("kv", "quota_bytes", 16 * KIB)) is None
    assert keyspace.alarms == []
    assert isinstance(keyspace.kv(Put(b"a", b"")), NoSpace)
    assert keyspace.core(SetSetting("kv", "quota_bytes", None)) is None
    assert keyspace.core(DisarmAlarm("NOSPACE")) == ("kv",)
    assert not isinstance(keyspace.kv(Put(b"a", b"")), Refused)


@pytest.mark.parametrize("value", [0, -1, 16 * KIB - 1, 1 << 51, "2G"])
def test_a_quota_out_of_bounds_is_refused(value: Any) -> None:
    keyspace = Keyspace(quota=None)
    refused = keyspace.core(SetSetting.of("kv", "quota_bytes", value))
    assert isinstance(refused, InvalidSetting)


def test_at_core_format_1_there_is_no_quota() -> None:
    keyspace = Keyspace(core_format=1, quota=None)
    refused = keyspace.core(SetSetting.of("kv", "quota_bytes", LIMIT))
    assert isinstance(refused, InvalidSetting)
    assert str(refused) == "there is no setting kv.quota_bytes"
    assert isinstance(keyspace.core(DisarmAlarm("NOSPACE")), UnknownCommand)
    assert keyspace.bytes == 0
    keyspace.kv(Put(b"a", VALUE))
    assert keyspace.bytes > KIB  # it is counted, and judged after the raise
    machine = keyspace.machine
    machine.raise_format(machine.index + 1, msgspec.msgpack.encode(2))
    assert keyspace.core(SetSetting.of("kv", "quota_bytes", 16 * KIB)) is None
    assert isinstance(keyspace.kv(Put(b"b", 16 * VALUE)), NoSpace)


def test_a_restored_machine_counts_and_decides_the_same() -> None:
    keyspace = Keyspace()
    keyspace.fill()
    keyspace.core(DisarmAlarm("NOSPACE"))
    again = copy_of(keyspace.machine, [KV()])
    assert again.usages["kv"].bytes == keyspace.bytes == again.usages["kv"].recount()
    index = keyspace.machine.index + 1
    command = encode(Put(b"zzz", VALUE * 4))
    body = encode_batch(1, [Envelope(keyspace.session, 9999, 9999, "kv", command)])
    assert str(again.apply(index, body)) == str(keyspace.machine.apply(index, body))
    assert again.digest() == keyspace.machine.digest()
    assert again.alarms == [("NOSPACE", "kv")]
    again.reset()
    assert again.usages["kv"].bytes == 0


def test_the_listeners_see_the_alarm_and_not_what_was_refused() -> None:
    keyspace = Keyspace()
    seen: list[tuple[str, str]] = []
    keyspace.machine.subscribe(
        lambda _, changes: seen.extend((each.plugin, each.table) for each in changes)
    )
    keyspace.kv(Put(b"a", VALUE * 64))
    assert seen == [("core", "alarms")]


KEYS = st.sampled_from([b"a", b"b", b"ba", b"c", b"long" * 20])
VALUES = st.sampled_from([b"", b"x", b"y" * 300, b"z" * 3000])
LEASES = st.sampled_from([0, 1, 2])
COMMANDS = st.one_of(
    st.builds(Put, KEYS, VALUES),
    st.builds(Put, KEYS, VALUES),
    st.builds(PutWith, KEYS, VALUES, st.just(False), LEASES),
    st.builds(DeleteRange, KEYS, st.sampled_from([b"", b"b", FROM_KEY])),
    st.builds(
        lambda first, second, value: Txn(
            success=(PutOp(first, value), DeleteRangeOp(second), PutOp(first + b"2", value))
        ),
        KEYS,
        KEYS,
        VALUES,
    ),
    st.builds(Compact, st.integers(1, 60)),
    st.builds(Grant, st.just(60), st.sampled_from([1, 2])),
    st.builds(Revoke, st.sampled_from([1, 2])),
    st.just(DisarmAlarm("NOSPACE")),
    st.just(None),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(COMMANDS, max_size=60))
def test_the_count_is_that_of_the_rows_and_never_beyond_the_quota(commands: list[Any]) -> None:
    keyspace = Keyspace(quota=16 * KIB)
    for command in commands:
        if command is None:
            keyspace.machine = copy_of(keyspace.machine, [KV()])
        elif isinstance(command, DisarmAlarm):
            keyspace.core(command)
        else:
            before = keyspace.bytes
            outcome = keyspace.kv(command)
            if isinstance(command, Put | Txn) and not isinstance(outcome, Refused):
                assert keyspace.bytes <= 16 * KIB
            if isinstance(outcome, Refused):
                assert keyspace.bytes == before
        usage = keyspace.machine.usages["kv"]
        assert usage.bytes == usage.recount()
