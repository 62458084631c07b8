"""`raftkv member`: what it asks, what it prints, and where it goes when a node does not answer."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from raftkv.cli.door_client import DoorClient
from raftkv.errors import Timeout
from tests.cli.test_main import one_line_error, raftkv

ROW = {
    "name": "core1",
    "standing": "voter",
    "leads": True,
    "raft_id": "core1-aa",
    "peer_address": "h:1",
    "http_address": "h:2",
    "up": True,
    "connected": True,
    "incarnation": 3,
    "match_index": 70,
    "lag_entries": 0,
    "pending": None,
}
COPY = {**ROW, "name": "core2", "standing": "copy", "leads": False, "up": False, "connected": False}
LISTING = {"leader": "core1", "told_by": "core1", "epoch": "0", "members": [ROW, COPY]}


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers verbs with what the test has put into `script`, and lists with LISTING."""

    script: ClassVar[list[tuple[int, Any]]] = []
    asked: ClassVar[list[tuple[str, Any]]] = []

    leader: ClassVar[str | None] = "core1"
    stale: ClassVar[list[Any]] = []  # what is listed first, once a verb has been asked for

    def do_GET(self) -> None:
        listing = self.stale.pop(0) if self.asked and self.stale else LISTING
        self._answer(200, {**listing, "leader": self.leader})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, body))
        self._answer(*self.script.pop(0))

    def _answer(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Scripted.script, Scripted.asked, Scripted.stale = [], [], []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_list_is_a_table_or_a_document(endpoint: str) -> None:
    lines = raftkv("member", "list", "--endpoint", endpoint).stdout.decode().splitlines()
    assert lines[0].split()[:2] == ["NODE", "STANDING"]
    assert lines[1].split() == "core1 leader core1-aa h:1 h:2 yes 3 70 0".split()
    assert lines[2].split()[:2] == ["core2", "copy"]
    assert json.loads(raftkv("member", "list", "--endpoint", endpoint, "--json").stdout) == LISTING


def test_the_list_shows_what_is_pending(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = {**ROW, "name": "core3", "leads": False, "pending": "removed"}
    comes = {**COPY, "pending": "voter"}
    monkeypatch.setitem(LISTING, "members", [ROW, comes, leaves])
    lines = raftkv("member", "list", "--endpoint", endpoint).stdout.decode().splitlines()
    assert "copy, promotion pending" in lines[2]
    assert "voter, removal pending" in lines[3]


def test_a_voter_whose_http_address_is_unknown_is_a_row_with_the_remedy(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a core without a quorum that has applied nothing since its start lists the members."""
    unknown = {**ROW, "http_address": None, "incarnation": None}
    monkeypatch.setitem(LISTING, "members", [unknown])
    for command in (("health",), ("endpoint", "status")):
        done = raftkv(*command, "--cluster", "--endpoint", endpoint)
        assert done.returncode == 3
        said = (done.stdout + done.stderr).decode()
        assert "core1" in said
        assert "its HTTP address is unknown" in said
        assert "name it with --endpoint" in said


def test_a_change_that_is_pending_is_no_success(endpoint: str) -> None:
    answer = (504, {"error": "entry 7 is not committed", "reason": "change_pending"})
    Scripted.script = [answer] * 20
    done = raftkv("member", "remove", "core2", "--endpoint", endpoint, "--timeout", "0.5")
    assert "entry 7 is not committed" in one_line_error(done, 3)


def test_a_verb_is_repeated_until_a_node_can_take_it(endpoint: str) -> None:
    Scripted.script = [
        (503, {"error": "none", "reason": "no_leader"}),
        (504, {"error": "late", "reason": "timeout"}),
        (200, {"name": "core2"}),
    ]
    nobody = ("--endpoint", "http://127.0.0.1:1")
    done = raftkv("member", "add", "core2", "--address", "h:3", *nobody, "--endpoint", endpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"core2 votes; the voter is core1\n"
    assert b"core2 is a copy and connects" in done.stderr
    assert len(Scripted.asked) == 3
    path, body = Scripted.asked[0]
    assert (path, body["name"], body["address"]) == ("/v1/members/add", "core2", "h:3")


@pytest.mark.parametrize("status", [408, 502, 503, 504])
def test_a_proxys_word_does_not_let_a_write_be_repeated(endpoint: str, status: int) -> None:
    """Some say 503 when the connection behind them broke: the write may have been applied."""
    Scripted.script = [(status, {"error": "reset before headers"}), (200, {})]
    with pytest.raises(Timeout, match="reset before headers"):
        DoorClient([endpoint]).put(b"k", b"v")
    assert len(Scripted.asked) == 1


def test_a_node_without_a_leader_is_not_asked(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scripted, "leader", None)
    done = raftkv("member", "remove", "core2", "--endpoint", endpoint, "--timeout", "0.5")
    assert "does not reach the leader" in one_line_error(done, 3)
    assert not Scripted.asked


def test_a_refusal_is_one_line_and_code_1(endpoint: str) -> None:
    Scripted.script = [(409, {"error": "too few can be heard", "reason": "membership_refused"})]
    done = raftkv("member", "remove", "core2", "--endpoint", endpoint)
    assert "too few can be heard" in one_line_error(done, 1)
    assert Scripted.asked[0][1]["force"] is False


def test_a_forced_removal_says_so_and_prints_the_rest(endpoint: str) -> None:
    Scripted.script = [(200, {"name": "core3"})]
    done = raftkv("member", "remove", "core3", "--force", "--endpoint", endpoint, "--json")
    document = json.loads(done.stdout)
    assert (document["verb"], document["name"]) == ("remove", "core3")
    assert document["members"] == LISTING["members"]
    assert Scripted.asked[0][1]["force"] is True


def test_what_is_printed_after_a_change_is_what_the_leader_knows(endpoint: str) -> None:
    """The removed core itself may answer first, and still take itself for a voter."""
    removed = {**ROW, "name": "core3", "leads": False}
    Scripted.stale = [{**LISTING, "told_by": "core3", "members": [ROW, COPY, removed]}]
    Scripted.script = [(200, {"name": "core3"})]
    done = raftkv("member", "remove", "core3", "--endpoint", endpoint, "--json")
    assert json.loads(done.stdout)["members"] == LISTING["members"]
    assert not Scripted.stale


@pytest.mark.parametrize(
    "arguments",
    [
        ("member", "list"),
        ("member", "add"),
        ("member", "add", "core4"),
        ("member", "promote", "x", "--dir", "d", "--endpoint", "http://127.0.0.1:1"),
        ("recover", "--dir", "does-not-exist"),
    ],
)
def test_wrong_arguments_are_code_2(arguments: tuple[str, ...]) -> None:
    assert raftkv(*arguments).returncode == 2


@pytest.mark.parametrize("command", ["member add", "member remove", "member list", "recover"])
def test_help_has_an_example(command: str) -> None:
    done = raftkv(*command.split(), "--help")
    assert done.returncode == 0
    assert b"Example" in done.stdout


def test_nobody_to_ask_is_code_3() -> None:
    at = ("--endpoint", "http://127.0.0.1:1", "--timeout", "0.3")
    assert "cannot be reached" in one_line_error(raftkv("member", "remove", "x", *at), 3)


@pytest.mark.parametrize(
    ("status", "document"),
    [
        (404, {"error": "there is no /v1/members/forget here", "reason": "not_found"}),
        (421, {"error": "the host is not known", "reason": "unknown_host"}),
    ],
)
def test_a_node_that_does_not_serve_the_verb_is_passed_over(
    endpoint: str, status: int, document: Any
) -> None:
    Scripted.script = [(status, document), (200, {"name": "pod"})]
    other = endpoint.replace("127.0.0.1", "localhost")  # one that is named twice is asked once
    done = raftkv("member", "forget", "pod", "--endpoint", endpoint, "--endpoint", other)
    assert done.returncode == 0, done.stderr
    # Where no node serves it, the answer is one line, at once.
    Scripted.script = [(status, document)]
    said = one_line_error(raftkv("member", "forget", "pod", "--endpoint", endpoint), 1)
    assert document["error"] in said


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "; the voter is core1"),
        (2, "; the voters are core1, core2. 2 voters do not survive the loss of one, and neither"),
        (3, "; the voters are core1, core2, core3"),
        (4, "core4. 4 voters survive the loss of 1, and so do 3"),
        (6, "core6. 6 voters survive the loss of 2, and so do 5"),
    ],
)
def test_what_an_even_number_of_voters_survives_is_said_by_numbers(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, count: int, words: str
) -> None:
    rows = [{**ROW, "name": f"core{number + 1}", "leads": number == 0} for number in range(count)]
    monkeypatch.setitem(LISTING, "members", rows)
    Scripted.script = [(200, {"name": "core9"})]
    said = raftkv("member", "remove", "core9", "--endpoint", endpoint).stdout.decode()
    assert said.startswith("core9 is no core any more")
    assert words in said
    assert ("survive" in said) == (count % 2 == 0)
