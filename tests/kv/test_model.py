"""The keyspace against a naive model of etcd (model.py): random commands, equal answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import Refused
from raftkv.kv import (
    FROM_KEY,
    KV,
    ClaimLessor,
    Compact,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    Event,
    Expire,
    Grant,
    KeyValue,
    KVApi,
    Put,
    PutOp,
    PutWith,
    RangeOp,
    Revoke,
    TxnOp,
    TxnOutcome,
    events_of,
)
from raftkv.kv.history import lowest_revision
from raftkv.kv.leasing import due_ms, due_rows, keys_of
from raftkv.kv.transactions import flatten, unflatten
from raftkv.plugin import Host
from raftkv.state import StateMachine
from tests.kv.fake_host import FakeHost
from tests.kv.model import Model

KEYS = st.sampled_from([b"a", b"b", b"ba", b"c"])
ENDS = st.sampled_from([b"", b"", b"b", b"bb", b"d", FROM_KEY])
VALUES = st.sampled_from([b"", b"", b"x", b"y"])
LEASES = st.sampled_from([0, 0, 1, 2])
REVISIONS = st.integers(0, 8)
BOUNDS = st.one_of(st.just(0), st.just(0), st.integers(1, 6))
RARELY = st.sampled_from([False, False, False, True])

PUTS = st.builds(PutOp, KEYS, VALUES, st.booleans(), LEASES, RARELY, RARELY)
DELETES = st.builds(DeleteRangeOp, KEYS, ENDS, st.booleans())
RANGES = st.one_of(
    st.builds(RangeOp, KEYS, ENDS, st.integers(0, 2), st.booleans(), st.booleans()),
    st.builds(
        RangeOp,
        KEYS,
        ENDS,
        st.integers(0, 2),
        RARELY,
        RARELY,
        REVISIONS,
        st.sampled_from(["key", "version", "create", "mod", "value"]),
        st.booleans(),
        BOUNDS,
        BOUNDS,
        BOUNDS,
        BOUNDS,
    ),
)
OPERATORS = st.sampled_from(["=", "!=", ">", "<"])
TARGETS = st.sampled_from(["version", "create", "mod", "lease"])
COMPARES = st.one_of(
    st.builds(Compare, KEYS, TARGETS, OPERATORS, st.integers(0, 5), ENDS),
    st.builds(Compare, KEYS, st.just("value"), OPERATORS, VALUES, ENDS),
)


def txns(operations: Any) -> Any:
    some = st.lists(operations, max_size=3).map(tuple)
    return st.builds(TxnOp, st.lists(COMPARES, max_size=2).map(tuple), some, some)


FLAT = st.one_of(PUTS, DELETES, RANGES)
TXNS = txns(st.one_of(FLAT, FLAT, txns(st.one_of(FLAT, FLAT, txns(FLAT)))))
COMMANDS = st.one_of(
    st.builds(Put, KEYS, VALUES, st.booleans()),
    st.builds(PutWith, KEYS, VALUES, st.booleans(), LEASES, RARELY, RARELY),
    st.builds(DeleteRange, KEYS, ENDS, st.booleans()),
    TXNS,
    TXNS,
    st.builds(Compact, st.integers(-1, 9)),
    st.builds(Grant, st.integers(-1, 5), st.sampled_from([1, 2])),
    st.builds(Revoke, st.sampled_from([1, 2])),
    st.builds(ClaimLessor),
    st.builds(Expire, st.integers(0, 2), st.lists(st.sampled_from([1, 2, 3])).map(tuple)),
)
STEPS = st.one_of(COMMANDS, COMMANDS, COMMANDS, st.sampled_from(["restore", "wait"]))


def tables(machine: StateMachine) -> dict[str, list[Any]]:
    view = machine.view("kv")
    return {spec.name: list(view.table(spec.name).scan()) for spec in KV.tables}


def restored(machine: StateMachine) -> StateMachine:
    other = StateMachine([KV()])
    other.restore(list(machine.freeze().slices(2)), machine.index)
    assert other.digest() == machine.digest()
    return other


def check_step(host: FakeHost, model: Model, step: Any) -> None:
    """Apply one command to both and compare the answers."""
    before = tables(host.machine)
    if isinstance(step, TxnOp):
        outcome = host.apply(flatten(step.compare, step.success, step.failure))
    else:
        outcome = host.apply(step)
    expected = model.apply(step, host.machine.now)
    if isinstance(expected, type):
        assert type(outcome) is expected
        assert tables(host.machine) == before
        return
    if isinstance(outcome, TxnOutcome):
        outcome = unflatten(outcome)
    assert outcome == expected


def check_state(host: FakeHost, model: Model) -> None:
    view = host.machine.view("kv")
    assert host.machine.invariants() == []
    assert dict(view.table("keys").scan()) == model.keys
    assert view.table("meta").get("revision", 1) == model.revision
    assert {id: row.ttl_s for id, row in view.table("leases").scan()} == {
        id: ttl for id, (ttl, _) in model.leases.items()
    }
    for id, (_, due) in model.leases.items():
        assert due_ms(view, id) == due
        assert list(keys_of(view, id)) == model.attached(id)
    assert sorted(id for _, id in due_rows(view)) == sorted(model.leases)


async def check_past(host: FakeHost, model: Model) -> None:
    """Every revision that can be read, and the events from there on."""
    kv = KVApi(cast(Host, host))
    view = host.machine.view("kv")
    assert lowest_revision(view) == model.compacted
    everything = RangeOp(b"\0", FROM_KEY)
    for revision in range(max(1, model.compacted), model.revision + 1):
        operation = RangeOp(b"\0", FROM_KEY, revision=revision)
        assert await kv.read(operation) == model.read(operation)
        part = RangeOp(b"b", b"c", 1, revision=revision)
        assert await kv.read(part) == model.read(part)
        for key in (b"a", b"b"):
            assert await kv.get(key, revision=revision) == model.past[revision].get(key)
        pages = [page async for page in kv.pages(page_keys=2, revision=revision)]
        assert {page.revision for page in pages} == {revision}
        found = [found for page in pages for found in page.kvs]
        assert tuple(found) == (await kv.read(operation)).kvs
        if revision > 1:
            assert events_of(view.table("history")[revision]) == model.events[revision]
    assert await kv.read(everything) == model.read(everything)


@given(st.lists(STEPS, max_size=25))
@settings(max_examples=250)
def test_against_a_model(steps: list[Any]) -> None:
    host, model = FakeHost(), Model()
    for step in steps:
        if step == "restore":
            host.machine = restored(host.machine)
        elif step == "wait":
            host.advance(2500)
        else:
            check_step(host, model, step)
    check_state(host, model)
    asyncio.run(check_past(host, model))
    restored(host.machine)


@given(st.lists(COMMANDS, max_size=15), st.lists(COMMANDS, max_size=5))
@settings(max_examples=60)
def test_a_walk_over_pages_sees_one_revision(before: list[Any], between: list[Any]) -> None:
    async def walk() -> list[KeyValue]:
        found: list[KeyValue] = []
        changes = iter(between)
        async for page in kv.pages(page_keys=1):
            found += page.kvs
            step = next(changes, None)
            if step is not None and not isinstance(step, Compact):
                check_step(host, model, step)
        return found

    host, model = FakeHost(), Model()
    kv = KVApi(cast(Host, host))
    for step in before:
        check_step(host, model, step)
    expected = [model.keys[name] for name in sorted(model.keys)]
    assert asyncio.run(walk()) == expected


def test_the_model_is_not_blind() -> None:
    """The same comparison finds a difference when there is one."""
    host, model = FakeHost(), Model()
    check_step(host, model, Put(b"a", b"x"))
    assert model.events == {2: (Event(KeyValue(b"a", b"x", 2, 2, 1)),)}
    assert isinstance(host.apply(Revoke(7)), Refused)
    host.apply(Put(b"b", b"x"))
    try:
        check_step(host, model, Put(b"a", b"y"))
    except AssertionError:
        return
    raise RuntimeError("a difference in the revision was not noticed")
