"""The states of a node and what each public name does in it: the table of docs/embedding.md."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import raftkv
from raftkv import Node, NodeConfig, blocking
from raftkv.blocking.node import Node as BlockingNode
from raftkv.errors import DiskFailed, NodeFault, NoLeader, Refused, Stopped
from raftkv.kv import KV
from raftkv.kv.commands import Put
from tests.blocking.alone import config
from tests.client.fake_door import in_loop

Call = Callable[[Any], Any]
Outcome = str | type[BaseException]

STATES = ("new", "starting", "running", "faulted", "stopped")
# "value": it gives a value at once. "waits": as soon as the node runs. Else what it raises.
ALWAYS: tuple[Outcome, ...] = ("value",) * 5
CALL: tuple[Outcome, ...] = (Stopped, "waits", "value", DiskFailed, Stopped)
HANDLE: tuple[Outcome, ...] = (Stopped, "value", "value", "value", "value")


async def ended(watch: Any) -> str:
    """What a watch that cannot begin raises comes with `created`."""
    async with watch as made:
        await made.created()
    return "value"


NAMES: dict[str, tuple[Call, tuple[Outcome, ...]]] = {
    "config": (lambda n: n.config, ALWAYS),
    "name": (lambda n: n.name, ALWAYS),
    "incarnation": (lambda n: n.incarnation, ALWAYS),
    "session": (lambda n: n.session, ALWAYS),
    "withdrawn": (lambda n: n.withdrawn, ALWAYS),
    "loop_late_s": (lambda n: n.loop_late_s, ALWAYS),
    "role": (lambda n: n.role, ALWAYS),
    "leader": (lambda n: n.leader, ALWAYS),
    "term": (lambda n: n.term, ALWAYS),
    "standing": (lambda n: n.standing, ALWAYS),
    "http_api": (lambda n: n.http_api, ALWAYS),
    "raft_id": (lambda n: n.raft_id, HANDLE),
    "fault": (lambda n: n.fault, HANDLE),
    "kv": (lambda n: n.kv, HANDLE),
    "leases": (lambda n: n.leases, HANDLE),
    "plugin": (lambda n: n.plugin(KV), HANDLE),
    "status": (lambda n: n.status(), (Stopped, Stopped, "value", "value", "value")),
    "wait_ready": (lambda n: n.wait_ready(), CALL),
    "propose": (lambda n: n.propose("kv", Put(b"p", b"v")), CALL),
    "barrier": (lambda n: n.barrier(), CALL),
    "outcome": (lambda n: n.outcome(1, 1), CALL),
    "kv.put": (lambda n: n.kv.put(b"k", b"v"), CALL),
    "kv.get": (lambda n: n.kv.get(b"k"), CALL),
    "kv.get local": (
        lambda n: n.kv.get(b"k", consistency="local"),
        (Stopped, NoLeader, "value", DiskFailed, Stopped),
    ),
    "kv.range": (lambda n: n.kv.range(), CALL),
    "kv.pages": (lambda n: anext(n.kv.pages()), CALL),
    "kv.delete": (lambda n: n.kv.delete(b"k"), CALL),
    "kv.txn": (lambda n: n.kv.txn(), CALL),
    "kv.hash": (lambda n: n.kv.hash(), CALL),
    "leases.grant": (lambda n: n.leases.grant(30, id=8), CALL),
    "leases.keep_alive": (lambda n: n.leases.keep_alive(7, timeout_s=60), CALL),
    "leases.time_to_live": (lambda n: n.leases.time_to_live(7, timeout_s=60), CALL),
    "leases.list": (lambda n: n.leases.list(), CALL),
    "leases.revoke": (lambda n: n.leases.revoke(7), CALL),
    "leases.keeping": (lambda n: n.leases.keeping(30).open(), CALL),
    "inject_lag": (
        lambda n: n.inject_lag(0.0),
        (Stopped, ValueError, ValueError, DiskFailed, Stopped),
    ),
    "reload_certificates": (
        lambda n: n.reload_certificates(),
        (Stopped, raftkv.ConfigError, raftkv.ConfigError, DiskFailed, Stopped),
    ),
    "start": (lambda n: n.start(), ("value", *(RuntimeError,) * 4)),
    "stop": (lambda n: n.stop(), ALWAYS),
}
# Of the HTTP API's inside: a keyspace for one write.
NOT_HERE = {"kv_under"}


def alone(directory: Path) -> NodeConfig:
    """A node whose calls have more time than this test gives them."""
    return msgspec.structs.replace(config(directory), timeout_s=60.0)


async def at_once(call: Call, node: Any) -> str:
    """Give what the call gives, in less than its time-out in every state."""
    made = call(node)
    if isinstance(made, Awaitable) and not isinstance(made, asyncio.Future):
        async with asyncio.timeout(10):
            with contextlib.suppress(Refused):
                await made
    return "value"


async def in_state(state: str, directory: Path) -> tuple[Node, asyncio.Task[None] | None]:
    node = Node(alone(directory), plugins=())
    if state == "new":
        return node, None
    starting = asyncio.create_task(node.start())
    await asyncio.sleep(0)
    if state == "starting":
        return node, starting
    await starting
    await node.wait_ready()
    await node.leases.grant(30, id=7)
    if state == "faulted":
        node._faulted(DiskFailed("a disk of this test"))
    if state == "stopped":
        await node.stop()
    return node, None


@pytest.mark.parametrize("state", STATES)
def test_d3_every_public_name_in_every_state(state: str, tmp_path: Path) -> None:
    async def whole() -> None:
        for number, (name, (call, outcomes)) in enumerate(NAMES.items()):
            expected = outcomes[STATES.index(state)]
            # What changes nothing is asked of one node; the rest of a node of its own.
            node, starting = await in_state(state, tmp_path / f"{number}")
            try:
                if isinstance(expected, str):
                    assert await at_once(call, node) == "value", name
                else:
                    with pytest.raises(expected) as caught:
                        await at_once(call, node)
                    if expected is DiskFailed:
                        assert str(caught.value) == "a disk of this test"
                    assert caught.type is not AttributeError
            except BaseException as error:
                error.add_note(f"{name} in the state {state}")
                raise
            finally:
                if starting is not None:
                    await asyncio.gather(starting, return_exceptions=True)
                await node.stop()

    asyncio.run(whole())


def test_d3_the_table_has_every_public_name() -> None:
    public = {name for name in dir(Node) if not name.startswith("_")}
    made = {name for name in vars(Node(alone(Path("x")), plugins=())) if not name.startswith("_")}
    assert (public | made) - NOT_HERE <= set(NAMES)


@in_loop
async def test_d3_what_a_node_has_once_it_was_started(tmp_path: Path) -> None:
    node, other = Node(alone(tmp_path), plugins=()), Node(alone(tmp_path), plugins=())
    await node.start()
    await node.stop()
    later = {name for name in vars(node).keys() - vars(other).keys() if name[0] != "_"}
    text = (Path(__file__).parent.parent / "docs/embedding.md").read_text(encoding="utf-8")
    assert len(later) > 10
    for name in later:
        assert f"`{name}`" in text
        assert not hasattr(other, name)
        with pytest.raises(Stopped):
            getattr(other, name)
        assert getattr(node, name) is not None


def test_d3_the_documents_have_every_name() -> None:
    text = (Path(__file__).parent.parent / "docs/embedding.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)`", text.partition("## The states")[2].partition("\n##")[0]))
    assert {name for name in NAMES if "." not in name} <= told


@in_loop
async def test_d3_a_name_that_a_node_has_not_is_an_attribute_error(tmp_path: Path) -> None:
    async with Node(alone(tmp_path), plugins=()) as node:
        with pytest.raises(AttributeError, match="no_such_name"):
            node.no_such_name  # noqa: B018


@pytest.mark.parametrize("faults", [False, True])
def test_d3_what_looks_for_a_lessor_ends_with_its_node(tmp_path: Path, faults: bool) -> None:
    async def whole() -> None:
        node = Node(alone(tmp_path), plugins=())
        async with node:
            await node.wait_ready()
            leases = node.leases
            lease = await leases.grant(30)
            waiting = [
                asyncio.create_task(leases.keep_alive(lease.id, timeout_s=60)),
                asyncio.create_task(leases.time_to_live(lease.id, timeout_s=60)),
            ]
            # The leader does not answer, so both look for a lessor until their node ends.
            node.hosting.services["kv"].lessor.stop()
            await asyncio.sleep(0)
            if faults:
                node._faulted(DiskFailed("a disk of this test"))
            else:
                await node.stop()
            async with asyncio.timeout(10):
                ended = await asyncio.gather(*waiting, return_exceptions=True)
            kind = DiskFailed if faults else Stopped
            assert all(isinstance(each, kind | int | raftkv.kv.LeaseStatus) for each in ended)
            for call in (leases.keep_alive, leases.time_to_live):
                with pytest.raises(kind):
                    await call(lease.id, timeout_s=60)

    asyncio.run(whole())


BLOCKING: dict[str, tuple[Call, tuple[Outcome, ...]]] = {
    "name": (lambda n: n.name, ("value",) * 4),
    "role": (lambda n: n.role, ("value",) * 4),
    "leader": (lambda n: n.leader, ("value",) * 4),
    "fault": (lambda n: n.fault, ("value",) * 4),
    "kv": (lambda n: n.kv, (Stopped, "value", "value", "value")),
    "leases": (lambda n: n.leases, (Stopped, "value", "value", "value")),
    "kv.put": (lambda n: n.kv.put(b"k", b"v"), (Stopped, "value", DiskFailed, Stopped)),
    "kv.watch": (lambda n: n.kv.watch(b"k").close(), (Stopped, "value", "value", Stopped)),
    "leases.list": (lambda n: n.leases.list(), (Stopped, "value", DiskFailed, Stopped)),
    "wait_ready": (lambda n: n.wait_ready(), (Stopped, "value", DiskFailed, Stopped)),
    "propose": (
        lambda n: n.propose("kv", Put(b"p", b"v")),
        (Stopped, "value", DiskFailed, Stopped),
    ),
    "outcome": (lambda n: n.outcome(1, 1), (Stopped, "value", DiskFailed, Stopped)),
    "barrier": (lambda n: n.barrier(), (Stopped, "value", DiskFailed, Stopped)),
    "status": (lambda n: n.status(), (Stopped, "value", "value", Stopped)),
    "run": (lambda n: n.run(lambda inner: inner.name), (Stopped, "value", "value", Stopped)),
    "start": (lambda n: n.start(), ("value", *(RuntimeError,) * 3)),
    "stop": (lambda n: n.stop(), ("value",) * 4),
}
BLOCKING_STATES = ("new", "running", "faulted", "stopped")


def blocking_in(state: str, directory: Path) -> BlockingNode:
    node = BlockingNode(alone(directory), plugins=())
    if state == "new":
        return node
    node.start()
    if state == "faulted":
        node.run(lambda inner: inner._faulted(DiskFailed("a disk of this test")))
    if state == "stopped":
        node.stop()
    return node


@pytest.mark.parametrize("state", BLOCKING_STATES)
def test_d3_every_public_name_of_a_blocking_node(state: str, tmp_path: Path) -> None:
    assert {name for name in dir(BlockingNode) if not name.startswith("_")} <= set(BLOCKING)
    for number, (name, (call, outcomes)) in enumerate(BLOCKING.items()):
        node = blocking_in(state, tmp_path / f"{number}")
        expected = outcomes[BLOCKING_STATES.index(state)]
        try:
            if isinstance(expected, str):
                call(node)
            else:
                with pytest.raises(expected):
                    call(node)
        except BaseException as error:
            error.add_note(f"{name} in the state {state}")
            raise
        finally:
            node.stop()


def test_d3_a_second_start_leaves_the_node_running(tmp_path: Path) -> None:
    with blocking.Node(alone(tmp_path), plugins=()) as node:
        node.kv.put(b"k", b"v")
        with pytest.raises(RuntimeError, match="started once"):
            node.start()
        with pytest.raises(RuntimeError, match="started once"):
            node.run(lambda inner: inner.start())
        node.kv.put(b"k", b"w")


CLIENT: dict[str, Call] = {
    "kv.put": lambda c: c.kv.put(b"k", b"v"),
    "kv.get": lambda c: c.kv.get(b"k"),
    "kv.range": lambda c: c.kv.range(),
    "kv.delete": lambda c: c.kv.delete(b"k"),
    "kv.txn": lambda c: c.kv.txn(),
    "kv.compact": lambda c: c.kv.compact(1),
    "kv.watch": lambda c: ended(c.kv.watch(b"k")),
    "leases.grant": lambda c: c.leases.grant(30),
    "leases.revoke": lambda c: c.leases.revoke(7),
    "leases.keep_alive": lambda c: c.leases.keep_alive(7),
    "leases.time_to_live": lambda c: c.leases.time_to_live(7),
    "leases.list": lambda c: c.leases.list(),
    "status": lambda c: c.status(),
    "members": lambda c: c.members(),
    "call": lambda c: c.call("GET", "/v1/x"),
    "stream": lambda c: c.stream("GET", "/v1/x"),
}


@in_loop
async def test_d3_every_call_of_a_closed_client_says_so() -> None:
    client = raftkv.Client("http://127.0.0.1:9")
    await client.close()
    for name, call in CLIENT.items():
        try:
            with pytest.raises(Stopped):
                async with asyncio.timeout(5):
                    await call(client)
        except BaseException as error:
            error.add_note(name)
            raise
    assert (client.endpoint, client.endpoints) == ("http://127.0.0.1:9", ("http://127.0.0.1:9",))
    await client.close()


def test_d3_every_call_of_a_closed_blocking_client_says_so() -> None:
    client = blocking.Client("http://127.0.0.1:9")
    client.close()
    for name, call in CLIENT.items():
        if name == "kv.watch":
            continue
        with pytest.raises(Stopped):
            assert not inspect.isawaitable(call(client)), name
    with pytest.raises(Stopped):
        client.kv.watch(b"k")


def test_the_error_of_a_fault_is_a_node_fault() -> None:
    assert issubclass(DiskFailed, NodeFault)
