"""`client.kv` and `client.leases` give what `node.kv` and `node.leases` give: on a real cluster."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from raftkv import Client, KVApi
from raftkv.client import ClientKV, ClientLeases
from raftkv.errors import Refused
from raftkv.kv.commands import (
    Compacted,
    Compare,
    DeleteRangeOp,
    DuplicateKey,
    FutureRevision,
    KeyNotFound,
    LeaseExists,
    LeaseNotFound,
    PutOp,
    RangeOp,
    TxnOp,
)
from raftkv.kv.leases import LeaseApi, LeaseStatus
from tests.client.doors import served
from tests.client.fake_door import in_loop, until


@in_loop
async def test_reads_are_the_same_in_every_form() -> None:
    async with served(3, replicants=1) as doors, Client(doors.urls[-1]) as client:
        node = doors.cluster.nodes[0]
        lease = (await client.leases.grant(60)).id
        for number in range(12):
            key = b"k%02d" % number
            await client.kv.put(key, bytes([255 - number]), lease=lease if number == 3 else 0)
        past = (await client.kv.put(b"k05", b"")).revision
        await client.kv.delete(b"k07")
        forms: list[dict[str, Any]] = [
            {},
            {"first": b"k03", "last": b"k06"},
            {"prefix": b"k0", "limit": 3},
            {"prefix": b"k", "keys_only": True},
            {"prefix": b"k", "count_only": True},
            {"prefix": b"k", "revision": past},
            {"prefix": b"k", "sort_by": "value"},
            {"prefix": b"k", "sort_by": "mod", "descending": True, "limit": 2},
            {"prefix": b"k", "descending": True},
            {"prefix": b"k", "min_mod_revision": past - 3, "max_mod_revision": past},
            {"prefix": b"k", "min_create_revision": 4, "max_create_revision": 6},
            {"prefix": b"none"},
        ]
        for form in forms:
            assert await client.kv.range(**form) == await node.kv.range(**form), form
        for key in (b"k05", b"k07", b"k03"):
            assert await client.kv.get(key) == await node.kv.get(key)
            assert await client.kv.get(key, revision=past) == await node.kv.get(key, revision=past)
        local = await client.kv.range(prefix=b"k", consistency="local")
        assert local == await node.kv.range(prefix=b"k")
        await client.kv.compact(past)
        for wrong, refusal in ((past - 1, Compacted), (past + 100, FutureRevision)):
            raised = []
            for kv in (client.kv, node.kv):
                with pytest.raises(refusal) as caught:
                    await kv.range(prefix=b"k", revision=wrong)
                raised.append(caught.value.args)
            assert raised[0] == raised[1]


@in_loop
async def test_pages_are_of_one_revision() -> None:
    async with served(1) as doors, Client(doors.urls) as client:
        for number in range(25):
            await client.kv.put(b"p/%02d" % number, b"v")
        node = doors.cluster.nodes[0]
        seen = []
        async for page in client.kv.pages(prefix=b"p/", page_keys=10):
            seen.append(page)
            await client.kv.put(b"p/99", b"later")
            await client.kv.delete(b"p/24")
        first = seen[0].revision
        expected = [p async for p in node.kv.pages(prefix=b"p/", page_keys=10, revision=first)]
        assert seen == expected
        assert [len(page.kvs) for page in seen] == [10, 10, 5]
        assert {page.revision for page in seen} == {first}
        empty = [page async for page in client.kv.pages(prefix=b"none")]
        assert [page.kvs for page in empty] == [()]
        with pytest.raises(ValueError, match="page_keys"):
            await anext(client.kv.pages(page_keys=0))


@in_loop
async def test_writes_give_the_same_results_and_refusals() -> None:
    """The same operations on two keyspaces, one of them over the network."""

    async def act(kv: KVApi | ClientKV, leases: LeaseApi | ClientLeases) -> list[Any]:
        done: list[Any] = []

        async def note(awaitable: Any) -> None:
            try:
                result = await awaitable
                if isinstance(result, LeaseStatus) and result.ttl_s > 0:
                    result = msgspec.structs.replace(result, ttl_s=60)  # it runs meanwhile
                done.append(result)
            except Refused as refusal:
                done.append((type(refusal), refusal.args))

        await note(kv.put(b"a", b"1"))
        await note(kv.put(b"a", b"2", prev_kv=True))
        await note(kv.put(b"a", b"", prev_kv=True, ignore_value=True))
        await note(kv.put(b"none", b"", ignore_value=True))
        await note(kv.put(b"b", b"3", lease=12345))
        await note(leases.grant(60, id=12345))
        await note(leases.grant(60, id=12345))
        await note(kv.put(b"b", b"3", lease=12345))
        await note(leases.time_to_live(12345, keys=True))
        await note(leases.time_to_live(1))
        await note(leases.keep_alive(12345))
        await note(leases.keep_alive(1))
        await note(leases.list())
        inner = TxnOp((Compare(b"b", "lease", "=", 12345),), (RangeOp(b"a"), PutOp(b"c", b"4")))
        await note(
            kv.txn(
                [Compare(b"a", "value", ">", b"1"), Compare(b"a", "version", "!=", 0)],
                [PutOp(b"d", b"5", prev_kv=True), inner, DeleteRangeOp(b"a", prev_kv=True)],
            )
        )
        failing = [Compare(b"a", "create", "<", 0), Compare(b"z", "mod", "=", 0, b"zz")]
        await note(kv.txn(failing, [], [RangeOp(b"a", b"z", limit=2)]))
        await note(kv.txn(success=[PutOp(b"x", b"1"), PutOp(b"x", b"2")]))
        await note(kv.txn())
        await note(kv.delete(prefix=b"c", prev_kv=True))
        await note(kv.delete(b"none"))
        await note(kv.delete_range(DeleteRangeOp(b"d", b"\0")))
        await note(leases.revoke(12345))
        await note(leases.revoke(12345))
        await note(kv.compact(5))
        await note(kv.compact(5))
        await note(kv.compact(500))
        return done

    async with served(1) as there, served(1) as here, Client(there.urls) as client:
        over = await act(client.kv, client.leases)
        node = here.cluster.nodes[0]
        embedded = await act(node.kv, node.leases)
        assert over == embedded
        refused = {each[0] for each in over if isinstance(each, tuple)}
        assert {KeyNotFound, LeaseNotFound, LeaseExists, DuplicateKey, Compacted} <= refused


@in_loop
async def test_a_lease_is_kept_alive_across_the_death_of_its_endpoint() -> None:
    async with served(3) as doors, Client(doors.urls, timeout_s=3) as client:
        async with client.leases.keeping(3) as lease:
            await client.kv.put(b"s", b"here", lease=lease.id)
            first = next(iter(doors.proxies))
            await doors.kill(first)
            valid = lease.valid_until
            await until(lambda: lease.valid_until > valid + 1.5)
            assert not lease.is_lost
            assert await client.kv.get(b"s") is not None
        assert await client.kv.get(b"s") is None


@in_loop
async def test_status_and_members_tell_of_the_nodes() -> None:
    async with served(3, replicants=1) as doors, Client(doors.urls) as client:
        for name, proxy in doors.proxies.items():
            assert (await client.status(proxy.url)).name == name
        assert (await client.status()).name == "core1"
        listing = await client.members()
        assert [row.name for row in listing.members] == ["core1", "core2", "core3", "replicant1"]
        with pytest.raises(Exception, match="not an endpoint of this client"):
            await client.status("http://127.0.0.1:1")


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
    ]


# A copy on this very node has revisions and a hash; a client has no copy. The rest is the door's.
NODES_OWN = {
    "revision",
    "lowest_revision",
    "hash",
    "hub",
    "leases",
    "rows",
    "rows_max",
    "place",
    "walk",
}


@pytest.mark.parametrize(
    ("ours", "theirs", "missing"),
    [(ClientKV, KVApi, NODES_OWN), (ClientLeases, LeaseApi, set())],
)
def test_the_signatures_are_those_of_a_node(ours: type, theirs: type, missing: set[str]) -> None:
    names = {name for name in vars(theirs) if not name.startswith("_")} - missing
    assert names == {name for name in vars(ours) if not name.startswith("_")}
    for name in names:
        assert parameters(getattr(ours, name)) == parameters(getattr(theirs, name)), name
        assert inspect.iscoroutinefunction(getattr(ours, name)) == inspect.iscoroutinefunction(
            getattr(theirs, name)
        )
