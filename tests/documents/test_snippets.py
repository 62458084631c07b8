"""The Python of README.md and docs/ runs as it stands there; see snippets.py.

A block that is not run, and is not named in NOT_RUN with the reason, is a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import raftkv
from raftkv import kv, recipes
from raftkv.config import NodeConfig
from raftkv.node import Node
from raftkv.plugin import Metric
from raftkv.server import Door, door_of
from raftkv.testing import LocalCluster
from raftkv.testing.local_cluster import free_ports
from raftkv_cluster_call import Calls
from raftkv_conf import Conf
from raftkv_lcr import LCR
from raftkv_lcr.testing import MemoryBroker
from raftkv_limbo import Limbo, Proposal, Veto
from raftkv_subscriptions import Subscriptions
from raftkv_txqueue import (
    Coordinator,
    DoorResource,
    DoorSession,
    FileJournal,
    NodeResource,
    PrepareFailed,
    TransactionObserver,
    TxQueue,
    Xid,
)
from raftkv_txqueue.commands import FORMAT_TIMES
from tests.documents.snippets import ROOT, Names, Reached, Stage, play, snippets
from tests.testing.conformance_toys import Locks

CONTRACT = "a declaration of the contract: names and types, not a program"
NOT_RUN = {
    "docs/embedding.md#1": "a node alone on a fixed port; README's program does the same",
    "docs/logs.md#1": "a handler for a program of one's own; tests/cli/test_log_writer.py",
    "README.md#1": "tests/test_readme.py",
    "docs/clients.md#2": "a stream between regions, which only a link of a region may open",
    "docs/plugin-contract.md#1": CONTRACT,
}
PLUGINS: Any = [plugin() for plugin in (Calls, Conf, LCR, Limbo, Subscriptions, TxQueue)]


def pages() -> list[str]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in paths]


def test_every_snippet_is_run_or_named_with_a_reason() -> None:
    found = {each.name for page in pages() for each in snippets(page)}
    played = {each.name for page in STAGES for each in snippets(page)}
    assert sorted(found - played - set(NOT_RUN)) == []
    assert sorted(set(NOT_RUN) - found) == [], "these are not there any more"
    assert sorted(page for page in STAGES if not snippets(page)) == []


# Stages -------------------------------------------------------------------------------------------


def named(**names: Any) -> Callable[[Node], dict[str, Any]]:
    """The names that a page takes for granted, and the node."""
    return lambda node: {"node": node, "Reached": Reached, "asyncio": asyncio, **names}


def clients(urls: list[str]) -> Stage:
    async def put_jobs(names: Names) -> None:
        for number in range(1_000_000):
            await names.node.kv.put(b"jobs/%d" % number, b"")

    return Stage(
        named(raftkv=raftkv, config=alone()),
        replaced={"http://10.0.0.1:4001": urls[0], "http://10.0.0.2:4001": urls[1]}
        | {"http://127.0.0.1:4001": urls[0]},
        beside={1: put_jobs, 3: put_jobs},
        threaded=frozenset({3}),
    )


def alone(**more: Any) -> NodeConfig:
    """The configuration of a node that is a cluster by itself."""
    peer, http = free_ports(2)
    config = {
        "name": "alone", "dir": f"{FOLDER[0]}/{peer}", "peer_address": f"127.0.0.1:{peer}",
        "cores": {"alone": f"127.0.0.1:{peer}"}, "http_address": f"127.0.0.1:{http}", **more,
    }  # fmt: skip
    return msgspec.convert(config, NodeConfig)


def calls(urls: list[str]) -> Stage:
    def names(node: Node) -> dict[str, Any]:
        return named(loaded=set(), done=SimpleNamespace(outcome="", id=0, result=None))(node)

    return Stage(
        names,
        after={
            1: (("(done.outcome, done.id, done.result)", ("ok", 1, 1)),),
            2: (("(done.outcome, done.result)", ("init_failure", None)),),
        },
        everywhere=frozenset({1, 3}),
    )


def conf(urls: list[str]) -> Stage:
    def reconnect(port: int) -> None: ...

    return Stage(
        named(reconnect=reconnect),
        after={1: (("conf.get('mail.port')", 587),)},
        everywhere=frozenset({1}),
    )


def http_api(urls: list[str]) -> Stage:
    return Stage(named(raftkv=raftkv, config=alone(), door_of=door_of))


def lcr(urls: list[str]) -> Stage:
    def names(node: Node) -> dict[str, Any]:
        broker = MemoryBroker(node.name)
        given = {"owner": broker, "client_id": "me", "clean_start": False, "channel": "1"}
        return named(LCR=LCR, connected_ms=time.time_ns() // 1_000_000, **given)(node)

    async def enabled(names: Names) -> None:
        await names.node.plugin(LCR).switch_mode("enabled", timeout_s=30)

    outcome = ("(opened.outcome, opened.present)", ("ok", False))
    return Stage(names, before={1: enabled}, after={1: (outcome,)})


def leases(urls: list[str]) -> Stage:
    async def revoke_the_kept_one(names: Names) -> None:
        """When the first one is gone, and another holds the key."""
        async with names.node.kv.watch(b"services/a", start_revision=1) as watch:
            async for batch in watch:
                for event in batch.events:
                    if event.kv.version and event.kv.create_revision > 2:
                        await names.node.leases.revoke(event.kv.lease)

    return Stage(named(), beside={1: revoke_the_kept_one})


def limbo(urls: list[str]) -> Stage:
    async def allowed(writes: Any) -> bool:
        return True

    given = {"Proposal": Proposal, "Veto": Veto, "allowed": allowed}
    first = ("(done.position, done.state, row.value, row.position)", (1, "confirmed", b"70", 1))
    later = ("(done.position, done.state in ('pending', 'confirmed'))", (2, True))
    return Stage(
        lambda node: named(limbo=node.plugin(Limbo), **given)(node),
        after={1: (first,), 2: (later,)},
        everywhere=frozenset({4, 5}),
    )


def metrics(urls: list[str]) -> Stage:
    return Stage(named(Metric=Metric))


def contract(urls: list[str]) -> Stage:
    return Stage(named(Locks=Locks))


def recipes_of(urls: list[str]) -> Stage:
    async def in_a_session(names: Names) -> None:
        session = names.names["session"] = recipes.Session(names.node, ttl_s=10)
        await session.open()

    async def another_lock(names: Names) -> None:
        await names.names["lock"].release()

    async def out_of_the_session(names: Names) -> None:
        await names.names["session"].close()

    async def accounts(names: Names) -> None:
        await names.node.kv.put(b"a", b"30")
        await names.node.kv.put(b"b", b"0")

    def names(node: Node) -> dict[str, Any]:
        given = {name: getattr(recipes, name) for name in ("Election", "atomically")}
        return named(store=node, PutOp=kv.PutOp, **given)(node)

    return Stage(
        names,
        replaced={"http://127.0.0.1:4001": urls[0]},
        after={2: (("done.succeeded", True),), 5: (("done.value", 20),)},
        before={2: in_a_session, 3: another_lock, 5: accounts, 6: out_of_the_session},
        threaded=frozenset({6}),
    )


def subscriptions(urls: list[str]) -> Stage:
    return Stage(named(), endless=frozenset({1}))


def txqueue(urls: list[str]) -> Stage:
    class Store:
        async def has_room_for(self, count: int) -> bool:
            return True

    def names(node: Node) -> dict[str, Any]:
        given = {
            "TransactionObserver": TransactionObserver, "PrepareFailed": PrepareFailed, "Xid": Xid,
            "FileJournal": FileJournal, "Coordinator": Coordinator, "NodeResource": NodeResource,
            "DoorResource": DoorResource,
        }  # fmt: skip
        return named(store=Store(), work_on=lambda message: True, **given)(node)

    async def queues_with_times(names: Names) -> None:
        queues = names.node.plugin(TxQueue)
        await queues.declare("reminders")
        while queues.host.view().version < FORMAT_TIMES:
            await asyncio.sleep(0.05)

    async def some_orders(names: Names) -> None:
        await names.node.plugin(TxQueue).publish("orders", [b"1", b"2", b"3"])

    async def more_orders(names: Names) -> None:
        while True:
            await names.node.plugin(TxQueue).publish("orders", b"more")
            await asyncio.sleep(0.05)

    async def in_a_transaction(names: Names) -> None:
        queues = names.node.plugin(TxQueue)
        await queues.publish("orders", b"one")
        names.names["session"] = session = await queues.session("tx")
        names.names["message"] = (await session.get("orders", wait_s=30.0))[0]

    async def two_sides(names: Names) -> None:
        queues, client = names.node.plugin(TxQueue), raftkv.Client(urls[1])
        here, there = await queues.session("dtx"), await DoorSession.open(client, "dtx")
        given = {"eu": queues, "client": client, "eu_session": here, "us_session": there}
        names.names.update(given)

    return Stage(
        names,
        replaced={"data/coordinator": f"{FOLDER[0]}/coordinator"},
        before={2: queues_with_times, 3: some_orders, 4: in_a_transaction, 7: two_sides},
        beside={3: more_orders},
        after={1: (("done.txid", "1.1"),), 6: (("status.name", "OK"),)},
        everywhere=frozenset({1, 5}),
        endless=frozenset({3}),
    )


STAGES: dict[str, Callable[[list[str]], Stage]] = {
    "docs/clients.md": clients,
    "docs/cluster-calls.md": calls,
    "docs/conf.md": conf,
    "docs/http-api.md": http_api,
    "docs/lcr.md": lcr,
    "docs/leases.md": leases,
    "docs/limbo.md": limbo,
    "docs/metrics.md": metrics,
    "docs/plugin-contract.md": contract,
    "docs/recipes.md": recipes_of,
    "docs/subscriptions.md": subscriptions,
    "docs/txqueue.md": txqueue,
}
FOLDER: list[str] = []


@contextlib.asynccontextmanager
async def cluster_with_http(folder: Path) -> AsyncIterator[tuple[LocalCluster, list[str]]]:
    """Three cores with all plugins, each with its HTTP API."""
    cluster = LocalCluster(3, plugins=PLUGINS, directory=str(folder), fsync="off")
    for name, port in zip(cluster.configs, free_ports(3), strict=True):
        address = f"127.0.0.1:{port}"
        cluster.configs[name] = msgspec.structs.replace(cluster.configs[name], http_address=address)
    async with cluster, contextlib.AsyncExitStack() as stack:
        served: list[Door] = []
        for node in cluster.nodes:
            served.append(door_of(node))
            await served[-1].start()
            stack.push_async_callback(served[-1].stop)
        yield cluster, [each.endpoint for each in served]


@pytest.mark.slow
@pytest.mark.parametrize("page", STAGES)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    async def whole() -> None:
        async with cluster_with_http(tmp_path / "cluster") as (cluster, urls):
            await play(page, STAGES[page](urls), cluster.nodes, set(NOT_RUN))

    FOLDER[:] = [str(tmp_path)]
    asyncio.run(whole())
