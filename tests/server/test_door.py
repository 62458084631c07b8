"""The door itself: pages, limits, routes of plugins, addresses, stopping."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest

from raftkv import errors
from raftkv.config import HttpLimits
from raftkv.plugin import Request, Response, Route
from raftkv.server import App, Door, app, door
from raftkv.server.answers import FAULT_TEXT
from raftkv.server.bounded import BoundedHttp
from raftkv.server.format_routes import format_routes
from raftkv.server.members import member_routes
from raftkv.server.ports import Writer
from raftkv.server.quota_routes import quota_routes
from raftkv.server.routes import RouteTable, with_own
from tests.server.conftest import Served, b64
from tests.server.solo import SoloNode
from tests.server.wire import Wire, post

PUT_BYTES_MAX = 1_000


@pytest.fixture(scope="module")
def small() -> Iterator[Served]:
    """A door with small limits and the toy's routes."""
    server = Served(body_bytes_max=PUT_BYTES_MAX, route_body_bytes_max=100, routes={"toy": TOY})
    server.start()
    yield server
    server.stop()


async def _echo(request: Request) -> Response:
    body = {
        "params": dict(request.params),
        "query": dict(request.query),
        "body": request.body.decode(),
        "local": request.peer.startswith("127.0.0.1:"),
    }
    return Response(body, status=201)


async def _fixed(request: Request) -> Response:
    return Response(b'{"which":"literal"}')


class OutOfToys(errors.Refused):
    code = "out_of_toys"


RAISED: dict[str, Exception] = {
    "refused": OutOfToys("none left"),
    "not_applied": errors.NoLeader("none"),
    "unknown": errors.Timeout("late"),
    "large": errors.TooLarge("big"),
    "bug": KeyError("secret"),
}


async def _raise(request: Request) -> Response:
    raise RAISED[request.params["what"]]


class Ticks:
    """A stream that remembers that it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def endless(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"tick\n"
                await asyncio.sleep(0.001)
        finally:
            self.is_closed = True

    async def two(self) -> AsyncIterator[bytes]:
        yield b"one\n"
        yield b"two\n"


TICKS = Ticks()


async def _stream(request: Request) -> Response:
    return Response(stream=TICKS.endless() if request.params["n"] == "all" else TICKS.two())


TOY = [
    Route("POST", "things/{id}", _echo, "echo"),
    Route("GET", "things/{id}/raise/{what}", _raise, "raise"),
    Route("POST", "things/fixed", _fixed, "the literal wins"),
    Route("GET", "stream/{n}", _stream, "a stream"),
]


# Pages --------------------------------------------------------------------------------------------


def test_health_says_whether_there_is_a_leader(served: Served) -> None:
    status, headers, body = served.ask("GET", "/health")
    assert (status, json.loads(body)) == (200, {"health": "true"})
    assert headers["content-type"] == "application/json"
    served.node.leader = None
    status, _, body = served.ask("GET", "/health")
    assert status == 503
    assert json.loads(body)["health"] == "false"


def test_version_names_etcds_level_and_our_own(served: Served) -> None:
    expected = {"etcdserver": "3.4.0", "etcdcluster": "3.4.0", "raftkv": "1.2.3"}
    assert json.loads(served.ask("GET", "/version")[2]) == expected


def test_status_is_the_nodes_own(served: Served) -> None:
    found = json.loads(served.ask("GET", "/v1/status")[2])
    assert (found["name"], found["role"], found["term"]) == ("solo", "leader", 7)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v3/maintenance/snapshot", 501, 12),
        ("POST", "/v3/cluster/member/add", 501, 12),
        ("POST", "/v3/auth/enable", 501, 12),
        ("POST", "/v3/lock/lock", 501, 12),
        ("POST", "/v3/election/campaign", 501, 12),
        ("POST", "/v3beta/auth/enable", 501, 12),
        ("GET", "/v3beta/kv/put", 405, 12),
        ("POST", "/v3alpha/kv/put", 501, 12),
        ("GET", "/v3/watch", 405, 12),
        ("GET", "/v3/kv/put", 405, 12),
        ("POST", "/health", 405, 12),
        ("GET", "/", 404, 5),
        ("GET", "/v1/toy/none", 404, 5),
        ("GET", "/v1/", 404, 5),
        ("GET", "/%2e%2e/etc", 404, 5),
    ],
)
def test_everything_else_is_refused(
    served: Served, method: str, path: str, status: int, code: int
) -> None:
    found, _, body = served.ask(method, path, b"{}" if method == "POST" else None)
    assert (found, json.loads(body)["code"]) == (status, code)


def test_head_gives_the_headers_only(served: Served) -> None:
    status, headers, body = served.ask("HEAD", "/health")
    assert (status, headers["content-length"], body) == (200, "17", b"")


# Limits -------------------------------------------------------------------------------------------


def put_of(size: int) -> bytes:
    """A put whose body has exactly `size` bytes."""
    body = json.dumps({"key": b64(b"k"), "value": ""}).encode()
    return body[:-2] + b'"' + b" " * (size - len(body)) + b"}"


def test_a_body_may_have_exactly_the_limit(small: Served) -> None:
    assert small.post("/v3/kv/put", put_of(PUT_BYTES_MAX))[0] == 200
    assert small.post("/v3/kv/put", put_of(PUT_BYTES_MAX + 1))[0] == 413


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is heard out for long."""
    monkeypatch.setattr(app, "DISCARD_TIMEOUT_S", 0.05)


@pytest.mark.usefixtures("hasty")
def test_a_body_that_announces_too_much_is_refused_before_it_is_sent(small: Served) -> None:
    with socket.create_connection(("127.0.0.1", small.door.port), timeout=10) as wire:
        head = b"POST /v3/kv/put HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 999999999\r\n\r\n"
        wire.sendall(head + b"{")
        answer = _until_closed(wire)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"etcdserver: request is too large" in answer


@pytest.mark.usefixtures("hasty")
def test_a_body_without_an_announced_length_is_counted(small: Served) -> None:
    with socket.create_connection(("127.0.0.1", small.door.port), timeout=10) as wire:
        head = b"POST /v3/kv/put HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.sendall(head + b"258\r\n" + b"x" * 600 + b"\r\n")
        wire.sendall(b"258\r\n" + b"x" * 600 + b"\r\n")
        answer = _until_closed(wire)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_endless_headers_close_the_connection(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.door.port), timeout=10) as wire:
        wire.sendall(b"GET /health HTTP/1.1\r\n")
        try:
            for n in range(2 * HttpLimits().head_bytes_max // 1_000):
                wire.sendall(b"x-%d: " % n + b"y" * 1_000 + b"\r\n")
            answer = _until_closed(wire)
        except ConnectionError:
            answer = b""  # closed while we were still sending
    assert b" 200 " not in answer
    assert served.ask("GET", "/health")[0] == 200


def test_requests_on_one_connection_each_get_a_full_head(served: Served) -> None:
    padding = {"x-padding": "y" * (HttpLimits().head_bytes_max // 2)}
    connection = served.connect()
    try:
        for _ in range(5):
            connection.request("GET", "/health", headers=padding)
            response = connection.getresponse()
            assert response.status == 200
            response.read()
    finally:
        connection.close()


def _until_closed(wire: socket.socket) -> bytes:
    parts = []
    while part := wire.recv(65_536):
        parts.append(part)
    return b"".join(parts)


# Plugins' routes ----------------------------------------------------------------------------------


def test_a_route_gets_its_words_its_query_and_its_body(small: Served) -> None:
    status, _, body = small.ask("POST", "/v1/toy/things/a%2Fb?x=1&y=%C3%A4", b"hello")
    assert status == 201
    assert json.loads(body) == {
        "params": {"id": "a/b"},
        "query": {"x": "1", "y": "ä"},
        "body": "hello",
        "local": True,
    }


def test_a_literal_segment_wins_over_a_captured_one(small: Served) -> None:
    assert small.post("/v1/toy/things/fixed", b"")[1] == {"which": "literal"}


@pytest.mark.parametrize(
    ("what", "status", "reason"),
    [
        ("refused", 409, "out_of_toys"),
        ("not_applied", 503, "no_leader"),
        ("unknown", 504, "timeout"),
        ("large", 413, "too_large"),
        ("bug", 500, "internal"),
    ],
)
def test_a_routes_errors(small: Served, what: str, status: int, reason: str) -> None:
    found, headers, body = small.ask("GET", f"/v1/toy/things/1/raise/{what}")
    assert (found, json.loads(body)["reason"]) == (status, reason)
    assert ("retry-after" in headers) is (status == 503)
    assert b"secret" not in body


def test_a_route_has_its_own_body_limit(small: Served) -> None:
    assert small.ask("POST", "/v1/toy/things/1", b"x" * 100)[0] == 201
    assert small.ask("POST", "/v1/toy/things/1", b"x" * 101)[0] == 413


def test_a_path_with_another_method_is_405(small: Served) -> None:
    assert small.ask("GET", "/v1/toy/things/1")[0] == 405


def test_a_stream_is_sent_in_parts_and_ends(small: Served) -> None:
    status, headers, body = small.ask("GET", "/v1/toy/stream/two")
    assert (status, body) == (200, b"one\ntwo\n")
    assert headers["transfer-encoding"] == "chunked"


def test_a_stream_is_closed_when_the_client_goes(small: Served) -> None:
    connection = small.connect()
    connection.request("GET", "/v1/toy/stream/all")
    response = connection.getresponse()
    assert response.read(5) == b"tick\n"
    response.close()
    connection.close()

    async def closed() -> None:
        async with asyncio.timeout(30):
            while not TICKS.is_closed:
                await asyncio.sleep(0.001)

    small.run(closed())


def test_two_routes_that_look_the_same_are_refused() -> None:
    doubled = [*TOY, Route("POST", "things/{name}", _echo, "again")]
    with pytest.raises(errors.ConfigError, match="two routes answer POST toy/things"):
        App(SoloNode(), routes={"toy": doubled})


OWN = {"format": [Route("GET", "", _echo, ""), Route("POST", "raise", _echo, "")]}


def test_a_plugin_may_have_the_name_of_routes_of_raftkv() -> None:
    plugins = {"format": [Route("POST", "{disk}", _echo, "")], "toy": TOY}
    merged = RouteTable(with_own(OWN, plugins))
    for method, path, own in (("GET", "", True), ("POST", "/raise", True), ("POST", "/sda", False)):
        found = merged.find(method, "/v1/format" + path)
        assert isinstance(found, tuple)
        assert (found[0] in OWN["format"]) is own
    assert isinstance(merged.find(TOY[0].method, "/v1/toy/" + TOY[0].path), tuple)


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("format", Route("POST", "/raise/", _echo, "")),
        ("format", Route("GET", "", _echo, "")),
        ("status", Route("GET", "", _echo, "")),
    ],
)
def test_a_plugins_route_that_is_one_of_raftkv_is_refused_by_name(name: str, route: Route) -> None:
    with pytest.raises(errors.ConfigError, match=f"plugin '{name}'.*below format, status"):
        with_own(OWN, {name: [route]})


# Starting and stopping ----------------------------------------------------------------------------


def test_a_taken_address_is_an_error_that_says_so(served: Served) -> None:
    second = Door(App(SoloNode()), "127.0.0.1", served.door.port)
    with pytest.raises(errors.AddressInUse, match=str(served.door.port)):
        asyncio.run(second.start())
    assert served.ask("GET", "/health")[0] == 200


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_impossible_address_is_a_configuration_error(host: str) -> None:
    with pytest.raises(errors.ConfigError, match="http_address"):
        asyncio.run(Door(App(SoloNode()), host, 0).start())


def test_a_request_under_way_is_answered_when_the_door_stops() -> None:
    async def story() -> tuple[bytes, Any]:
        started, release = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Response:
            started.set()
            await release.wait()
            return Response({"done": True})

        door = Door(
            App(SoloNode(), routes={"toy": [Route("GET", "slow", slow, "")]}), "127.0.0.1", 0
        )
        await door.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"GET /v1/toy/slow HTTP/1.1\r\nhost: [::1]\r\n\r\n")
        await started.wait()
        stopping = asyncio.create_task(door.stop())
        await asyncio.sleep(0)
        release.set()
        answer = await reader.read()
        writer.close()
        await stopping
        await door.stop()
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", door.port)
        return answer, door.endpoint

    answer, endpoint = asyncio.run(story())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'{"done":true}')
    assert endpoint.startswith("http://127.0.0.1:")


# Bounds of connections ----------------------------------------------------------------------------


LATER_S = 100_000.0


def connection_of(server: Served, holds: Callable[[BoundedHttp], bool]) -> BoundedHttp:
    """The door's only connection, once something holds of it."""

    async def wait() -> BoundedHttp:
        connections = server.door._state.connections
        while len(connections) != 1 or not holds(next(iter(connections))):
            await asyncio.sleep(0.001)
        return next(iter(connections))

    found: BoundedHttp = server.run(wait())
    return found


def looked_at_later(server: Served, connection: BoundedHttp) -> None:
    """What the door does every second, as if much time had passed."""

    async def check() -> None:
        connection.check(asyncio.get_running_loop().time() + LATER_S)

    server.run(check())


def test_one_connection_too_many_is_told_so() -> None:
    server = Served(limits=HttpLimits(connections_max=1))
    server.start()
    try:
        with Wire(server.door.port) as first:
            first.send(post("/v3/kv/range", b'{"key":"aw=="}'))
            assert first.response()[0] == 200
            with Wire(server.door.port) as second:
                status, headers, body = second.response()
                assert (status, headers["retry-after"]) == (503, "1")
                assert "connections_max" in json.loads(body)["detail"]
                assert second.closed()
        assert server.door._state.refused["connections_max"] == 1
    finally:
        server.stop()


GET_VERSION = b"GET /version HTTP/1.1\r\nhost: [::1]\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", 408),
        (b"POST /v3/kv/put HTTP/1.1\r\nhost: [::1]\r\n", 408),
        (b"POST /v3/kv/put HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 100\r\n\r\n{", None),
        (GET_VERSION + b"POST /v3/kv/put HTTP/1.1\r\n", 408),
        (GET_VERSION, None),
        (GET_VERSION + b"\r\n", None),
    ],
)
def test_a_client_that_is_too_slow_loses_its_connection(
    served: Served, sent: bytes, told: int | None
) -> None:
    """None: it is cut without a word, because a handler waits for the rest, or nothing is asked."""
    with Wire(served.door.port) as wire:
        wire.send(sent)
        if sent.startswith(GET_VERSION):
            assert wire.response()[0] == 200
        in_part = b"POST" in sent
        connection = connection_of(served, lambda found: found._at_rest is not in_part)
        looked_at_later(served, connection)
        if told is not None:
            assert wire.head()[0] == told
        assert wire.closed()


def test_a_stream_may_be_idle_for_as_long_as_it_likes(served: Served) -> None:
    with Wire(served.door.port) as wire:
        wire.open_stream("/v3/watch", {"create_request": {"key": b64(b"k")}})
        assert wire.head()[0] == 200
        wire.result()
        looked_at_later(served, connection_of(served, lambda found: True))
        served.put(b"k", b"v")
        assert wire.result()["events"]


def test_the_door_looks_at_its_connections_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "CHECK_S", 0.01)
    server = Served(limits=HttpLimits(request_timeout_s=0.05))
    server.start()
    try:
        with Wire(server.door.port) as wire:
            assert wire.head()[0] == 408
    finally:
        server.stop()


# Health -------------------------------------------------------------------------------------------


def text(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    status, headers, body = answer
    assert headers["content-type"] == "text/plain; charset=utf-8"
    return status, body.decode()


def test_a_node_that_works_lives_and_is_ready(served: Served) -> None:
    assert text(served.ask("GET", "/livez")) == (200, "ok")
    assert text(served.ask("GET", "/readyz")) == (200, "ok")
    status, shown = text(served.ask("GET", "/readyz?verbose"))
    assert status == 200
    assert shown.splitlines() == [
        "[+]node ok", "[+]standing ok", "[+]session ok", "[+]leader ok", "[+]linearizable_read ok",
        "readyz check passed",
    ]  # fmt: skip


def test_a_node_without_a_quorum_lives_and_is_not_ready(served: Served) -> None:
    served.node.leader = None
    served.node.ready = False
    served.node.host.trouble = lambda: errors.ReadTimeout("not confirmed")
    assert text(served.ask("GET", "/livez")) == (200, "ok")
    status, shown = text(served.ask("GET", "/readyz?exclude=session"))
    assert status == 503
    assert shown.splitlines() == [
        "[+]node ok",
        "[+]standing ok",
        "[+]session excluded: ok",
        "[-]leader failed: no leader is known to this node",
        "[-]linearizable_read failed: not confirmed",
        "readyz check failed",
    ]


def test_a_core_that_the_cluster_does_not_count_is_neither_healthy_nor_ready(
    served: Served,
) -> None:
    served.node.hindrance = 'it has "lost" entries'
    status, _, body = served.ask("GET", "/health")
    assert (status, json.loads(body)["reason"]) == (503, 'it has "lost" entries')
    status, shown = text(served.ask("GET", "/readyz"))
    assert (status, shown.splitlines()[1]) == (503, '[-]standing failed: it has "lost" entries')


def test_a_node_that_has_stopped_itself_does_not_live(served: Served) -> None:
    """C9: why is in its log, for the text names files."""
    served.node.fault = "the data directory /srv/raftkv/a cannot be used"
    status, shown = text(served.ask("GET", "/livez"))
    assert status == 503
    assert shown.startswith(f"[-]node failed: {FAULT_TEXT}")
    for page in ("/livez", "/readyz", "/health", "/v1/status"):
        assert b"/srv" not in served.ask("GET", page)[2], page


def test_an_error_is_short_whatever_it_quotes(served: Served) -> None:
    body = b'{"key":"YQ==","sort_order":"' + b"x" * 2_000_000 + b'"}'
    status, _, answer = served.ask("POST", "/v3/kv/range", body)
    assert (status, len(answer) < 10_000) == (400, True)


@pytest.mark.parametrize("path", ["quotas/lcr", "members/add", "format/raise"])
def test_a_body_that_is_no_text_is_a_bad_request(path: str) -> None:
    """Own routes have no body_of: they answer for the decoder's errors themselves."""
    own = {"quotas": quota_routes, "members": member_routes, "format": format_routes}
    name = path.partition("/")[0]
    server = Served(routes={name: own[name](None)})  # type: ignore[operator]
    server.start()
    try:
        method = "PUT" if name == "quotas" else "POST"
        for body in (b'{"name":"\xff"}', b"\xff", b"[" * 2_000):
            assert server.ask(method, f"/v1/{path}", body)[0] == 400
    finally:
        server.stop()


def scrape(server: Served, accept: str) -> tuple[str | None, bytes]:
    connection = server.connect()
    connection.request("GET", "/metrics", headers={"accept": accept})
    response = connection.getresponse()
    try:
        return response.getheader("content-type"), response.read()
    finally:
        connection.close()


OPENMETRICS = "application/openmetrics-text"


def test_a_flood_of_scrapes_is_rendered_once() -> None:
    now_s = [100.0]
    server = Served(clock=lambda: now_s[0])
    server.start()
    try:
        plain = scrape(server, "text/x")
        assert plain == ("text/plain; version=0.0.4", b"# 1, asked for ''\n")
        now_s[0] += 0.99
        assert scrape(server, "*/*") == plain
        # The other form, and later figures.
        assert (
            scrape(server, f"{OPENMETRICS};q=1")[1] == f"# 2, asked for {OPENMETRICS!r}\n".encode()
        )
        now_s[0] += 0.02
        assert scrape(server, "")[1] == b"# 3, asked for ''\n"
    finally:
        server.stop()


async def as_if_one_were_under_way(app: App) -> None:
    while app.requests:
        await asyncio.sleep(0)
    app.requests = 1


def test_pages_count_as_requests_and_probes_are_always_answered() -> None:
    server = Served(limits=HttpLimits(requests_max=1))
    server.start()
    try:
        before = server.app.requests_total
        for path in ("/metrics", "/v1/status", "/readyz", "/health", "/livez", "/version"):
            assert server.ask("GET", path)[0] == 200
        assert server.app.requests_total == before + 6
        server.run(as_if_one_were_under_way(server.app))
        for path in ("/metrics", "/v1/status", "/readyz"):
            status, headers, _ = server.ask("GET", path)
            assert (status, headers["retry-after"]) == (429, "1")
        assert [server.ask("GET", p)[0] for p in ("/health", "/livez", "/version")] == [200] * 3
        assert server.app.refused["requests_max"] == 3
    finally:
        server.stop()


def test_the_door_counts(served: Served) -> None:
    served.put(b"k", b"v")
    found = {metric.name: metric for metric in served.door.metrics()}
    assert found["requests"].value >= 1
    assert found["requests_in_flight"].value == 0
    assert found["refused"].kind == "counter"


# Sessions -----------------------------------------------------------------------------------------


class Binder:
    """Gives a writer of another node, and notes the headers."""

    def __init__(self) -> None:
        self.node = SoloNode()
        self.seen: dict[bytes, bytes] = {}

    def bind(self, headers: Mapping[bytes, bytes]) -> Writer:
        self.seen = dict(headers)
        return self.node


def test_a_write_under_a_session_goes_to_its_writer() -> None:
    binder = Binder()
    server = Served(sessions=binder)
    server.start()
    try:
        for word, body in [("put", {"key": "aw=="}), ("range", {"key": "aw=="})]:
            data = json.dumps(body).encode()
            for _ in range(2):
                with Wire(server.door.port) as wire:
                    wire.send(post(f"/v3/kv/{word}", data, "Raftkv-Session: 1-2", "Raftkv-Seq: 1"))
                    assert wire.response()[0] == 200
        assert binder.seen[b"raftkv-session"] == b"1-2"
        assert binder.node.kv.revision == 3
        assert server.node.kv.revision == 1, "nothing was written past the session"
    finally:
        server.stop()


@pytest.mark.parametrize("line", ["Raftkv-Seq: 2", "raftkv-seq: 1", "Raftkv-Session: 9-f"])
def test_a_session_that_is_named_twice_is_refused(line: str) -> None:
    """Which one is meant? A proxy may read the other one."""
    binder = Binder()
    server = Served(sessions=binder)
    server.start()
    try:
        with Wire(server.door.port) as wire:
            lines = ("Raftkv-Session: 1-2", "Raftkv-Seq: 1", line)
            wire.send(post("/v3/kv/put", b'{"key":"aw=="}', *lines))
            status, _, body = wire.response()
        assert (status, json.loads(body)["code"]) == (400, 3)
        assert b"twice" in body
        assert binder.node.kv.revision == 1
    finally:
        server.stop()


def test_a_door_without_sessions_says_so(served: Served) -> None:
    with Wire(served.door.port) as wire:
        wire.send(post("/v3/kv/put", b'{"key":"aw=="}', "Raftkv-Session: 1-2"))
        status, _, body = wire.response()
    assert (status, json.loads(body)["code"]) == (400, 3)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"no-such"])
def test_a11_a_body_in_another_encoding_is_415(small: Served, encoding: bytes) -> None:
    for path in (b"/v3/kv/put", b"/v3/watch", b"/v1/toy/things/1", b"/v1/none"):
        with socket.create_connection(("127.0.0.1", small.door.port), timeout=10) as wire:
            head = b"POST %b HTTP/1.1\r\nhost: [::1]\r\ncontent-encoding: %b\r\n" % (path, encoding)
            wire.sendall(head + b"content-length: 2\r\n\r\n{}")
            answer = _until_closed(wire)
        assert answer.startswith(b"HTTP/1.1 415 "), path
        assert b"send it as it is" in answer


def test_a11_a_body_as_it_is_may_say_so(small: Served) -> None:
    connection = small.connect()
    connection.request("POST", "/v3/kv/put", put_of(200), {"content-encoding": "Identity"})
    assert connection.getresponse().status == 200


def test_d7_the_loggers_of_uvicorn_stay_with_the_program(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="uvicorn")
    server = Served()
    server.start()
    with socket.create_connection(("127.0.0.1", server.door.port), timeout=10) as wire:
        wire.sendall(b"no request at all\r\n\r\n")
        _until_closed(wire)
    server.stop()
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
