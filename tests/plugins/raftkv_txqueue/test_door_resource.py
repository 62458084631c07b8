"""`DoorSession` and `DoorResource`: without a node, at a real door and at doors that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from raftkv import Client
from raftkv.errors import NotApplied, OutcomeUnknown
from raftkv.server import door_of
from raftkv.testing.local_cluster import LocalCluster, free_ports
from raftkv_txqueue import (
    DoorResource,
    DoorSession,
    Message,
    RefusedAtDoor,
    TransactionAborted,
    TransactionUnknown,
    TxQueue,
    TxQueueApi,
    XaError,
    XaStatus,
    Xid,
)
from tests.client.fake_door import (
    HANG_UP,
    Asked,
    FakeDoor,
    Say,
    error,
    in_loop,
    out_of_time,
)
from tests.clocks import LONG_S

XID = Xid(1, b"g", b"b")


@asynccontextmanager
async def served(nodes: int = 1) -> AsyncIterator[tuple[TxQueueApi, Client]]:
    """A cluster with doors and the queue "orders"; the first node's API, and a client."""
    cluster = LocalCluster(nodes, plugins=[TxQueue()], fsync="off")
    for (name, config), port in zip(list(cluster.configs.items()), free_ports(nodes), strict=True):
        address = f"127.0.0.1:{port}"
        cluster.configs[name] = msgspec.structs.replace(config, http_address=address)
    async with cluster:
        doors = [door_of(node) for node in cluster.nodes]
        for door in doors:
            await door.start()
        txq = cluster.nodes[0].plugin(TxQueue)
        await txq.declare("orders")
        async with Client([door.endpoint for door in doors]) as client:
            yield txq, client
        for door in doors:
            await door.stop()


async def bodies(txq: TxQueueApi) -> list[bytes]:
    return [each.message.body for each in await txq.browse("orders")]


@in_loop
async def test_a_local_transaction_is_one_request() -> None:
    async with served() as (txq, client):
        session = await DoorSession.open(client, "tx")
        await session.publish("orders", b"a")
        await session.publish("orders", [Message(b"b", (("kind", "new"),))])
        assert await bodies(txq) == []
        done = await session.commit()
        assert done.spans == (("orders", 1, 2),)
        assert await bodies(txq) == [b"a", b"b"]
        got = await session.get("orders", 5)
        assert [(each.seq, each.body, each.headers, each.redelivered) for each in got] == [
            (1, b"a", (), False),
            (2, b"b", (("kind", "new"),), False),
        ]
        await session.accept(got[0])
        await session.release(got[1])
        assert (await session.commit()).txid != done.txid
        assert await bodies(txq) == [b"b"]
        await session.publish("orders", b"never")
        await session.rollback()
        assert await bodies(txq) == [b"b"]
        await session.close()
        with pytest.raises(RefusedAtDoor, match="has ended"):
            await session.get("orders")


@in_loop
async def test_one_that_cannot_be_done_is_aborted_and_the_next_one_goes() -> None:
    async with served() as (txq, client):
        session = await DoorSession.open(client, "tx")
        txid = session.txid
        await session.publish("nowhere", b"a")
        with pytest.raises(TransactionAborted) as caught:
            await session.commit()
        assert (caught.value.txid, caught.value.cause) == (txid, "txqueue_unknown_queue")
        assert session.txid != txid
        await session.publish("orders", b"b")
        await session.commit()
        assert await bodies(txq) == [b"b"]


@in_loop
async def test_a_plain_session_does_everything_at_once() -> None:
    async with served() as (txq, client):
        session = await DoorSession.open(client)
        await session.publish("orders", b"a")
        (got,) = await session.get("orders", wait_s=5)
        await session.reject(got)
        assert await bodies(txq) == []
        assert await session.get("orders") == ()


@in_loop
async def test_times_and_the_return_to_the_back_from_afar() -> None:
    async with served() as (txq, client):
        session = await DoorSession.open(client)
        await session.publish("orders", b"late", delay_s=3600.0)
        await session.publish("orders", b"a", ttl_s=3600.0)
        await session.publish("orders", b"b")
        (got,) = await session.get("orders", wait_s=5)
        assert got.body == b"a"
        await session.to_back(got)
        assert await bodies(txq) == [b"b", b"a"]
        assert (await txq.depth("orders")).delayed == 1


@in_loop
async def test_branches_are_decided_from_afar() -> None:
    async with served(3) as (txq, client):
        resource = DoorResource(client)
        session = await DoorSession.open(client, "dtx")
        assert await session.start(XID, timeout_s=30) is XaStatus.OK
        await session.publish("orders", b"a")
        assert await session.end(XID, suspend=True) is XaStatus.OK
        assert await session.start(XID, resume=True) is XaStatus.OK
        await session.publish("orders", b"b")
        with pytest.raises(RefusedAtDoor) as caught:
            await resource.prepare(XID)
        assert caught.value.xa is XaError.ILLEGAL_STATE
        assert await session.end(XID) is XaStatus.OK
        await session.close()
        assert await resource.prepare(XID) is XaStatus.OK
        (found,) = await resource.recover()
        assert (found.xid, found.state) == (XID, "prepared")
        assert await resource.commit(XID) is XaStatus.OK
        assert await bodies(txq) == [b"a", b"b"]
        assert await resource.outcome(XID) == "committed"
        # Once more: it was heard the first time, for all that the caller knows.
        assert await resource.commit(XID) is XaStatus.OK
        for act in (resource.rollback, resource.prepare, resource.forget):
            with pytest.raises(RefusedAtDoor) as caught:
                await act(XID)
            assert caught.value.xa is XaError.NOT_FOUND


# --- doors that fail ------------------------------------------------------------------------------

OPENED = Say({"session": 3, "kind": "tx", "node": "a", "idle_s": 60.0, "txid": "3.1"})


def door(commit: Callable[[Asked], Any], outcome: Callable[[Asked], Any]) -> Callable[[Asked], Any]:
    def answer(asked: Asked) -> Any:
        if asked.path.endswith("/sessions"):
            return OPENED
        return commit(asked) if asked.method == "POST" else outcome(asked)

    return answer


def fate(state: str, cause: str = "") -> Say:
    return Say({"txid": "3.1", "state": state, "cause": cause, "reason": "", "index": 9})


def asked_after(fake: FakeDoor) -> int:
    """How often the outcome of a transaction was asked for."""
    return sum(each.method == "GET" for each in fake.asked)


@pytest.mark.parametrize("broken", [HANG_UP, error("txqueue_transaction_unknown", 504)])
@in_loop
async def test_a_commit_that_is_not_answered_is_asked_after(broken: Any) -> None:
    fates = [fate("committed"), fate("rolled back", "session"), fate("preparing"), HANG_UP]
    answer = door(lambda asked: broken, lambda asked: fates.pop(0) if fates else HANG_UP)
    async with FakeDoor(answer) as fake, Client(fake.url, timeout_s=LONG_S) as client:
        session = await DoorSession.open(client, "tx", timeout_s=LONG_S)
        await session.publish("orders", b"a")
        assert (await session.commit()).txid == "3.1"
        assert session.txid == "3.2"
        with pytest.raises(TransactionAborted):
            await session.commit()
        assert session.txid == "3.3"
        await session.publish("orders", b"b")
        for number in (3, 4):
            with pytest.raises(TransactionUnknown):
                await out_of_time(session.commit(), lambda n=number: asked_after(fake) > n)
        sent = [each for each in fake.asked if each.path.endswith("/commit")]
        assert sent[0].body["operations"][0]["publish"] == "orders"
        assert sent[1].body["operations"] == []
        # Of one that is not known the same is sent again.
        assert sent[2].path == sent[3].path == "/v1/txqueue/tx/3.3/commit"
        assert sent[2].body["operations"] == sent[3].body["operations"] != []


@in_loop
async def test_an_aborted_one_is_told_although_its_session_is_gone() -> None:
    """The node was restarted: nothing else can be asked of the session, and nothing has to be."""
    gone = error("txqueue_session_ended", 409)
    aborted = error("txqueue_transaction_aborted", 409, cause="session", why="its node went")
    answer = door(lambda asked: aborted if asked.path.endswith("/commit") else gone, lambda _: gone)
    async with FakeDoor(answer) as fake, Client(fake.url) as client:
        session = await DoorSession.open(client, "tx")
        with pytest.raises(TransactionAborted) as caught:
            await session.commit()
        assert (caught.value.cause, session.txid) == ("session", "3.2")


@in_loop
async def test_a_verb_is_repeated_until_it_is_heard() -> None:
    said = [HANG_UP, Say({"xid": "", "status": 0, "name": "OK"})]
    async with FakeDoor(lambda asked: said.pop(0)) as fake, Client(fake.url) as client:
        assert await DoorResource(client, timeout_s=5).prepare(XID) is XaStatus.OK
        assert [each.path for each in fake.asked] == ["/v1/txqueue/dtx/1:67:62/prepare"] * 2


@in_loop
async def test_what_is_not_known_is_no_refusal() -> None:
    """A coordinator acts upon XA's codes; whatever else comes says nothing."""
    late = error("txqueue_transaction_unknown", 504, txid="1:67:62")
    async with FakeDoor(lambda asked: late) as fake, Client(fake.url) as client:
        with pytest.raises(OutcomeUnknown):
            await DoorResource(client, timeout_s=1).commit(XID)
    missing = error("txqueue_unknown_xid", 404, xa=404)

    def answer(asked: Asked) -> Any:
        return missing if asked.method == "POST" else Say({"state": "rolled back"})

    async with FakeDoor(answer) as fake, Client(fake.url) as client:
        resource = DoorResource(client, timeout_s=1)
        with pytest.raises(RefusedAtDoor) as caught:
            await resource.commit(XID)
        assert caught.value.xa is XaError.NOT_FOUND
        assert await resource.rollback(XID) is XaStatus.OK


@in_loop
async def test_a_session_is_opened_where_one_can_be() -> None:
    full = error("no_leader", 503)
    async with (
        FakeDoor(lambda asked: full) as first,
        FakeDoor(lambda asked: OPENED) as second,
        Client([first.url, second.url]) as client,
    ):
        session = await DoorSession.open(client, "tx", timeout_s=1)
        assert session.id == 3
        assert len(second.asked) == 1
    async with FakeDoor(lambda asked: full) as first, Client(first.url) as client:
        with pytest.raises(NotApplied):
            await DoorSession.open(client, "tx", timeout_s=1)
    await asyncio.sleep(0)


@in_loop
async def test_an_operation_in_a_branch_that_was_not_answered_is_sent_with_the_next() -> None:
    """The door counts operations: what it may have or not must not hide what comes after it."""
    branch: list[Any] = []
    silent = 0

    def answer(asked: Asked) -> Any:
        nonlocal silent
        if asked.path.endswith("/sessions"):
            return Say({"session": 3, "kind": "dtx", "node": "a", "idle_s": 60.0, "txid": ""})
        if asked.path.endswith("/stage"):
            if asked.body["operations"][-1]["publish"] == "no queue":
                return error("txqueue_bad_headers", 400)
            branch[asked.body["at"] :] = [each["publish"] for each in asked.body["operations"]]
            if silent:
                silent -= 1
                return HANG_UP
            return Say({"xid": "", "operations": len(branch)})
        return Say({"xid": "", "status": 0, "name": "OK"})

    async with FakeDoor(answer) as fake, Client(fake.url, timeout_s=1.0) as client:
        session = await DoorSession.open(client, "dtx", timeout_s=1)
        await session.start(XID)
        silent = 1
        with pytest.raises(OutcomeUnknown):
            await session.publish("a", b"1")
        with pytest.raises(RefusedAtDoor):
            await session.publish("no queue", b"?")
        await session.publish("b", b"2")
        assert branch == ["a", "b"]
        silent = 1
        with pytest.raises(OutcomeUnknown):
            await session.publish("c", b"3")
        branch.pop()  # it was the request that was lost
        await session.end(XID)
        assert branch == ["a", "b", "c"]
        assert fake.asked[-1].path.endswith("/end")


@in_loop
async def test_a_commit_in_doubt_stays_so_when_its_door_cannot_be_reached() -> None:
    """That the second request did not arrive says nothing of the first."""
    said: list[Any] = [HANG_UP, error("no_leader", 503), error("no_leader", 503)]
    fates = [fate("active"), fate("active"), fate("committed")]
    answer = door(lambda asked: said.pop(0), lambda asked: fates.pop(0))
    async with FakeDoor(answer) as fake, Client(fake.url, timeout_s=LONG_S) as client:
        session = await DoorSession.open(client, "tx", timeout_s=LONG_S)
        await session.publish("orders", b"a")
        for _ in range(2):
            with pytest.raises(TransactionUnknown):
                await session.commit()
        assert (await session.commit()).txid == "3.1"
        said[:] = [error("no_leader", 503)]
        with pytest.raises(NotApplied):
            await session.commit()
        assert session.txid == "3.2"
