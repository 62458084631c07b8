"""--timeout bounds a whole command: what finds the nodes is taken off the time of their answers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from raftkv.cli import connecting, door_client
from raftkv.cli.connecting import client_of, endpoints_of
from raftkv.cli.endpoint import ask_all
from raftkv.cli.kit import Ask, first_answering
from raftkv.cli.member import endpoints_of_members
from raftkv.cli.options import At
from raftkv.client import Client
from raftkv.errors import Timeout

HANGS, WORKS, MORE = "http://a:1", "http://b:1", "http://c:1"
TIMEOUT_S = 8.0
ROW = {"standing": "voter", "incarnation": 1}


class Cluster:
    """Stands for the nodes: one hangs until the time of a request has passed, the others answer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[tuple[str, str, float]] = []
        self.incarnation: int | None = 1
        self._lock = threading.Lock()

    def request(
        self, endpoint: str, method: str, path: str, body: Any = None, *, timeout_s: float, **_: Any
    ) -> Any:
        with self._lock:
            self.asked.append((endpoint, path, timeout_s))
            if endpoint == HANGS:
                self.now += timeout_s
                raise Timeout(f"{endpoint} did not answer")
        if path == "/v1/members":
            rows = [
                {"name": name, "http_address": f"{name}:1", **ROW, "incarnation": self.incarnation}
                for name in "abc"
            ]
            return {"leader": "b", "told_by": endpoint[7], "members": rows}
        return {"name": endpoint[7]}

    def time_of(self, path: str, endpoint: str = WORKS) -> float:
        return next(each[2] for each in self.asked if each[:2] == (endpoint, path))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    fake = Cluster()
    monkeypatch.setattr(time, "monotonic", lambda: fake.now)
    monkeypatch.setattr(door_client, "request", fake.request)
    return fake


def at(*endpoints: str) -> At:
    return At(endpoints=endpoints, timeout_s=TIMEOUT_S)


def test_a12_the_search_for_a_node_is_taken_off_the_time_of_a_request(cluster: Cluster) -> None:
    Ask(at(HANGS, WORKS))("POST", "/v1/thing", {}, repeat=False)
    assert cluster.now > 100.0
    assert cluster.now + cluster.time_of("/v1/thing") == 100.0 + TIMEOUT_S


def test_a12_the_search_for_the_members_is_taken_off_the_time_of_each(cluster: Cluster) -> None:
    found = ask_all(at(HANGS, WORKS), True, lambda request: request("GET", "/v1/status"))
    assert [each.error is None for each in found] == [False, True, True]
    assert cluster.time_of("/v1/members") <= TIMEOUT_S / 2
    assert 100.0 < cluster.now <= 100.0 + TIMEOUT_S


def test_a12_the_search_for_one_node_is_taken_off_its_time(cluster: Cluster) -> None:
    chosen, silent = first_answering(at(HANGS, WORKS), "/v1/status")
    assert chosen is not None
    assert chosen.endpoints == (WORKS,)
    assert [endpoint for endpoint, _ in silent] == [HANGS]
    assert cluster.now + chosen.timeout_s == 100.0 + TIMEOUT_S


def test_a12_a_client_of_a_command_has_what_is_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def working_first(endpoints: list[str], *_: object) -> list[str]:
        cluster.now += 3.0
        return endpoints

    monkeypatch.setattr(connecting, "_working_first", working_first)

    async def run() -> float:
        async with client_of(at(HANGS, WORKS)) as client:
            return client._caller.timeout_s

    assert asyncio.run(run()) == TIMEOUT_S - 3.0


def test_a12_an_endpoint_that_is_named_twice_is_asked_once(cluster: Cluster) -> None:
    assert endpoints_of(at(WORKS, MORE, WORKS + "/", WORKS)) == [WORKS, MORE]
    assert Client([WORKS, MORE, WORKS]).endpoints == (WORKS, MORE)
    found = ask_all(at(WORKS, WORKS), False, lambda request: request("GET", "/v1/status"))
    assert len(found) == len(cluster.asked) == 1


def test_a12_a_node_whose_endpoint_has_two_forms_is_asked_once(cluster: Cluster) -> None:
    """Those given are asked, too, while the state has no address of a voter."""
    cluster.incarnation = None
    given = "http://b.example:1"
    assert endpoints_of_members([given], TIMEOUT_S, None).endpoints == [given, HANGS, MORE]


def test_a12_all_endpoints_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2)

    def request(endpoint: str, *_: object, **__: object) -> str:
        together.wait(60)
        return endpoint

    monkeypatch.setattr(door_client, "request", request)
    found = list(Ask(at(WORKS, MORE)).each("GET", "/v1/status"))
    assert found == [(WORKS, WORKS, None), (MORE, MORE, None)]


def test_a12_the_search_for_one_node_waits_for_no_endpoint_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does the exit of the command."""
    chosen_first = threading.Event()
    waited: list[bool] = []

    def request(endpoint: str, *_: object, **__: object) -> str:
        if endpoint == HANGS:
            assert threading.current_thread().daemon
            waited.append(chosen_first.wait(20))
        return endpoint

    monkeypatch.setattr(door_client, "request", request)
    chosen, _ = first_answering(at(WORKS, HANGS), "/v1/status")
    assert waited == []
    chosen_first.set()
    assert chosen is not None
    assert chosen.endpoints == (WORKS,)
