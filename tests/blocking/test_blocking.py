"""`raftkv.blocking`: the same without asyncio, from threads, and ended in every way."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import raftkv
from raftkv import KVApi, blocking
from raftkv.blocking.leases import Keeping
from raftkv.blocking.portal import Portal
from raftkv.client import ClientKV, ClientLeases, ClientWatch
from raftkv.errors import ConfigError, DirectoryLocked, NoLeader, NotApplied, Stopped
from raftkv.kv.commands import Compare, DeleteRangeOp, EmptyKey, LeaseNotFound, PutOp, RangeOp
from raftkv.kv.keeping import Keeping as AsyncKeeping
from raftkv.kv.leases import LeaseApi
from raftkv.testing.local_cluster import free_ports
from tests.blocking.alone import config

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")


Store = blocking.Node | blocking.Client


def test_every_word_of_the_keyspace(store: Store) -> None:
    kv = store.kv
    first = kv.put(b"a", b"1").revision
    assert kv.put(b"a", b"2", prev_kv=True).prev is not None
    found = kv.get(b"a")
    assert found is not None
    assert (found.value, found.version) == (b"2", 2)
    past = kv.get(b"a", revision=first)
    assert past is not None
    assert past.value == b"1"
    assert kv.txn([Compare(b"a", "value", "=", b"2")], [PutOp(b"b", b"3")]).succeeded
    assert [each.key for each in kv.range().kvs] == [b"a", b"b"]
    assert kv.range(b"b", sort_by="mod", descending=True).count == 1
    assert kv.read(RangeOp(b"a", b"\0", count_only=True)).count == 2
    assert [[kv.key for kv in page.kvs] for page in kv.pages(page_keys=1)] == [[b"a"], [b"b"]]
    assert kv.delete_range(DeleteRangeOp(b"b")).deleted == 1
    assert kv.delete(b"a", prev_kv=True).prev[0].value == b"2"
    assert kv.compact(first).revision > first
    with pytest.raises(EmptyKey):
        kv.put(b"", b"")


def test_every_word_of_leases(store: Store) -> None:
    leases = store.leases
    lease = leases.grant(30)
    store.kv.put(b"a", b"1", lease=lease.id)
    assert leases.keep_alive(lease.id) == 30
    assert leases.time_to_live(lease.id, keys=True).keys == (b"a",)
    assert lease.id in leases.list()
    assert leases.revoke(lease.id).deleted == 1
    with pytest.raises(LeaseNotFound):
        leases.keep_alive(lease.id)
    with leases.keeping(30) as kept:
        assert kept.is_lost is False
        assert kept.id in leases.list()
        assert kept.ttl_s == 30
        assert kept.wait_lost(0.01) is False
        leases.revoke(kept.id)
    assert kept.wait_lost(0.01)
    assert kept.id not in leases.list()


def test_a_watch_is_an_iterator(store: Store) -> None:
    with store.kv.watch(prefix=b"w/") as watch:
        revision = watch.created(5)
        with pytest.raises(TimeoutError):
            watch.next(0.02)
        for number in range(3):
            store.kv.put(b"w/%d" % number, b"v")
        seen = []
        for batch in watch:
            seen += [event.kv.key for event in batch.events]
            if len(seen) == 3:
                break
        assert seen == [b"w/0", b"w/1", b"w/2"]
        assert watch.revision >= revision + 3
        assert watch.cancelled is None
    assert watch.next() is None


def test_a_watch_is_closed_from_another_thread(store: Store) -> None:
    watch = store.kv.watch()
    watch.created(5)
    timer = threading.Timer(0.05, watch.close)
    timer.start()
    assert list(watch) == []
    timer.join()
    watch.close()


def test_calls_come_from_many_threads(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.kv.put(b"t%d" % (n % 8), b"v"), range(80)))
    assert sorted(each.version for each in store.kv.range(prefix=b"t").kvs) == [10] * 8


def test_what_a_client_tells_of_the_cluster(endpoint: str, node: blocking.Node) -> None:
    with blocking.Client(endpoint) as client:
        assert client.status().name == "alone"
        assert client.status(endpoint).leader == "alone"
        assert [row.name for row in client.members().members] == ["alone"]
        assert client.endpoints == (endpoint,)
        assert client.endpoint == endpoint
        assert client.retries == 0
        assert client.outcome(1, 1).verdict == "expired"
    assert node.status().name == node.name == "alone"
    assert node.leader == "alone"
    assert node.role == "core"
    assert node.fault is None
    node.barrier()


def test_after_the_end_calls_say_so(endpoint: str) -> None:
    client = blocking.Client(endpoint)
    watch = client.kv.watch()
    client.close()
    with pytest.raises(Stopped):
        client.kv.get(b"a")
    with pytest.raises(Stopped):
        next(client.kv.pages())
    watch.close()
    client.close()


def test_closing_ends_the_calls_of_other_threads() -> None:
    with pytest.raises(ConfigError):
        blocking.Client("no endpoint")
    client = blocking.Client(f"http://127.0.0.1:{free_ports(1)[0]}", timeout_s=60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.kv.get, b"a")
        while not client.retries:
            time.sleep(0.005)
        client.close()
        with pytest.raises(NotApplied):
            waiting.result(10)
    names = [thread.name for thread in threading.enumerate()]
    assert "raftkv client" not in names


def test_control_c_interrupts_a_wait(endpoint: str) -> None:
    """The main thread waits for an event that does not come; a signal ends the wait."""
    with blocking.Client(endpoint) as client, client.kv.watch() as watch:
        watch.created(5)
        # A shell starts its background jobs with the signal ignored.
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                watch.next(20)
            timer.join()
        finally:
            signal.signal(signal.SIGINT, former)
        client.kv.put(b"after", b"1")  # all goes on
        batch = watch.next(5)
        assert batch is not None
        assert batch.events[0].kv.key == b"after"


def test_a_forked_child_is_refused(endpoint: str) -> None:
    with blocking.Client(endpoint) as client:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.kv.get(b"a")
            except Stopped:
                client.close()  # does not wait for a thread that is not here
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        client.kv.get(b"a")


def test_the_loop_does_not_wait_for_itself() -> None:
    portal = Portal("test")
    try:
        with pytest.raises(RuntimeError, match="own thread"):
            portal.run(lambda: portal.call(asyncio.sleep(0)))
    finally:
        portal.close()
    portal.close()
    with pytest.raises(Stopped):
        portal.call(asyncio.sleep(0))


def test_a_node_that_cannot_start_leaves_nothing(tmp_path: Path, node: blocking.Node) -> None:
    with pytest.raises(DirectoryLocked):
        blocking.Node(node.run(lambda n: n.config), plugins=()).start()
    lonely = config(tmp_path)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with_two = raftkv.NodeConfig(
        name=lonely.name,
        dir=lonely.dir,
        peer_address=lonely.peer_address,
        cores={**lonely.cores, "other": address},
        fsync="off",
    )
    with pytest.raises(NoLeader):
        blocking.Node(with_two, plugins=(), ready_timeout_s=0.05).start()
    assert sum(thread.name == "raftkv node alone" for thread in threading.enumerate()) == 1


# Signatures --------------------------------------------------------------------------------------


def words(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


def signature(function: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    return [
        (each.name, each.kind, each.default, each.annotation)
        for each in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "own"),
    [
        (blocking.KV, KVApi, set()),
        (blocking.KV, ClientKV, set()),
        (blocking.Leases, LeaseApi, set()),
        (blocking.Leases, ClientLeases, set()),
        (blocking.Client, raftkv.Client, set()),
        (blocking.Watch, ClientWatch, {"next", "created"}),
        (Keeping, AsyncKeeping, {"wait_lost", "open", "close"}),
        (blocking.Node, raftkv.Node, {"run", "plugin", "inject_lag", "reload_certificates"}),
    ],
)
def test_the_words_are_those_of_the_asynchronous_side(
    ours: type, theirs: type, own: set[str]
) -> None:
    """Editors show what is written; this keeps what is written true."""
    here, there = words(ours), words(theirs)
    # Of the node's own inside.
    for name in (
        "take",
        "request_progress",
        "kv_under",
        "rows",
        "rows_max",
        "place",
        "walk",
        "hash",
    ):
        there.pop(name, None)
    assert set(here) - own == set(there) - own
    for name in set(here) - own:
        assert signature(here[name]) == signature(there[name]), name


def test_a_client_is_made_with_the_same_arguments() -> None:
    assert signature(blocking.Client.__init__) == signature(raftkv.Client.__init__)
