"""The client package `etcd3gw`, unmodified, against three cores."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import pytest

from raftkv.cli.devcluster import DevCluster
from tests.etcd.conftest import host_and_port

etcd3gw = pytest.importorskip("etcd3gw")

pytestmark = pytest.mark.cluster

TIMEOUT_S = 10


def client_of(endpoint: str) -> Any:
    host, port = host_and_port(endpoint)
    return etcd3gw.client(host=host, port=port, timeout=TIMEOUT_S)


@pytest.fixture
def client(three: DevCluster) -> Any:
    return client_of(three.endpoint("core1"))


@pytest.fixture
def prefix() -> str:
    """A place of one's own in the keyspace."""
    return f"/{uuid.uuid4()}/"


def test_what_it_says_of_the_cluster(client: Any, three: DevCluster) -> None:
    assert client.status()["version"].startswith("3.4.")
    members = client.members()
    assert sorted(member["name"] for member in members) == sorted(three.names)
    assert {url for member in members for url in member["clientURLs"]} == set(three.endpoints())


def test_put_get_delete(client: Any, three: DevCluster, prefix: str) -> None:
    key = prefix + "key"
    assert client.get(key) == []
    assert client.put(key, "value")
    assert client.put(key, b"\xff\x00")
    # A linearizable read at another node sees it.
    assert client_of(three.endpoint("core3")).get(key) == [b"\xff\x00"]
    ((value, metadata),) = client.get(key, metadata=True)
    assert value == b"\xff\x00"
    assert metadata["version"] == "2"
    assert client.create(key, "again") is False
    assert client.replace(key, b"\xff\x00", "third") is True
    assert client.replace(key, "wrong", "fourth") is False
    assert client.delete(key) is True
    assert client.delete(key) is False


def test_prefixes_and_order(client: Any, prefix: str) -> None:
    for number in (2, 3, 1):
        client.put(f"{prefix}{number}", str(number))
    found = client.get_prefix(prefix, sort_order="descend", sort_target="key")
    assert [value for value, _ in found] == [b"3", b"2", b"1"]
    oldest = client.get_prefix(prefix, sort_order="ascend", sort_target="create")
    assert [value for value, _ in oldest] == [b"2", b"3", b"1"]
    assert client.get(prefix + "1", range_end=prefix + "9", limit=2) == [b"1", b"2"]
    assert client.delete_prefix(prefix) is True
    assert client.get_prefix(prefix) == []


def test_leases(client: Any, prefix: str) -> None:
    lease = client.lease(ttl=60)
    client.put(prefix + "a", "1", lease=lease)
    client.put(prefix + "b", "2", lease=lease)
    assert 0 < lease.ttl() <= 60
    assert lease.refresh() == 60
    assert sorted(lease.keys()) == [(prefix + each).encode() for each in "ab"]
    assert lease.revoke()
    assert client.get_prefix(prefix) == []
    assert lease.ttl() == -1
    assert lease.refresh() == -1


def test_a_lock_is_held_by_one(client: Any, three: DevCluster) -> None:
    name = str(uuid.uuid4())
    mine = client.lock(name, ttl=60)
    other = client_of(three.endpoint("core2")).lock(name, ttl=60)
    with mine:
        assert mine.is_acquired()
        assert other.acquire() is False
        assert mine.refresh() == 60
    assert mine.is_acquired() is False
    assert other.acquire() is True
    assert other.release() is True


def test_a_watch_sees_what_is_done_at_another_node(
    client: Any, three: DevCluster, prefix: str
) -> None:
    events, cancel = client.watch_prefix(prefix, prev_kv=True)
    elsewhere = client_of(three.endpoint("core2"))
    try:
        elsewhere.put(prefix + "a", "1")
        elsewhere.put(prefix + "a", "2")
        elsewhere.delete(prefix + "a")
        seen = [next(events) for _ in range(3)]
    finally:
        cancel()
    assert [event["kv"].get("value") for event in seen] == [b"1", b"2", None]
    assert seen[2]["type"] == "DELETE"
    # The package leaves the bytes of prev_kv as they came.
    assert base64.b64decode(seen[2]["prev_kv"]["value"]) == b"2"
    first = int(seen[0]["kv"]["mod_revision"])
    again = client.watch_prefix_once(prefix, timeout=TIMEOUT_S, start_revision=first + 1)
    assert again["kv"]["value"] == b"2"


def test_transactions(client: Any, prefix: str) -> None:
    encoded = etcd3gw.utils._encode(prefix + "t")
    client.put(prefix + "t", "1")
    transaction = {
        "compare": [{"key": encoded, "result": "EQUAL", "target": "VERSION", "version": 1}],
        "success": [{"request_put": {"key": encoded, "value": etcd3gw.utils._encode("2")}}],
        "failure": [{"request_range": {"key": encoded}}],
    }
    assert client.transaction(transaction)["succeeded"] is True
    lost = client.transaction(transaction)
    assert "succeeded" not in lost
    (read,) = lost["responses"]
    assert read["response_range"]["kvs"][0]["version"] == "2"


def test_what_is_refused_is_an_error_of_the_package(client: Any, prefix: str) -> None:
    lease = client.lease(ttl=60)
    lease.revoke()
    with pytest.raises(etcd3gw.exceptions.Etcd3Exception):
        client.put(prefix + "a", "1", lease=lease)
