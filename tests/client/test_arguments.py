"""A node, a client and their blocking forms refuse the same arguments, with the same words."""

from __future__ import annotations

import importlib
import inspect
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import raftkv
from raftkv import ConfigError, blocking, recipes, validation
from raftkv.kv.commands import Compare, DeleteRangeOp, PutOp, RangeOp, TxnOp
from raftkv.state.core import SetSetting
from raftkv.testing import LocalCluster
from raftkv_lcr import LCR
from tests.blocking.alone import config, open_door
from tests.client.doors import served
from tests.client.fake_door import in_loop

Call = Callable[[Any], Any]

# With values that a type checker refuses.
any_put: Any = PutOp
any_compare: Any = Compare
any_range: Any = RangeOp
any_delete: Any = DeleteRangeOp

HUGE = 2**70

TYPE: dict[str, Call] = {
    "put(key)": lambda s: s.kv.put("k", b"v"),
    "put(value)": lambda s: s.kv.put(b"k", "v"),
    "put(value None)": lambda s: s.kv.put(b"k", None),
    "put(lease='5')": lambda s: s.kv.put(b"k", b"v", lease="5"),
    "put(lease=None)": lambda s: s.kv.put(b"k", b"v", lease=None),
    "put(lease=True)": lambda s: s.kv.put(b"k", b"v", lease=True),
    "put(prev_kv='yes')": lambda s: s.kv.put(b"k", b"v", prev_kv="yes"),
    "put(prev_kv=0)": lambda s: s.kv.put(b"k", b"v", prev_kv=0),
    "put(ignore_value=1)": lambda s: s.kv.put(b"k", b"", ignore_value=1),
    "put(ignore_lease=1)": lambda s: s.kv.put(b"k", b"", ignore_lease=1),
    "put(timeout_s='5')": lambda s: s.kv.put(b"k", b"v", timeout_s="5"),
    "put(timeout_s=True)": lambda s: s.kv.put(b"k", b"v", timeout_s=True),
    "get(key)": lambda s: s.kv.get("k"),
    "get(revision='1')": lambda s: s.kv.get(b"k", revision="1"),
    "get(revision=None)": lambda s: s.kv.get(b"k", revision=None),
    "get(revision=False)": lambda s: s.kv.get(b"k", revision=False),
    "range(first='a')": lambda s: s.kv.range("a"),
    "range(prefix='a')": lambda s: s.kv.range(prefix="a"),
    "range(limit='1')": lambda s: s.kv.range(limit="1"),
    "range(keys_only=1)": lambda s: s.kv.range(keys_only=1),
    "range(descending='no')": lambda s: s.kv.range(descending="no"),
    "range(min_mod_revision='x')": lambda s: s.kv.range(min_mod_revision="x"),
    "read(dict)": lambda s: s.kv.read({"key": b"k"}),
    "read(limit='1')": lambda s: s.kv.read(any_range(b"k", limit="1")),
    "delete('k')": lambda s: s.kv.delete("k"),
    "delete()": lambda s: s.kv.delete(),
    "delete(prev_kv='x')": lambda s: s.kv.delete(b"k", prev_kv="x"),
    "delete_range(range_end=1)": lambda s: s.kv.delete_range(any_delete(b"k", 1)),
    "txn(operand '0')": lambda s: s.kv.txn([any_compare(b"z", "version", "=", "0")]),
    "txn(operand b'0')": lambda s: s.kv.txn([any_compare(b"z", "version", "=", b"0")]),
    "txn(value with int)": lambda s: s.kv.txn([any_compare(b"z", "value", "=", 0)]),
    "txn(compare tuple)": lambda s: s.kv.txn([(b"z", "version", "=", 0)]),
    "txn(not an operation)": lambda s: s.kv.txn(success=[b"k"]),
    "txn(one operation)": lambda s: s.kv.txn(success=any_put(b"k", b"v")),
    "txn(generator)": lambda s: s.kv.txn(success=(each for each in [5])),
    "txn(put of str)": lambda s: s.kv.txn(success=[any_put(b"k", "v")]),
    "txn(inner put of str)": lambda s: s.kv.txn(success=[TxnOp(success=(any_put(b"k", "v"),))]),
    "compact('2')": lambda s: s.kv.compact("2"),
    "compact(2.0)": lambda s: s.kv.compact(2.0),
    "grant(0.5)": lambda s: s.leases.grant(0.5),
    "grant('5')": lambda s: s.leases.grant("5"),
    "grant(True)": lambda s: s.leases.grant(True),
    "grant(id='5')": lambda s: s.leases.grant(5, id="5"),
    "revoke('5')": lambda s: s.leases.revoke("5"),
    "keep_alive(5.0)": lambda s: s.leases.keep_alive(5.0),
    "time_to_live(None)": lambda s: s.leases.time_to_live(None),
    "time_to_live(keys='x')": lambda s: s.leases.time_to_live(5, keys="x"),
    "keeping('5')": lambda s: s.leases.keeping("5"),
    "list(timeout_s=b'')": lambda s: s.leases.list(timeout_s=b""),
    "watch('k')": lambda s: s.kv.watch("k"),
    "watch(start_revision=1.5)": lambda s: s.kv.watch(b"k", start_revision=1.5),
    "watch(prev_kv='x')": lambda s: s.kv.watch(b"k", prev_kv="x"),
    "watch(progress_s='1')": lambda s: s.kv.watch(b"k", progress_s="1"),
    "watch(key and first)": lambda s: s.kv.watch(b"k", first=b"a"),
    "outcome('1')": lambda s: s.outcome("1", 1),
}


def first_page(pages: Any) -> Any:
    return anext(pages) if isinstance(pages, AsyncIterator) else next(iter(pages))


VALUE: dict[str, Call] = {
    "put(timeout_s=0)": lambda s: s.kv.put(b"k", b"v", timeout_s=0),
    "put(timeout_s=-1)": lambda s: s.kv.put(b"k", b"v", timeout_s=-1),
    "put(timeout_s=nan)": lambda s: s.kv.put(b"k", b"v", timeout_s=math.nan),
    "put(timeout_s=inf)": lambda s: s.kv.put(b"k", b"v", timeout_s=math.inf),
    "put(lease=2**70)": lambda s: s.kv.put(b"k", b"v", lease=HUGE),
    "get(timeout_s=0)": lambda s: s.kv.get(b"k", timeout_s=0),
    "get(consistency)": lambda s: s.kv.get(b"k", consistency="eventual"),
    "get(revision=2**70)": lambda s: s.kv.get(b"k", revision=HUGE),
    "get(revision=-1)": lambda s: s.kv.get(b"k", revision=-1),
    "range(revision=-1)": lambda s: s.kv.range(revision=-1),
    "range(min_mod_revision=-1)": lambda s: s.kv.range(min_mod_revision=-1),
    "range(max_create_revision=-1)": lambda s: s.kv.range(max_create_revision=-1),
    "pages(revision=-1)": lambda s: first_page(s.kv.pages(revision=-1)),
    "compact(-1)": lambda s: s.kv.compact(-1),
    "range(sort_by='x')": lambda s: s.kv.range(sort_by="x"),
    "range(limit=-1)": lambda s: s.kv.range(limit=-1),
    "range(limit=2**70)": lambda s: s.kv.range(limit=HUGE),
    "range(empty)": lambda s: s.kv.range(b"b", b"a"),
    "range(consistency)": lambda s: s.kv.range(consistency="eventual"),
    "range(max_mod_revision)": lambda s: s.kv.range(max_mod_revision=HUGE),
    "delete(timeout_s=0)": lambda s: s.kv.delete(b"k", timeout_s=0),
    "txn(op '==')": lambda s: s.kv.txn([any_compare(b"z", "version", "==", 0)]),
    "txn(target)": lambda s: s.kv.txn([any_compare(b"z", "age", "=", 0)]),
    "txn(operand 2**70)": lambda s: s.kv.txn([any_compare(b"z", "version", "=", HUGE)]),
    "txn(timeout_s=0)": lambda s: s.kv.txn(timeout_s=0),
    "compact(2**70)": lambda s: s.kv.compact(HUGE),
    "grant(2**70)": lambda s: s.leases.grant(HUGE),
    "grant(timeout_s=nan)": lambda s: s.leases.grant(5, timeout_s=math.nan),
    "keep_alive(timeout_s=0)": lambda s: s.leases.keep_alive(5, timeout_s=0),
    "time_to_live(timeout_s=nan)": lambda s: s.leases.time_to_live(5, timeout_s=math.nan),
    "list(timeout_s=-1)": lambda s: s.leases.list(timeout_s=-1),
    "watch(start_revision=-1)": lambda s: s.kv.watch(b"k", start_revision=-1),
    "watch(start_revision=2**70)": lambda s: s.kv.watch(b"k", start_revision=HUGE),
    "watch(progress_s=nan)": lambda s: s.kv.watch(b"k", progress_s=math.nan),
    "watch(progress_s=-1)": lambda s: s.kv.watch(b"k", progress_s=-1),
    "outcome(timeout_s=0)": lambda s: s.outcome(1, 1, timeout_s=0),
}

CASES = {**TYPE, **VALUE}


async def told(call: Call, store: Any) -> tuple[type[BaseException], str]:
    try:
        made = call(store)
        result = await made if isinstance(made, Awaitable) else made
    except Exception as error:
        return type(error), str(error)
    raise AssertionError(f"it was taken: {result!r}")


@in_loop
async def test_a11_a_node_and_a_client_refuse_alike() -> None:
    async with served(1) as doors, raftkv.Client(doors.urls) as client:
        node = doors.cluster.nodes[0]
        index = node.machine.index
        for name, case in CASES.items():
            expected = TypeError if name in TYPE else ValueError
            found = await told(case, node)
            assert found[0] is expected, (name, found)
            assert await told(case, client) == found, name
        assert node.machine.index == index, "something was sent"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    with blocking.Node(config(tmp_path_factory.mktemp("node")), plugins=()) as node:
        api = node.run(open_door)
        with blocking.Client(api.endpoint) as client:
            yield node, client
        node.run(lambda _: api.stop())


@pytest.mark.parametrize("name", CASES)
def test_a11_the_blocking_forms_refuse_alike(stores: tuple[Any, Any], name: str) -> None:
    for store in stores:
        with pytest.raises(TypeError if name in TYPE else ValueError):
            CASES[name](store)


def test_d7_waits_of_blocking_objects_refuse_a_time_that_cannot_pass(
    stores: tuple[Any, Any],
) -> None:
    node, client = stores
    for store in (node, client):
        with store.kv.watch(b"k") as watch, store.leases.keeping(30) as lease:
            for bad in (0, -1, math.nan):
                for wait in (watch.next, watch.created, lease.wait_lost):
                    with pytest.raises(ValueError, match="timeout_s"):
                        wait(bad)
    with pytest.raises(ValueError, match="timeout_s"):
        node.wait_ready(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": math.nan},
        {"timeout_s": 0},
        {"timeout_s": "5"},
        {"timeout_s": None},
        {"exactly_once": "no"},
        {"connections_max": 1.5},
        {"connections_max": 0},
        {"answer_bytes_max": True},
        {"tls": "ca.pem"},
        {"endpoints": [5]},
        {"endpoints": b"http://127.0.0.1:1"},
    ],
    ids=str,
)
def test_d1_the_constructor_of_a_client_refuses(wrong: dict[str, Any]) -> None:
    for kind in (raftkv.Client, blocking.Client):
        with pytest.raises(ConfigError):
            kind(**{"endpoints": "http://127.0.0.1:1", **wrong})


@in_loop
async def test_d1_a_wrong_type_never_travels_through_the_log(tmp_path: Path) -> None:
    async with LocalCluster(cores=1, plugins=[LCR], directory=str(tmp_path)) as cluster:
        node = cluster.nodes[0]
        lcr = node.plugin(LCR)
        await lcr.connect("c", "ch")
        index = node.machine.index
        for call in (
            lambda: lcr.lookup(b"c"),  # type: ignore[arg-type]
            lambda: lcr.lookup(None),  # type: ignore[arg-type]
            lambda: lcr.connect("c", b"ch"),  # type: ignore[arg-type]
            lambda: lcr.register("c", "ch", "predecessor"),  # type: ignore[arg-type]
            lambda: node.propose("core", SetSetting("kv", 5, None)),  # type: ignore[arg-type]
            lambda: node.propose("core", "no command"),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError):
                await call()
        with pytest.raises(ValueError, match="timeout_s"):
            await lcr.lookup("c", timeout_s=0)
        with pytest.raises(TypeError, match=r"SetSetting\.key"):
            await node.propose("core", SetSetting("kv", 5, None))  # type: ignore[arg-type]
        assert node.machine.index == index


@in_loop
async def test_d1_recipes_refuse_at_the_call() -> None:
    async with LocalCluster(cores=1) as cluster:
        store: Any = cluster.nodes[0]
        any_: Any = recipes
        with pytest.raises(TypeError):
            any_.Session(store, "10")
        async with recipes.Session(store, 30) as session:
            for wrong in (
                lambda: any_.Lock(session, "name"),
                lambda: any_.Lock(session, b"name", "value"),
                lambda: any_.ReadLock(session, "name"),
                lambda: any_.Semaphore(session, b"name", "2"),
                lambda: any_.Queue(store, "name"),
                lambda: any_.PriorityQueue(store, "name"),
                lambda: any_.LockingQueue(session, "name"),
                lambda: any_.Barrier(store, "name"),
                lambda: any_.Barrier(store, b"name", lease="5"),
                lambda: any_.DoubleBarrier(session, b"name", 1.5),
                lambda: any_.Counter(store, "name"),
                lambda: any_.Party(session, "name"),
                lambda: any_.Election(session, "name"),
            ):
                with pytest.raises(TypeError):
                    wrong()
            for call in (
                lambda: any_.Queue(store, b"q").put("value"),
                lambda: any_.PriorityQueue(store, b"q").put(b"value", "1"),
                lambda: any_.Counter(store, b"c").add("1"),
                lambda: any_.Election(session, b"e").campaign("value"),
                lambda: any_.leader_of(store, "e"),
                lambda: any_.members_of(store, "e"),
                lambda: any_.atomically(store, "no function"),
            ):
                with pytest.raises(TypeError):
                    await call()


APIS = [
    ("raftkv.kv.leases", "LeaseApi"),
    ("raftkv.client.kv", "ClientKV"),
    ("raftkv.client.leases", "ClientLeases"),
    ("raftkv.client.client", "Client"),
    ("raftkv_cluster_call.api", "CallsApi"),
    ("raftkv_conf.api", "ConfApi"),
    ("raftkv_lcr.api", "LcrApi"),
    ("raftkv_lcr.manager", "ChannelManager"),
    ("raftkv_limbo.api", "LimboApi"),
    ("raftkv_limbo.transaction", "TransactionBuilder"),
    ("raftkv_subscriptions.api", "SubscriptionsApi"),
    ("raftkv_subscriptions.consumer", "Consumer"),
    ("raftkv_subscriptions.reader", "Reader"),
    ("raftkv_txqueue.api", "TxQueueApi"),
    ("raftkv_txqueue.session", "Session"),
    ("raftkv_txqueue.dtx", "Dtx"),
]


@pytest.mark.parametrize(("module", "name"), APIS)
def test_d1_every_plain_argument_of_every_api_is_checked(module: str, name: str) -> None:
    """An object of no type at all is refused wherever the annotation is one of plain values."""
    api, nothing, checks = getattr(importlib.import_module(module), name), object(), 0
    for method in vars(api).values():
        if not inspect.isfunction(method) or method.__name__.startswith("_"):
            continue
        for parameter in inspect.signature(method).parameters.values():
            words = str(parameter.annotation)
            if words.split(" ")[0] not in ("str", "int", "bytes", "bool", "float"):
                continue
            _, rule = validation._rule_of(inspect.unwrap(method), parameter)
            assert hasattr(method, "__wrapped__"), method
            with pytest.raises(TypeError):
                rule(nothing)
            checks += 1
    assert checks > 1


class Inner(msgspec.Struct):
    name: str


def test_d1_structs_are_checked_with_their_fields() -> None:
    validation.require(Inner, "it", Inner("a"))
    with pytest.raises(TypeError, match=r"Inner\.name must be a str"):
        validation.require(Inner, "it", Inner(5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it must be a list of a str"):
        validation.require(list[str], "it", "abc")
    with pytest.raises(TypeError, match="it must be a mapping"):
        validation.require(dict[str, int], "it", {"a": "1"})


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (tuple[str, str], ()),
        (tuple[str, str], ("a", b"b")),
        (tuple[str, ...], {"a"}),
        (tuple[bytes | None, ...], [b"a", "b"]),
        (list[PutOp], [PutOp(b"k", b"v"), RangeOp(b"k")]),
        (dict[str, list[int]], {"a": [True]}),
        (int | list[float], [1, "2"]),
        (Counter[str], {"a"}),
    ],
)
def test_what_a_container_holds_is_checked(hint: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="^it must be"):
        validation.require(hint, "it", value)


#: A default that its annotation does not allow.
UNFIT: Any = "unset"


@validation.checked
class Signatures:
    """Every kind of parameter, and names that generated code could meet."""

    def places(self, first: int, /, type: str, *rest: bytes, last: int = UNFIT) -> Any:
        return first, type, rest, last

    def names(self, key: str = "k", /, *, number: int = 0, **more: Any) -> Any:
        return key, number, more

    async def waits(self, plain, timeout_s: float = 1.0) -> Any:  # type: ignore[no-untyped-def]
        return plain, timeout_s


@in_loop
async def test_calls_are_handed_on_as_they_are_written() -> None:
    it = Signatures()
    assert it.places(1, "t", b"a", b"b", last=2) == (1, "t", (b"a", b"b"), 2)
    assert it.places(1, type="t") == (1, "t", (), "unset"), "a default is not checked"
    assert it.names(number=3, other=4) == ("k", 3, {"other": 4})
    assert await it.waits(None) == (None, 1.0)
    assert inspect.iscoroutinefunction(it.waits)
    assert str(inspect.signature(it.names)) == (
        "(key: 'str' = 'k', /, *, number: 'int' = 0, **more: 'Any') -> 'Any'"
    )


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda it: it.places("1", "t"), "first must be an int"),
        (lambda it: it.places(1, 2), "type must be a str"),
        (lambda it: it.places(1, "t", b"a", "b"), "rest must be bytes"),
        (lambda it: it.places(1, "t", last="set"), "last must be an int"),
        (lambda it: it.names(5), "key must be a str"),
        (lambda it: it.names(number="5"), "number must be an int"),
        (lambda it: it.names(key="k", number=True), "number must be an int"),
        (lambda it: it.places(1), r"Signatures\.places\(\) missing 1 required"),
        (lambda it: it.places(1, "t", least=1), "unexpected keyword argument 'least'"),
    ],
)
def test_each_kind_of_parameter_is_checked(call: Callable[[Any], Any], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        call(Signatures())


def test_what_a_container_holds_is_checked_whatever_its_truth_value() -> None:
    class Never(list[Any]):
        def __bool__(self) -> bool:
            return False

    for hint in (tuple[str, ...], list[PutOp]):
        with pytest.raises(TypeError, match="^it must be"):
            validation.require(hint, "it", Never([1]))


def test_no_name_of_a_parameter_meets_one_of_the_generated_code() -> None:
    @validation.checked
    def call(
        _function: int, _type: str, __rule_0: int, *_each: int, _default_1: int = 5, _first: int = 6
    ) -> tuple[object, ...]:
        return _function, _type, __rule_0, _each, _default_1, _first

    assert call(1, "t", 2, 3, 4) == (1, "t", 2, (3, 4), 5, 6)
    for wrong in ({"_default_1": "5"}, {"_first": "6"}):
        with pytest.raises(TypeError, match="must be an int"):
            call(1, "t", 2, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="_each must be an int"):
        call(1, "t", 2, "3")  # type: ignore[arg-type]
