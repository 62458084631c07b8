"""The written-out commands do what the general way does, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.kv import Compare, DeleteRange, Grant, Put, PutOp, PutWith, Txn, TxnOutcome, plain
from raftkv.kv import transactions as general
from tests.kv.fake_host import FakeHost

KEYS = st.sampled_from([b"a", b"b", b"\xff", b""])
VALUES = st.sampled_from([b"", b"x", b"y", b"z" * 1023, b"z" * 1024, b"z" * 70_000])
TARGETS = st.sampled_from(["version", "create", "mod", "lease", "value"])
COMPARES = st.builds(
    Compare,
    KEYS,
    TARGETS,
    st.sampled_from(["=", "!=", ">", "<"]),
    st.one_of(st.integers(0, 6), VALUES),
    st.sampled_from([b"", b"", b"", b"z"]),
)
RARELY = st.sampled_from([False, False, False, True])
PUTS = st.builds(
    PutOp, KEYS, VALUES, st.booleans(), st.sampled_from([0, 0, 0, 1, 9]), RARELY, RARELY
)


@st.composite
def swaps(draw: st.DrawFn) -> Txn:
    """Mostly a comparison and a put of one key."""
    compare, put = draw(COMPARES), draw(PUTS)
    if draw(st.sampled_from([True, True, True, False])):
        put = PutOp(compare.key, put.value, put.prev_kv)
    failure = (draw(PUTS),) if draw(RARELY) else ()
    return Txn((compare,), (put,), failure)


COMMANDS = st.one_of(
    swaps(),
    swaps(),
    # An empty key is refused by both, in other words.
    st.builds(Put, KEYS.filter(bool), VALUES, st.booleans()),
    st.builds(PutWith, KEYS, VALUES, st.booleans(), st.sampled_from([0, 1])),
    st.builds(DeleteRange, KEYS),
)
SETTINGS = st.sampled_from([{}, {"rows_max": 1}, {"history_revisions": 2}])


def by_steps(host: FakeHost, command: Any) -> Any:
    """The outcome that the general way gives."""
    if type(command) is Put:
        command = PutWith(command.key, command.value, command.prev_kv)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(general, "swap", lambda txn, ctx: None)
        return host.apply(command)


@given(st.lists(COMMANDS, max_size=30), SETTINGS, st.sampled_from([3, 3, 2, 1]))
def test_plain_commands_are_those_of_the_general_way(
    commands: list[Any], settings: dict[str, int], version: int
) -> None:
    written_out, stepwise = FakeHost(version), FakeHost(version)
    for host in (written_out, stepwise):
        for key, value in settings.items():
            host.set(key, value)
        if version > 1:
            host.apply(Grant(1, 60))
    for command in commands:
        if version == 1 and type(command) is not Txn:
            continue  # the put of a former version has no other way to be written
        mine, other = written_out.apply(command), by_steps(stepwise, command)
        assert type(mine) is type(other), (command, mine, other)
        assert repr(mine) == repr(other), command
    assert written_out.machine.digest() == stepwise.machine.digest()


def test_a_comparison_with_a_put_is_plain_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[TxnOutcome | None] = []

    def swap(txn: Txn, ctx: Any) -> TxnOutcome | None:
        answers.append(plain.swap(txn, ctx))
        return answers[-1]

    monkeypatch.setattr(general, "swap", swap)
    host = FakeHost()
    host.apply(Put(b"k", b"1"))
    is_there = Compare(b"k", "version", ">", 0)
    put = PutOp(b"k", b"2", prev_kv=True)
    for txn in (
        Txn((is_there,), (put,)),
        Txn((Compare(b"k", "value", "=", b"2"),), (put,)),
        Txn((Compare(b"k", "mod", "=", 1),), (put,)),
        Txn((Compare(b"new", "version", "=", 0),), (PutOp(b"new", b""),)),
    ):
        host.apply(txn)
    assert [answer is not None and answer.succeeded for answer in answers] == [
        True, True, False, True,
    ]  # fmt: skip
    answers.clear()
    for txn in (
        Txn((), (put,)),
        Txn((is_there, is_there), (put,)),
        Txn((is_there,), (put,), (put,)),
        Txn((is_there,), (PutOp(b"other", b"2"),)),
        Txn((is_there,), (PutOp(b"k", b"v", ignore_lease=True),)),
        Txn((is_there,), (PutOp(b"k", b"x" * 1024),)),
        Txn((Compare(b"k", "value", "=", 2),), (put,)),
        Txn((Compare(b"k", "version", ">", 0, b"z"),), (put,)),
    ):
        host.apply(txn)
    assert answers == [None] * 8


class _Shared(list[Any]):
    """What machines of several threads share: another one writes to it behind every look."""

    def __init__(self, content: Any, others: Callable[[], object]) -> None:
        super().__init__(content)
        self._others = others

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        others, self._others = self._others, lambda: None
        others()
        self._others = others
        return found


def test_puts_of_several_machines_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """On builds without a global lock another thread may come between any two steps."""
    alone, mixed, other = FakeHost(), FakeHost(), FakeHost()
    puts = [Put(b"k%d" % number, b"v" * number) for number in range(4)]
    for put in puts:
        alone.apply(put)
    monkeypatch.setattr(
        plain, "_newest", _Shared(plain._newest, lambda: other.apply(Put(b"o", b"w" * 100)))
    )
    for put in puts:
        mixed.apply(put)
    assert mixed.machine.digest() == alone.machine.digest()
