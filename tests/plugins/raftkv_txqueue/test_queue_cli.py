"""`raftkv queue ...` against three real nodes with doors."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raftkv.blocking import Client
from raftkv.cli import groups
from raftkv.errors import ConfigError
from raftkv_cluster_call import Calls
from raftkv_txqueue import TxQueue
from raftkv_txqueue.asked import bodies_of, header_pairs, txid_of, xid_of
from raftkv_txqueue.sheets import browsed_sheet, queue_words, status_words
from tests.plugins.raftkv_cluster_call.shell import Nodes, Shell

pytestmark = pytest.mark.slow

TIMEOUT_S = 30.0
VERBS = (
    "queue list", "queue status", "queue declare", "queue delete", "queue purge", "queue depth",
    "queue browse", "queue publish", "queue get", "queue end-session", "queue outcome",
    "queue setting",
    "dtx list", "dtx recover", "dtx commit", "dtx rollback", "dtx forget", "dtx outcome",
)  # fmt: skip


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    nodes = Nodes([Calls(), TxQueue()])
    yield nodes
    nodes.stop()


class Typed(Shell):
    """Commands of the plugin's groups: `queue("list")`, or `queue("list", group="dtx")`."""

    def __call__(
        self, *arguments: str, code: int = 0, at: str | None = None, connected: bool = True
    ) -> str:
        self._group, *rest = arguments
        return super().__call__(*rest, code=code, at=at, connected=connected)


@pytest.fixture
def shell(
    started: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Typed:
    """With the empty queues orders and dead."""
    typed = Typed(started, TxQueue, capsys, monkeypatch)
    for queue in ("orders", "dead"):
        typed("queue", "declare", queue)
        typed("queue", "purge", queue, "--yes")
    return typed


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def rows(table: str) -> dict[str, list[str]]:
    """Its lines by their first word."""
    return {line.split()[0]: line.split() for line in table.splitlines()[1:] if line}


# --- queues ---------------------------------------------------------------------------------------


def test_queues_are_declared_shown_and_deleted(shell: Typed) -> None:
    assert shell("queue", "declare", "new", "--depth-max", "2", "--dead-letter", "dead") == (
        "new: created\n"
    )
    assert shell("queue", "declare", "new") == "new: was so already\n"
    shell("queue", "declare", "new", "--depth-max", "1", code=1)
    assert "'new' has depth_max '2', not '1'" in shell.err
    assert "--change" in shell.err
    shell("queue", "declare", "other", "--dead-letter", "typo", code=1)
    assert "declare that queue first" in shell.err
    assert shell("queue", "declare", "new", "--depth-max", "1", "--change") == "new: changed\n"
    assert shell("queue", "declare", "new", "--depth-max", "1") == "new: was so already\n"
    shell("queue", "declare", "new", "--overflow", "explode", code=1)
    assert "the body is not what is asked for" in shell.err
    assert shell("queue", "publish", "new", "one").startswith("new: number ")
    shell("queue", "publish", "new", "two", code=1)
    assert "'new' may have 1 messages" in shell.err
    table = shell("queue", "list")
    assert table.splitlines()[0].split() == [
        "QUEUE", "DEPTH", "READY", "ACQUIRED", "BYTES", "RESERVED", "LIMIT", "OVERFLOW", "DEAD",
        "TO",
    ]  # fmt: skip
    assert rows(table)["new"] == ["new", "1", "1", "0", "67", "0", "1", "refuse", "dead"]
    assert shell("queue", "depth", "new") == "1\n"
    assert "1 message (67 bytes): 1 available, 0 acquired" in shell.err
    assert "at most 1 message, then refused" in shell.err
    shell("queue", "delete", "dead", "--yes", code=1)
    assert "'dead' is the dead_letter of 'new'" in shell.err
    assert "--change" in shell.err
    shell("queue", "delete", "new", "--if-empty", code=1)
    shell("queue", "delete", "new", code=2)
    assert "what goes of new: 1 message." in shell.err
    assert "add --yes" in shell.err
    assert shell("queue", "delete", "new", "--yes") == "new: deleted, with 1 message\n"
    shell("queue", "depth", "new", code=1)
    assert "there is no queue 'new': declare it first" in shell.err
    assert json.loads(shell("queue", "list", "--json", "--local"))["queues"]


def test_messages_are_published_looked_at_taken_and_purged(shell: Typed) -> None:
    first = json.loads(shell("queue", "publish", "orders", "a", "b", "--json"))["first"]
    assert shell("queue", "publish", "orders", "c", "--header", "kind=new", "--header", "n=1") == (
        f"orders: number {first + 2}\n"
    )
    table = [line.split() for line in shell("queue", "browse", "orders").splitlines()]
    assert table[0] == ["SEQ", "STATE", "DELIVERIES", "S", "AGO", "HEADERS", "BODY"]
    assert [(line[1], line[-1]) for line in table[1:]] == [("available", each) for each in "abc"]
    assert table[3][4:6] == ["kind=new", "n=1"]
    shell("queue", "browse", "orders", "--limit", "1", "--from", str(first + 1))
    assert shell.err == f"there are more: --from {first + 2}\n"
    assert shell("queue", "get", "orders") == "a\n"
    assert shell("queue", "get", "orders", "--then", "release") == "b\n"
    taken = shell("queue", "get", "orders", "--count", "9", "--json").splitlines()
    shown = [json.loads(line) for line in taken]
    assert [(each["seq"] - first, each["redelivered"]) for each in shown] == [(1, True), (2, False)]
    assert base64.b64decode(shown[1]["body"]) == b"c"
    assert shell("queue", "get", "orders", code=1) == ""
    assert shell.err == "error: nothing is available in orders\n"
    shell("queue", "get", "orders", "--then", "eat", code=2)
    shell("queue", "publish", "orders", "d")
    shell("queue", "purge", "orders", code=2)
    assert shell("queue", "purge", "orders", "--yes") == "orders: 1 message removed\n"
    # Every session that was opened for these is closed.
    assert shell.json("queue", "status")["sessions"] == 0


def test_messages_come_from_stdin_whole_or_by_lines(
    shell: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    given(b"\x00\xff\n")
    shell("queue", "publish", "orders")
    assert r"\x00\xff\n" in shell("queue", "browse", "orders")
    given(b"one\ntwo\n")
    assert "numbers" in shell("queue", "publish", "orders", "--lines")
    assert shell("queue", "get", "orders", "--count", "3").splitlines()[1:] == ["one", "two"]
    given(b"x")
    shell("queue", "publish", "orders", "-", "y", code=2)


def test_a_get_waits(shell: Typed, started: Nodes) -> None:
    began = time.monotonic()
    shell("queue", "get", "orders", "--wait", "0.3", "--timeout", "60", code=1)
    assert 0.3 <= time.monotonic() - began < 40


def test_times_and_the_return_to_the_back(shell: Typed) -> None:
    shell("queue", "publish", "orders", "late", "--delay", "3600", "--ttl", "60")
    shell("queue", "publish", "orders", "a", "--ttl", "3600")
    shell("queue", "publish", "orders", "b")
    found = shell.json("queue", "browse", "orders", "--all")["messages"]
    assert [each["state"] for each in found] == ["delayed", "available", "available"]
    assert found[0]["headers"] == [["x-raftkv-ttl-ms", "60000"], ["x-raftkv-delay-ms", "3600000"]]
    assert shell("queue", "depth", "orders") == "3\n"
    assert "2 available, 0 acquired, 1 delayed" in shell.err
    assert shell("queue", "get", "orders", "--then", "to_back") == "a\n"
    assert shell("queue", "get", "orders", "--count", "2") == "b\na\n"
    shell("queue", "publish", "orders", "x", "--ttl", str(40 * 86_400), code=1)
    assert "raise the setting ttl_max_ms" in shell.err
    shell("queue", "delete", "orders", "--yes")


def test_what_is_dead_goes_to_its_queue(shell: Typed) -> None:
    shell(
        "queue", "declare", "orders", "--deliveries-max", "1", "--dead-letter", "dead", "--change"
    )
    shell("queue", "publish", "orders", "bad")
    shell("queue", "get", "orders", "--then", "release")
    (found,) = shell.json("queue", "browse", "dead")["messages"]
    assert ["x-raftkv-died-in", "orders"] in found["headers"]
    assert "dead after 1 deliveries; dead ones go to dead" in (
        shell("queue", "depth", "orders") and shell.err
    )
    shell("queue", "declare", "orders", "--deliveries-max", "0", "--dead-letter", "", "--change")


def test_the_fate_of_a_transaction(shell: Typed, started: Nodes) -> None:
    with Client(started.endpoints) as client:
        at = started.endpoints[0]
        opened = client.call("POST", "/v1/txqueue/sessions", {"kind": "tx"}, at=at).body
        txid = opened["txid"]
        shell("queue", "outcome", txid, code=1)
        assert f"transaction {txid}: unknown" in shell.err
        place = f"/v1/txqueue/tx/{txid}"
        body = {"operations": [{"publish": "orders", "messages": [{"body": "eA=="}]}]}
        assert client.call("POST", f"{place}/commit", body, at=at).good
        assert shell("queue", "outcome", txid) == f"transaction {txid}: committed\n"
        body = {"operations": [{"publish": "nowhere", "messages": [{"body": "eA=="}]}]}
        following = txid.replace(".1", ".2")
        refused = client.call("POST", f"/v1/txqueue/tx/{following}/commit", body, at=at)
        assert refused.body["reason"] == "txqueue_transaction_aborted"
        shell("queue", "outcome", following, code=1)
        assert f"transaction {following}: rolled back (txqueue_unknown_queue: " in shell.err
        client.call("DELETE", f"/v1/txqueue/sessions/{opened['session']}", at=at)
    shell("queue", "outcome", "12", code=2)
    assert "say SESSION.COUNTER, like 12.7" in shell.err


def test_a_session_that_hangs_is_seen_and_ended(shell: Typed, started: Nodes) -> None:
    shell("queue", "publish", "orders", "x", "y")
    at = started.endpoints[1]
    with Client(started.endpoints) as client:
        handle = client.call("POST", "/v1/txqueue/sessions", {}, at=at).body["session"]
        place = f"/v1/txqueue/sessions/{handle}"
        assert client.call("POST", f"{place}/get", {"queue": "orders"}, at=at).good
        number = handle.partition("-")[0]
        table = shell("queue", "browse", "orders", "--all")
        assert table.split()[:9] == [
            "SEQ", "STATE", "DELIVERIES", "S", "AGO", "SESSION", "KIND", "NODE", "S",
        ]  # fmt: skip
        held = next(line.split() for line in table.splitlines() if "acquired" in line)
        assert held[4:6] == [number, "plain"]
        assert "SESSION" not in shell("queue", "browse", "orders")
        shown = shell.json("queue", "browse", "orders", "--all")["messages"]
        assert [each["holder"] and each["holder"]["session"] for each in shown] == [
            int(number), None,
        ]  # fmt: skip
        assert handle not in json.dumps(shown)
        shell("queue", "end-session", number, code=2)
        assert f"what ends: session {number}, with its open transaction." in shell.err
        said = shell("queue", "end-session", number, "--reason", "it hangs", "--yes")
        assert said == f"session {number}: ended; 1 message goes back\n"
        told = client.call("POST", f"{place}/get", {"queue": "orders"}, at=at)
        assert (told.body["reason"], told.body["cause"]) == ("txqueue_session_ended", "operator")
        assert "ended by an operator: it hangs" in told.body["error"]
    shell("queue", "end-session", number, "--yes", code=1)
    assert f"session {number} was ended by an operator" in shell.err
    shell("queue", "declare", "slow", "--ack-timeout-ms", "60000")
    shell("queue", "depth", "slow")
    assert "a session that holds one for 60000 ms is ended" in shell.err
    shell("queue", "declare", "slow", "--ack-timeout-ms", "5", "--change", code=1)
    assert "take 100 to 604800000 ms" in shell.err
    shell("queue", "delete", "slow", "--yes")


def test_b10_a_queue_bounds_the_time_to_live_of_its_messages(shell: Typed) -> None:
    assert shell("queue", "declare", "quotes", "--ttl-ms", "60000") == "quotes: created\n"
    shell("queue", "depth", "quotes")
    assert "no limit; dead after 60000 ms" in shell.err
    shell("queue", "declare", "quotes", "--ttl-ms", "1", code=1)
    assert "'quotes' has ttl_ms '60000', not '1'" in shell.err
    shell("queue", "declare", "quotes", "--ttl-ms", str(10**15), "--change", code=1)
    assert "take 1 to 2592000000 ms" in shell.err
    shell("queue", "delete", "quotes", "--yes")


def test_settings_are_shown_and_changed(shell: Typed) -> None:
    assert rows(shell("queue", "setting"))["queues_max"] == ["queues_max", "1000"]
    assert rows(shell("queue", "setting", "queues_max", "20"))["queues_max"][1] == "20"
    assert shell.json("queue", "setting", "queues_max") == {"queues_max": 20}
    shell("queue", "setting", "queues_max", "default")
    assert shell.json("queue", "setting", "queues_max") == {"queues_max": 1_000}
    shell("queue", "setting", "queues_max", "many", code=2)
    shell("queue", "setting", "queues_max", "0", code=1)
    shell("queue", "setting", "colour", code=2)


def test_the_status_in_words(shell: Typed) -> None:
    shell("queue", "publish", "orders", "x")
    said = shell("queue", "status", "--local").splitlines()
    assert said[0].startswith("2 queues, 1 message (")
    assert said[1] == "0 sessions; held: 0 messages"
    assert said[2].startswith("transactions: 0 active, 0 preparing, 0 prepared, ")


# --- branches -------------------------------------------------------------------------------------


@pytest.fixture
def prepared(shell: Typed, started: Nodes) -> Iterator[Callable[[str], str]]:
    """Prepare a branch that publishes to orders."""
    with Client(started.endpoints) as client:
        at = started.endpoints[1]

        def post(path: str, body: Any) -> Any:
            answer = client.call("POST", f"/v1/txqueue/{path}", body, at=at)
            assert answer.good, answer.body
            return answer.body

        def prepare(xid: str) -> str:
            number = post("sessions", {"kind": "dtx"})["session"]
            post(f"dtx/{xid}/start", {"session": number})
            message = {"publish": "orders", "messages": [{"body": "eA=="}]}
            post(f"dtx/{xid}/stage", {"session": number, "operations": [message]})
            post(f"dtx/{xid}/end", {"session": number})
            client.call("DELETE", f"/v1/txqueue/sessions/{number}", at=at)
            assert post(f"dtx/{xid}/prepare", {})["name"] == "OK"
            return xid

        yield prepare


def test_a_branch_in_doubt_is_decided_as_its_coordinator(
    shell: Typed, prepared: Callable[[str], str]
) -> None:
    xid = prepared("1:6162:01")
    table = shell("dtx", "recover")
    assert table.splitlines()[0].split()[:3] == ["XID", "STATE", "QUEUES"]
    assert rows(table)[xid][1:4] == ["prepared", "1", "1"]
    assert rows(table)[xid][5:7] == ["orders", "+1"]
    first, _, content = shell("dtx", "outcome", xid).partition("\n")
    assert first == f"{xid}: prepared"
    assert rows(content)["orders"] == ["orders", "1", "65", "0", "0", "-"]
    assert rows(shell("dtx", "outcome", xid, "--queue", "dead").partition("\n")[2]) == {}
    shell("dtx", "commit", xid, code=2)
    assert "commit as its coordinator" in shell.err
    shell("dtx", "forget", xid, code=1)
    assert shell("dtx", "commit", xid, "--yes") == f"{xid}: OK\n"
    assert shell("queue", "get", "orders") == "x\n"
    assert shell("dtx", "outcome", xid) == f"{xid}: committed by coordinator\n"
    shell("dtx", "commit", xid, "--yes", code=1)
    assert f"there is no branch {xid}" in shell.err
    assert shell("dtx", "list") == ""
    assert shell("dtx", "rollback", prepared(xid), "--yes") == f"{xid}: OK\n"
    shell("dtx", "outcome", "1:ff:", code=1)
    for verb in ("commit", "rollback"):
        shell("dtx", verb, "1:ff:", code=1)
        assert shell.err == "error: there is no branch 1:ff:: unknown\n"
    shell("dtx", "outcome", "nonsense", code=2)
    assert "write format:global:branch" in shell.err


def test_a_branch_in_doubt_is_decided_by_hand(shell: Typed, prepared: Callable[[str], str]) -> None:
    xid = prepared("1:6162:02")
    words = ("--heuristic", "--reason", "it is lost", "--yes")
    shell("dtx", "commit", xid, "--heuristic", "--one-phase", "--yes", code=2)
    assert shell("dtx", "rollback", xid, *words) == f"{xid}: OK\n"
    assert shell("dtx", "outcome", xid).startswith(f"{xid}: heuristically rolled back by operator")
    assert "it is lost" in shell("dtx", "outcome", xid)
    assert rows(shell("dtx", "recover"))[xid][1] == "heuristically"
    # The coordinator comes back, and hears of it.
    shell("dtx", "commit", xid, "--yes", code=1)
    assert f"{xid} was decided otherwise: HEURRB" in shell.err
    assert shell("dtx", "forget", xid) == f"{xid}: OK\n"
    assert json.loads(shell("dtx", "recover", "--json"))["branches"] == []


# --- how it behaves as a command ------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help_with_an_example(shell: Typed, verb: str) -> None:
    text = shell(*verb.split(), "--help", connected=False)
    assert f"raftkv {verb}" in text.split("Example")[1]


def test_nothing_heavy_is_imported_by_the_groups() -> None:
    """A node, and other commands, need none of it: `cli()` imports it when it is asked."""
    script = (
        "import sys, raftkv_txqueue.public\n"
        "assert not [name for name in sys.modules if name.startswith(('typer', 'raftkv.cli'))]\n"
        "assert not [name for name in sys.modules if name.startswith('raftkv.client')]\n"
        "groups = raftkv_txqueue.TxQueue().cli()\n"
        "assert sorted(groups) == ['dtx', 'queue'], groups\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_both_groups_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    class Point:
        name = "txqueue"

        def load(self) -> type[TxQueue]:
            return TxQueue

    monkeypatch.setattr(groups, "entry_points", lambda group, name=None: [Point()])
    app = typer.Typer()
    groups.add_plugin_groups(app)
    assert sorted(str(each.name) for each in app.registered_groups) == ["dtx", "queue"]


def test_what_is_typed_is_read() -> None:
    assert bodies_of(["a", "b"], lines=False) == [b"a", b"b"]
    assert bodies_of([], lines=False, stdin=io.BytesIO(b"a\nb\n")) == [b"a\nb\n"]
    assert bodies_of(["-"], lines=True, stdin=io.BytesIO(b"a\n\nb")) == [b"a", b"", b"b"]
    assert bodies_of(["\udcff"], lines=False) == [b"\xff"]
    with pytest.raises(ConfigError, match="--lines"):
        bodies_of(["a"], lines=True)
    assert header_pairs(["a=b=c", "d="]) == [("a", "b=c"), ("d", "")]
    for bad in ("a", "=b"):
        with pytest.raises(ConfigError):
            header_pairs([bad])
    assert xid_of("1:AB:") == "1:ab:"
    assert txid_of("1.2") == "1.2"


def test_tables_and_words() -> None:
    long = {"seq": 1, "state": "available", "deliveries": 0, "at_ms": 500, "headers": [],
            "body": base64.b64encode(b"x" * 100).decode()}  # fmt: skip
    (cells,) = browsed_sheet([long], 1_500).rows
    assert (cells[3], len(cells[5])) == ("1.0", 60)
    queue = {"depth": 2, "bytes": 9, "ready": 1, "acquired": 1, "next_seq": 8, "reserved": 3,
             "transactions": 1, "dropped": 4, "dead": 5, "depth_max": 7, "bytes_max": 80,
             "overflow": "drop_oldest", "deliveries_max": 0, "dead_letter": "",
             "ack_timeout_ms": 0, "ttl_ms": 0}  # fmt: skip
    assert queue_words(queue) == [
        "2 messages (9 bytes): 1 available, 1 acquired; the next is number 8",
        "room for 3 more is promised to prepared transactions",
        "with content of it: 1 undecided transaction",
        "ever dropped 4, dead 5",
        "at most 7 messages and 80 bytes, then the oldest go",
    ]
    totals = dict.fromkeys(
        ("queues", "messages", "ready", "bytes", "active", "preparing", "failed", "heuristic"), 0
    )
    status = {
        "totals": {**totals, "prepared": 1, "prepared_age_ms": 90_000, "unfolding": 2},
        "sessions": 0,
        "acquired": 0,
        "participants": ["n1", "n2"],
    }
    assert status_words(status)[3:] == [
        "the oldest prepared one is 90 s old: see `raftkv dtx recover`",
        "2 decided ones are still being moved",
        "participants: n1, n2",
    ]
