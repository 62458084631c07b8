"""Which hosts and origins the HTTP API takes: on the usual way, on the short way, and by the rules.

The requests are those of a browser that shows a hostile page: a form's POST across sites, and a
request under a host name that its owner lets point to the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raftkv.client.failures import error_of
from raftkv.config import HttpTls, NodeConfig
from raftkv.errors import ConfigError
from raftkv.security.authority import issue
from raftkv.security.identity import CertificateIdentity
from raftkv.server.admission import Admission
from raftkv.server.tls import DoorTls, names_in
from tests.server.conftest import Served, b64
from tests.server.test_tls import NOW, Pki
from tests.server.wire import Wire

PUT = json.dumps({"key": b64(b"k"), "value": b64(b"v")}).encode()
EVIL = "http://evil.example"


@pytest.fixture(scope="module")
def named() -> Iterator[Served]:
    admission = Admission(
        ["core1.internal"],
        host_whitelist=["kv.example.com", "*.pods.example.com"],
        cors=["https://Console.Example:443", "http://127.0.0.1:8080"],
    )
    server = Served(admission=admission)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[Served]:
    server = Served(admission=Admission(host_whitelist=["*"], cors=["*"]))
    server.start()
    yield server
    server.stop()


def request(
    line: str, body: bytes = b"", *headers: str, version: str = "1.1", host: str | None = "[::1]"
) -> bytes:
    lines = [f"{line} HTTP/{version}"]
    if host is not None:
        lines.append(f"host: {host}")
    lines += [f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def answer(server: Served, data: bytes) -> tuple[int, Mapping[str, str], Any]:
    with Wire(server.door.port) as wire:
        wire.send(data)
        status, headers, body = wire.response()
        return status, headers, json.loads(body) if body else None


def turned_away(server: Served) -> dict[str, float]:
    return {
        each.labels["limit"]: each.value
        for each in server.door.metrics()
        if each.name == "refused" and each.labels["limit"] in ("host_whitelist", "cors")
    }


# What a hostile page can send ---------------------------------------------------------------------


def test_a_form_of_another_site_changes_nothing(served: Served) -> None:
    form = request("POST /v3/kv/put", PUT, f"origin: {EVIL}", "content-type: text/plain")
    before, revision = turned_away(served), served.node.kv.revision
    status, _, body = answer(served, form)
    assert (status, body["reason"], body["code"]) == (403, "unknown_origin", 7)
    assert "cors" in body["detail"]
    assert EVIL in body["detail"]
    assert served.node.kv.revision == revision
    assert turned_away(served) == {**before, "cors": before["cors"] + 1}


@pytest.mark.parametrize(
    "line",
    [
        "POST /v3/kv/range",
        "POST /v3/kv/put",
        "POST /v3/watch",
        "POST /v3beta/kv/put",
        "GET /v1/status",
        "GET /metrics",
        "GET /health",
        "DELETE /v1/members/core9",
        "OPTIONS /v3/kv/put",
        "GET /nowhere",
    ],
)
def test_a_name_that_is_not_the_nodes_gets_nothing(served: Served, line: str) -> None:
    body = PUT if line.startswith("POST") else b""
    before, revision = turned_away(served), served.node.kv.revision
    status, headers, found = answer(served, request(line, body, host="evil.example:2379"))
    assert (status, found["reason"]) == (421, "unknown_host")
    assert "host_whitelist" in found["detail"]
    assert "evil.example" in found["detail"]
    assert headers["connection"] == "close"
    assert served.node.kv.revision == revision
    assert turned_away(served)["host_whitelist"] == before["host_whitelist"] + 1


def test_a_head_is_refused_alike_on_the_short_way(served: Served) -> None:
    """The same head again is what hot.py knows by its bytes."""
    hosted = request("POST /v3/kv/put", PUT, host="evil.example")
    paged = request("POST /v3/kv/put", PUT, f"origin: {EVIL}")
    taught, known = request("POST /v3/kv/put", PUT), len(served.door._state.heads._known)
    for data, status in [(hosted, 421), (paged, 403)] * 3:
        assert answer(served, data)[0] == status
    assert len(served.door._state.heads._known) == known
    with Wire(served.door.port) as wire:
        for _ in range(3):
            wire.send(taught)
            assert wire.response()[0] == 200
        # On the same connection, behind requests of the short way.
        wire.send(hosted)
        assert wire.response()[0] == 421
        assert wire.closed()
    assert served.node.kv.revision == 1 + 3


def test_one_behind_another_in_one_piece_is_refused(served: Served) -> None:
    with Wire(served.door.port) as wire:
        good = request("POST /v3/kv/put", PUT)
        wire.send(good + good + request("POST /v3/kv/put", PUT, host="evil.example"))
        assert [wire.response()[0] for _ in range(3)] == [200, 200, 421]
    assert served.node.kv.revision == 1 + 2


def test_a_large_body_is_not_waited_for(served: Served) -> None:
    with Wire(served.door.port) as wire:
        wire.send(
            b"POST /v3/kv/put HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 999999\r\n\r\n"
        )
        assert wire.response()[0] == 421


# Which hosts are known ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:2379",
        "10.1.2.3:2379",
        "[::1]",
        "[::1]:2379",
        "[fe80::1]:1",
        "localhost",
        "LOCALHOST:2379",
        "localhost.",
        "core1.internal",
        "Core1.Internal.:2379",
        "kv.example.com:443",
        "a.pods.example.com",
        "",
    ],
)
def test_known_hosts(named: Served, host: str) -> None:
    for version in ("1.1", "1.0"):
        assert answer(named, request("GET /version", host=host, version=version))[0] == 200


def test_a_request_without_a_host_comes_from_no_browser(named: Served) -> None:
    assert answer(named, request("GET /version", host=None, version="1.0"))[0] == 200
    # HTTP/1.1 requires one.
    assert answer(named, request("GET /version", host=None, version="1.1"))[0] == 400


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "core1.internal.evil.example",
        "xkv.example.com",
        "sub.kv.example.com",
        "a.b.pods.example.com",
        "pods.example.com",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0x7f000001",
        "2130706433",
        "127.1",
    ],
)
def test_unknown_hosts(named: Served, host: str) -> None:
    for version in ("1.1", "1.0"):
        status, _, body = answer(named, request("GET /version", host=host, version=version))
        assert (status, body["reason"]) == (421, "unknown_host")


@pytest.mark.parametrize(
    "host",
    ["[::1", "::1", "[evil.example]", "a b", "user@localhost", "localhost:x", "localhost:1:2",
     "*.pods.example.com", "localhost..", "-", "localhost/evil", "h\xe4st", "x" * 254],
)  # fmt: skip
def test_what_is_no_host_is_malformed(named: Served, host: str) -> None:
    status, _, body = answer(named, request("GET /version", host=host))
    assert (status, body["reason"]) == (400, "bad_request")


def test_two_hosts_are_malformed_even_if_equal(named: Served) -> None:
    for second in ("[::1]", "evil.example"):
        status, _, body = answer(named, request("GET /version", b"", f"host: {second}"))
        assert status == 400
        assert "more than one Host" in body["error"]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://127.0.0.1:2379/version", 200),
        ("http://kv.example.com/version?x", 200),
        ("http://evil.example/version", 421),
        ("HTTP://evil.example:2379/version", 421),
        ("http://localhost@evil.example/version", 421),
        ("//evil.example/version", 404),  # a path, by its form
    ],
)
def test_the_target_names_a_host_too(named: Served, target: str, status: int) -> None:
    assert answer(named, request(f"GET {target}"))[0] == status
    # And the header is judged all the same.
    assert answer(named, request(f"GET {target}", host="evil.example"))[0] == 421


def test_a_star_takes_every_host_and_origin(open_to_all: Served) -> None:
    open_to_all.renew()
    data = request("POST /v3/kv/put", PUT, f"origin: {EVIL}", host="evil.example")
    status, headers, _ = answer(open_to_all, data)
    assert (status, headers["access-control-allow-origin"]) == (200, "*")


# Origins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin", ["https://console.example", "HTTPS://console.example", "http://127.0.0.1:8080"]
)
def test_a_named_origin_is_served_and_may_read(named: Served, origin: str) -> None:
    named.renew()
    status, headers, _ = answer(named, request("POST /v3/kv/put", PUT, f"origin: {origin}"))
    assert status == 200
    assert headers["access-control-allow-origin"] == origin
    assert headers["vary"] == "origin"


@pytest.mark.parametrize(
    "origin",
    ["http://console.example", "https://console.example:8443", "https://console.example.evil",
     "http://127.0.0.1", "null", "", "https://console.example/x", "console.example", "*"],
)  # fmt: skip
def test_other_origins_are_refused(named: Served, origin: str) -> None:
    status, headers, _ = answer(named, request("POST /v3/kv/put", PUT, f"origin: {origin}"))
    assert status == 403
    assert "access-control-allow-origin" not in headers


def test_two_origins_are_refused_unless_both_are_named(named: Served) -> None:
    both = ("origin: https://console.example", f"origin: {EVIL}")
    assert answer(named, request("POST /v3/kv/put", PUT, *both))[0] == 403
    assert answer(named, request("POST /v3/kv/put", PUT, *reversed(both)))[0] == 403


def test_a_browsers_question_beforehand_is_answered_for_named_origins_only(named: Served) -> None:
    asked = "access-control-request-method: POST"
    options = request("OPTIONS /v3/kv/put", b"", "origin: https://console.example", asked)
    status, headers, _ = answer(named, options)
    assert status == 200
    assert "POST" in headers["access-control-allow-methods"]
    assert "content-type" in headers["access-control-allow-headers"]
    assert answer(named, request("OPTIONS /v3/kv/put", b"", f"origin: {EVIL}", asked))[0] == 403
    assert answer(named, request("OPTIONS /v3/kv/put", b"", asked))[0] == 405


def test_what_names_no_origin_is_not_touched(named: Served) -> None:
    named.renew()
    status, headers, _ = answer(named, request("POST /v3/kv/put", PUT, "sec-fetch-site: same-site"))
    assert status == 200
    assert "access-control-allow-origin" not in headers
    assert "vary" not in headers


# Certificates, settings, clients ------------------------------------------------------------------


def write_certificate(pki: Pki, name: str, *hosts: str) -> tuple[str, str]:
    identity = CertificateIdentity(pki.name, name, False)
    return pki.write(name, issue(pki.authority, identity, list(hosts), now=NOW, days=30))


def known(admission: Admission, host: bytes) -> bool:
    return admission.judge({"headers": [(b"host", host)], "http_version": "1.1"}) is None


def test_the_certificates_names_are_known_and_follow_it(tmp_path: Path) -> None:
    pki = Pki(tmp_path, "names")
    certificate, key = write_certificate(pki, "a", "a.example")
    tls = DoorTls(HttpTls(certificate=certificate, key=key))
    server = Served(tls=tls)
    server.start()
    try:
        admission, heads = server.app.admission, server.door._state.heads
        assert known(admission, b"A.Example:1")
        assert not known(admission, b"b.example")
        head = b"POST /v3/kv/put HTTP/1.1\r\ncontent-length: 5\r\n\r\n"
        heads.learn(head, b"POST", b"/v3/kv/put", [(b"content-length", b"5")])
        write_certificate(pki, "a", "b.example")
        server.run(server.door.reload_certificates())
        assert known(admission, b"b.example")
        assert not known(admission, b"a.example")
        assert heads.get(head) is None, "it was taken by the names of the former certificate"
    finally:
        server.stop()


def test_a_wildcard_of_a_certificate_stands_for_one_label() -> None:
    admission = Admission()
    admission.certified = frozenset(("*.svc.example",))
    found = [known(admission, host) for host in (b"x.svc.example", b"x.y.svc.example")]
    assert found == [True, False]


def test_a_file_that_is_no_certificate_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x00")
    assert names_in(str(tmp_path / "x")) == names_in(str(tmp_path / "missing")) == frozenset()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("host_whitelist", "http://a.example"),
        ("host_whitelist", "a.example:2379"),
        ("host_whitelist", "a.*.example"),
        ("host_whitelist", ""),
        ("cors", "a.example"),
        ("cors", "https://a.example/"),
        ("cors", "null"),
    ],
)
def test_a_setting_that_means_nothing_is_an_error(setting: str, value: str) -> None:
    settings: dict[str, Any] = {setting: (value,)}
    address = "127.0.0.1:1"
    with pytest.raises(ConfigError, match=setting):
        NodeConfig(name="a", dir="d", peer_address=address, cores={"a": address}, **settings)


def test_a_client_that_is_turned_away_learns_the_setting(served: Served) -> None:
    status, _, body = answer(served, request("GET /version", host="evil.example"))
    error = error_of("http://evil.example", status, json.dumps(body).encode())
    assert isinstance(error, ConfigError)
    assert "host_whitelist" in str(error)
