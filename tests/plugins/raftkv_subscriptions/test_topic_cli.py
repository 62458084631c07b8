"""`raftkv topic ...`, `raftkv sub ...` and `raftkv region ...` against three real nodes with doors.

One region without others; `raftkv region up` and what goes between regions: test_region_cli.py.
"""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli import groups
from raftkv.cli import main as cli
from raftkv.errors import ConfigError, NotApplied
from raftkv_cluster_call import Calls
from raftkv_subscriptions import Subscriptions, cli_regions
from raftkv_subscriptions.asked import bodies_of, headers_of, place_of, seconds_of, value_of
from raftkv_subscriptions.settings import SETTINGS
from raftkv_subscriptions.sheets import (
    lag_sheet,
    messages_sheet,
    regions_sheet,
    status_words,
    sub_words,
    topic_words,
)
from tests.plugins.raftkv_cluster_call.shell import Nodes, Shell

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent.parent
VERBS = (
    "topic list", "topic status", "topic declare", "topic delete", "topic publish", "topic read",
    "topic setting",
    "sub list", "sub create", "sub delete", "sub status", "sub replicate", "sub seek", "sub ack",
    "sub consume",
    "region list", "region status", "region add", "region exclude", "region include",
    "region remove", "region name", "region mode", "region up", "region down",
)  # fmt: skip


@pytest.fixture(scope="module")
def started() -> Iterator[Nodes]:
    nodes = Nodes([Calls(), Subscriptions()])
    yield nodes
    nodes.stop()


class Typed(Shell):
    """Commands of the plugin's groups: `shell("topic", "list")`."""

    def __call__(
        self, *arguments: str, code: int = 0, at: str | None = None, connected: bool = True
    ) -> str:
        self._group, *rest = arguments
        return super().__call__(*rest, code=code, at=at, connected=connected)


@pytest.fixture
def shell(
    started: Nodes,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Typed:
    return Typed(started, Subscriptions, capsys, monkeypatch)


@pytest.fixture
def topic(shell: Typed, request: pytest.FixtureRequest) -> str:
    """An empty topic of the test's own."""
    name = request.node.name[:40]
    assert shell("topic", "declare", name) == f"{name}: created\n"
    return name


def rows(table: str) -> dict[str, list[str]]:
    """Its lines by their first word."""
    return {line.split()[0]: line.split() for line in table.splitlines()[1:] if line}


# --- topics ---------------------------------------------------------------------------------------


def test_topics_are_declared_shown_and_deleted(shell: Typed, topic: str) -> None:
    shell("topic", "declare", topic, "--retention-s", "60", code=1)
    assert "has retention_ms 0, not 60000" in shell.err
    changed = shell("topic", "declare", topic, "--retention-s", "60", "--change")
    assert changed == f"{topic}: changed\n"
    assert shell("topic", "declare", topic) == f"{topic}: was so already\n"
    assert shell("topic", "declare", topic, "--retention-s", "60") == f"{topic}: was so already\n"
    shell("topic", "declare", topic, "--compacted", code=1)
    assert "cannot change whether it is compacted" in shell.err
    table = shell("topic", "list")
    assert table.splitlines()[0].split() == [
        "TOPIC", "REPLICATED", "MESSAGES", "BYTES", "FIRST", "NEXT", "SUBS", "HAS",
    ]  # fmt: skip
    assert rows(table)[topic] == [topic, "yes", "0", "0", "1", "1", "0", "-"]
    shell("topic", "publish", topic, "one", "two")
    assert shell("topic", "status", topic).splitlines() == [
        "2 messages (134 bytes), positions 1 to 2",
        "has, by region: local:2",
        "kept for 60 s",
    ]
    shell("topic", "delete", topic, code=2)
    assert f"what goes of {topic}: 2 messages, 0 subscriptions." in shell.err
    assert "add --yes" in shell.err
    assert shell("topic", "delete", topic, "--yes") == f"{topic}: deleted, with 2 messages\n"
    shell("topic", "status", topic, code=1)
    assert f"there is no topic '{topic}': declare it first" in shell.err
    assert "topics" in shell.json("topic", "list", "--local")


def test_messages_are_published_and_read(shell: Typed, topic: str) -> None:
    assert shell("topic", "publish", topic, "a") == f"{topic}: position 1 (local:1)\n"
    done = shell(
        "topic", "publish", topic, "b", "c", "--header", "n=1", "--message-key", "k",
    )  # fmt: skip
    assert done == f"{topic}: positions 2 to 3 (local:2 to local:3)\n"
    table = [line.split() for line in shell("topic", "read", topic).splitlines()]
    assert table[0] == ["POSITION", "ORIGIN", "SEQ", "S", "AGO", "KEY", "HEADERS", "BODY"]
    assert [(line[0], line[1], line[2], line[-1]) for line in table[1:]] == [
        ("1", "local", "1", "a"), ("2", "local", "2", "b"), ("3", "local", "3", "c"),
    ]  # fmt: skip
    assert table[2][4:6] == ["k", "n=1"]
    shell("topic", "read", topic, "--limit", "1", "--from", "2")
    assert shell.err == "there are more: --from 3\n"
    found = shell.json("topic", "read", topic, "--from", "3", "--wait", "0.5")
    assert base64.b64decode(found["messages"][0]["body"]) == b"c"
    assert shell("topic", "read", topic, "--from", "4", "--wait", "0.2") == ""
    shell("topic", "publish", topic, "x" * 300_000, code=1)
    assert "the setting message_bytes_max" in shell.err


def test_messages_come_from_stdin_whole_or_by_lines(
    shell: Typed, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    given(b"one\ntwo\n")
    shell("topic", "publish", topic)
    given(b"three\n\nfive")
    shell("topic", "publish", topic, "--lines")
    found = shell.json("topic", "read", topic)["messages"]
    bodies = [base64.b64decode(each["body"]) for each in found]
    assert bodies == [b"one\ntwo\n", b"three", b"", b"five"]


def test_a_compacted_topic_is_read_by_key(shell: Typed) -> None:
    shell("topic", "declare", "prices", "--compacted")
    for key, body in (("a", "1"), ("b", "2"), ("a", "3")):
        shell("topic", "publish", "prices", body, "--message-key", key)
    found = shell.json("topic", "read", "prices", "--compacted")["messages"]
    assert [each["key"] for each in found] == ["b", "a"]
    assert "compacted: 2 keys" in shell("topic", "status", "prices")


# --- subscriptions --------------------------------------------------------------------------------


def test_subscriptions_are_made_shown_and_deleted(shell: Typed, topic: str) -> None:
    shell("topic", "publish", topic, "a", "b", "c")
    made = shell("sub", "create", topic, "billing", "--initial", "earliest", "--replicate")
    assert made == "billing: created; goes on after position 0\n"
    assert shell("sub", "create", topic, "billing") == (
        "billing: was there; goes on after position 0\n"
    )
    shell("sub", "create", topic, "audit", "--kind", "shared")
    assert rows(shell("sub", "list", topic)) == {
        "audit": ["audit", "shared", "no", "3", "0", "0"],
        "billing": ["billing", "exclusive", "yes", "0", "3", "0"],
    }
    shell("sub", "ack", topic, "billing", "3")
    assert shell("sub", "status", topic, "billing").splitlines() == [
        "exclusive, replicated",
        "done up to position 0, 2 messages to go",
        "acknowledged: local:3",
    ]
    assert shell("sub", "replicate", topic, "billing", "--off") == (
        "billing: is of this region only\n"
    )
    shell("sub", "ack", topic, "billing", "--to", "2", code=2)
    assert "never deliver: what is left up to position 2; 2 messages to go in all." in shell.err
    assert shell("sub", "ack", topic, "billing", "--to", "2", "--yes") == (
        "billing: 2 messages acknowledged; done up to position 3\n"
    )
    for wrong in (("billing",), ("billing", "1", "--to", "2", "--yes")):
        shell("sub", "ack", topic, *wrong, code=2)
    shell("sub", "delete", topic, "billing", code=2)
    assert "what goes of billing: a backlog of 0 messages." in shell.err
    assert shell("sub", "delete", topic, "billing", "--yes") == "billing: deleted\n"
    shell("sub", "status", topic, "billing", code=1)
    assert "has no subscription 'billing': subscribe first" in shell.err


def test_a_subscription_is_sought(shell: Typed, topic: str) -> None:
    shell("topic", "publish", topic, "a", "b", "c")
    shell("sub", "create", topic, "s")
    for where, mark in (("1", 1), ("latest", 3), ("earliest", 0)):
        assert shell("sub", "seek", topic, "s", where) == f"s: goes on after position {mark}\n"
    assert shell("sub", "seek", topic, "s", "--ago", "0") == "s: goes on after position 3\n"
    assert shell("sub", "seek", topic, "s", "--ago", "3600") == "s: goes on after position 0\n"
    for wrong in ((), ("1", "--ago", "5"), ("middle",)):
        shell("sub", "seek", topic, "s", *wrong, code=2)


def test_messages_are_consumed_and_printed_before_they_are_acknowledged(
    shell: Typed, topic: str
) -> None:
    shell("topic", "publish", topic, *(f"m{number}" for number in range(5)))
    consume = ("sub", "consume", topic, "s")
    assert shell(*consume, "--initial", "earliest") == "m0\n"
    assert shell(*consume, "--count", "2", "--then", "leave") == "m1\nm2\n"
    taken = shell(*consume, "--count", "9", "--wait", "0.2", "--json").splitlines()
    assert [base64.b64decode(json.loads(line)["body"]) for line in taken] == [
        b"m1", b"m2", b"m3", b"m4",
    ]  # fmt: skip
    assert shell(*consume, code=1) == ""
    assert shell.err == "error: nothing to receive in s\n"
    shell(*consume, "--then", "eat", code=2)
    shell(*consume, "--kind", "everybody", code=1)
    # Every consumer that was opened for these is closed.
    assert shell.json("sub", "status", topic, "s")["consumers"] == []
    shell("sub", "consume", "nowhere", "s", code=1)


def test_the_kind_is_said_once(shell: Typed, topic: str) -> None:
    """Consuming by hand takes the subscription as it is."""
    shell("topic", "publish", topic, "a", "b")
    shell("sub", "create", topic, "s", "--kind", "shared", "--initial", "earliest")
    assert shell("sub", "consume", topic, "s", "--count", "2") == "a\nb\n"
    assert rows(shell("sub", "list", topic))["s"][1] == "shared"


# --- regions, settings ----------------------------------------------------------------------------


def test_regions_are_added_excluded_and_removed(shell: Typed) -> None:
    assert shell("region", "add", "us") == "us: added\n"
    assert shell("region", "add", "us") == "us: was so already\n"
    assert shell("region", "add", "us", "--no-fetches") == "us: changed\n"
    table = rows(shell("region", "list"))
    assert table["local"][:2] == ["local", "own"]
    assert table["us"][:3] == ["us", "active", "none"]
    words = shell("region", "status")
    assert words.startswith("region local, mode vector\n")
    assert "warning: us: the leader has no link to it" in words
    shell("region", "exclude", "us", code=2)
    assert "us may miss what retention removes meanwhile." in shell.err
    assert shell("region", "exclude", "us", "--yes") == "us: excluded\n"
    assert shell("region", "include", "us") == "us: included\n"
    for words in ((), ("--yes",)):
        shell("region", "remove", "us", *words, code=1)
        assert "exclude it first" in shell.err
        assert "will be forgotten" not in shell.err
    shell("region", "exclude", "us", "--yes")
    assert shell("region", "remove", "us", "--yes") == "us: removed\n"
    for verb in ("include", "exclude", "remove"):
        shell("region", verb, "us", code=1)
        assert shell.err == "error: us is not known: add it first\n"
    shell("region", "exclude", "us", "--yes", code=1)
    assert shell("region", "name", "local") == "this is local\n"


def test_settings_and_the_mode(shell: Typed) -> None:
    assert shell("topic", "setting", "ranges_max", "50").split() == [
        "SETTING", "VALUE", "ranges_max", "50",
    ]  # fmt: skip
    assert shell.json("topic", "setting", "ranges_max", "default") == {"ranges_max": 10_000}
    assert shell.json("topic", "setting", "enabled", "false") == {"enabled": False}
    assert "replication of subscriptions is off" in shell("region", "status")
    shell("topic", "setting", "enabled", "true")
    assert shell("region", "mode") == "vector\n"
    assert shell("region", "mode", "snapshot") == "snapshot\n"
    assert "snapshots 0, timed out 0" in shell("region", "status")
    assert shell("topic", "setting", "mode", "vector").split()[-1] == "vector"
    shell("region", "mode", "both", code=2)
    assert shell.err == "error: both is no mode: say one of vector, snapshot\n"
    shell("topic", "setting", "nope", code=2)
    shell("topic", "setting", "period_ms", "1", code=1)
    assert len(shell("topic", "setting").splitlines()) == 15


# --- around it ------------------------------------------------------------------------------------


def test_without_the_plugins_the_words_are_not_there(
    shell: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "entry_points", lambda group, name=None: [])
    # Another test of this process may have added the groups of what is installed.
    core = [one for one in cli.app.registered_groups if one.name not in ("topic", "sub", "region")]
    monkeypatch.setattr(cli.app, "registered_groups", core)
    shell("topic", "list", code=2)
    assert "No such command" in shell.err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(shell: Typed, verb: str) -> None:
    shown = shell(*verb.split(), "--help", connected=False)
    assert re.search(rf"raftkv {verb}\b", shown)


@pytest.mark.parametrize(
    "words",
    [
        ("sub", "seek", "t", "s", "--ago", "nan"),
        ("sub", "seek", "t", "s", "--ago", "inf"),
        ("sub", "consume", "t", "s", "--wait", "nan"),
        ("topic", "read", "t", "--wait", "nan"),
        ("topic", "declare", "t", "--retention-s", "inf"),
    ],
)
def test_what_is_no_time_is_told(shell: Typed, words: tuple[str, ...]) -> None:
    shell(*words, code=2)
    assert f"{words[-2]} is {words[-1]}: say a number of seconds" in shell.err


def test_the_examples_of_settings_may_be_set(shell: Typed) -> None:
    shown = shell("topic", "setting", "--help", connected=False)
    found = re.findall(r"raftkv topic setting (\w+) (\w+)", shown)
    assert found
    known = {each.key: each for each in SETTINGS}
    for key, text in found:
        value, setting = value_of(key, text), known[key]
        assert value is None or setting.check is None or setting.check(value) is None, key


def test_the_groups_have_these_verbs() -> None:
    made = Subscriptions().cli()
    found = {
        f"{name} {command.name or command.callback.__name__}"
        for name, app in made.items()
        for command in app.registered_commands
        if command.callback is not None
    }
    assert found == set(VERBS)
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for name, app in made.items():
        (line,) = re.findall(rf"^\| `{name} (.*?)\|", page, re.M)
        listed = set(re.findall(r"[a-z]+", line))
        assert listed == {
            command.name or command.callback.__name__  # type: ignore[union-attr]
            for command in app.registered_commands
        }


def test_a_reader_that_goes_away_is_no_defect(shell: Typed, topic: str) -> None:
    shell("topic", "publish", topic, *(f"m{number}" for number in range(200)))
    endpoints = ",".join(shell._nodes.endpoints)
    code = (
        "import sys; from raftkv.cli import groups, main; "
        "from tests.plugins.raftkv_cluster_call.shell import Entry; "
        "from raftkv_subscriptions import Subscriptions; "
        "groups.entry_points = lambda group, name=None: [Entry(Subscriptions)]; main.main()"
    )
    words = ["topic", "read", topic, "--endpoint", endpoints]
    done = subprocess.run(
        f"{sys.executable} -c '{code}' {' '.join(words)} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.startswith("POSITION")
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr


def test_regions_that_do_not_answer_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_regions, "LINKS_S", 0.1)
    nowhere = ["http://127.0.0.1:1"]
    monkeypatch.setattr(cli_regions, "Ask", lambda at: _Silent())
    late = cli_regions._not_linked({"a": nowhere, "b": nowhere})
    assert late == ["from a to the others", "from b to the others"]
    assert "a region does not answer: it is down" in capsys.readouterr().err


class _Silent:
    def __call__(self, method: str, path: str) -> None:
        raise NotApplied("it is down")


# --- words ----------------------------------------------------------------------------------------


def test_what_people_type_is_read() -> None:
    assert bodies_of(["a", "\udcff"], lines=False) == [b"a", b"\xff"]
    stdin = io.BytesIO(b"x\ny")
    assert bodies_of(["-"], lines=True, stdin=stdin) == [b"x", b"y"]
    assert headers_of(["a=b=c"]) == [("a", "b=c")]
    assert (place_of("17"), place_of("latest")) == (17, "latest")
    assert [value_of("x", each) for each in ("default", "true", "12", "vector")] == [
        None, True, 12, "vector",
    ]  # fmt: skip
    for wrong in (
        lambda: bodies_of(["a", "-"], lines=False),
        lambda: bodies_of(["a"], lines=True),
        lambda: headers_of(["=x"]),
        lambda: headers_of(["x"]),
        lambda: place_of("-1"),
        lambda: place_of("9" * 30),
        lambda: value_of("x", "1.5"),
        lambda: seconds_of("--wait", float("nan")),
        lambda: seconds_of("--ago", float("inf")),
    ):
        with pytest.raises(ConfigError):
            wrong()


TOPIC: dict[str, Any] = {
    "messages": 1, "bytes": 65, "first": 2, "next": 3, "vector": {"eu": 2}, "holes": [["us", 1, 4]],
    "holes_count": 1, "compacted": False, "keys": 0, "retention_ms": 0, "retention_bytes": 1000,
    "backlog_bytes": 90,
    "backlog_bytes_max": 2000, "replicated": False, "snapshot_age_ms": 1500, "pending": {"id": 7},
}  # fmt: skip


def test_a_topic_in_words() -> None:
    assert topic_words(TOPIC) == [
        "1 message (65 bytes), positions 2 to 2",
        "has, by region: eu:2",
        "never came here, for it was removed before: us:1-4",
        "kept for 1000 bytes; backlog 90 bytes, beyond 2000 publications are refused",
        "of this region only: links do not carry it",
        "last snapshot 1.5 s ago",
        "a snapshot is being made",
    ]
    empty = {**TOPIC, "messages": 0, "first": 3, "vector": {}, "holes": []}
    assert topic_words(empty)[:2] == [
        "0 messages (65 bytes); the next position is 3",
        "has, by region: nothing yet",
    ]


def test_long_bodies_and_many_ranges_are_cut() -> None:
    body = base64.b64encode(b"x" * 500).decode()
    row = {"position": 1, "origin": "eu", "seq": 1, "at_ms": 500, "key": "", "headers": []}
    sheet = messages_sheet([{**row, "body": body}], 2000)
    assert sheet.rows[0][3] == "1.5"
    assert sheet.rows[0][-1] == "x" * 57 + "..."
    found = {
        "kind": "shared", "replicate": False, "mark": 3, "backlog": 1, "base": {"eu": 1},
        "ranges": [["eu", n, n] for n in range(2, 40, 2)], "ranges_count": 5000, "locked": 2,
        "advancing": True,
    }  # fmt: skip
    assert sub_words(found) == [
        "shared, of this region only",
        "done up to position 3, 1 message to go",
        "began after: eu:1",
        "acknowledged: eu:2 eu:4 eu:6 eu:8 eu:10 eu:12 eu:14 eu:16 and 4992 more",
        "in the hands of consumers: 2 messages",
        "its mark is still being moved",
    ]


def test_regions_in_words() -> None:
    link = {
        "state": "connecting", "endpoint": "http://x", "last_contact_ms": 1234, "last_error": "no",
        "lag": [["t", "us", 3], ["u", "us", 4]],
    }  # fmt: skip
    regions = [
        {"name": "eu", "own": True, "link": None, "behind": [], "state": "active"},
        {"name": "us", "own": False, "state": "active", "fetches": True, "link": link,
         "behind": [["t", 5]]},
        {"name": "ap", "own": False, "state": "excluded", "fetches": False, "link": None,
         "behind": []},
    ]  # fmt: skip
    assert regions_sheet(regions).rows == [
        ("eu", "own", "", "", "", "", "", ""),
        ("us", "active", "connecting", "http://x", "1.2", "7", "5", "no"),
        ("ap", "excluded", "?", "", "", "", "", ""),
    ]
    assert lag_sheet(regions).rows == [
        ("t", "us", "us", "3", ""), ("u", "us", "us", "4", ""), ("t", "us", "", "", "5"),
    ]  # fmt: skip
    status = {
        "region": "eu", "mode": "snapshot", "enabled": False, "topics": 1, "consumers": 2,
        "published": 3, "delivered": 4, "snapshots": 5, "timed_out": 6, "updates": 7,
        "cache_hits": 8, "cache_misses": 9, "warnings": ["us: no"],
    }  # fmt: skip
    assert status_words(status) == [
        "region eu, mode snapshot; replication of subscriptions is off",
        "1 topic, 2 consumers; published 3, delivered by links 4",
        "snapshots 5, timed out 6, updates 7, cache hits 8, misses 9",
        "warning: us: no",
    ]
