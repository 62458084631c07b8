"""`raftkv lcr ...` against two real nodes with doors, whose broker lives in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import msgspec
import pytest

from raftkv.cli import groups
from raftkv.cli import main as cli
from raftkv.plugin import Plugin
from raftkv.server import Door, door_of
from raftkv.testing.local_cluster import LocalCluster, free_ports
from raftkv_lcr import LCR
from raftkv_lcr.testing import MemoryBroker

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
T = TypeVar("T")

# What a path, a query or a table could trip over.
ODD_IDS = ("a/b", "..", "%2F", "a b?c=d&e#f", "ümlaut/→", "line\nbreak", "[bold]x[/]")


class Entry:
    """What an installed plugin announces."""

    name = "lcr"

    def load(self) -> type[Plugin[Any]]:
        return LCR


class Nodes:
    """One core and one replicant, on a loop of their own in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._cluster = LocalCluster(1, 1, plugins=[LCR()])
        self._doors: list[Door] = []
        self.brokers: list[MemoryBroker] = []
        self.endpoints: list[str] = []
        self.call(self._start())

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    async def _start(self) -> None:
        configs = self._cluster.configs
        for (name, config), port in zip(list(configs.items()), free_ports(2), strict=True):
            configs[name] = msgspec.structs.replace(config, http_address=f"127.0.0.1:{port}")
        await self._cluster.__aenter__()
        for node in self._cluster.nodes:
            broker = MemoryBroker(node.name)
            broker.attach(node.plugin(LCR))
            self.brokers.append(broker)
            door = door_of(node)
            await door.start()
            self._doors.append(door)
            self.endpoints.append(door.endpoint)

    async def _stop(self) -> None:
        for door in self._doors:
            await door.stop()
        await self._cluster.close()

    def stop(self) -> None:
        self.call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connect(self, place: int, client_id: str, channel: str = "1") -> None:
        opened = self.call(self.brokers[place].connect(client_id, channel))
        assert opened.outcome == "ok", opened

    def leave(self, place: int, client_id: str, channel: str = "1") -> None:
        self.call(self.brokers[place].disconnect(client_id, channel))

    def closed_for(self, place: int, client_id: str, channel: str = "1") -> str | None:
        return self.brokers[place].sessions[(client_id, channel)].closed_for


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    started = Nodes()
    yield started
    started.stop()


class Shell:
    """Commands in this process; stderr of the last one is `err`."""

    def __init__(
        self,
        nodes: Nodes,
        capsys: pytest.CaptureFixture[str],
        patch: pytest.MonkeyPatch,
    ) -> None:
        self._endpoints = ",".join(nodes.endpoints)
        self._capsys = capsys
        self._patch = patch
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0, connected: bool = True) -> str:
        place = ["--endpoint", self._endpoints] if connected else []
        self._patch.setattr(sys, "argv", ["raftkv", "lcr", *arguments, *place])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        self.err = said.err
        assert (ended.value.code or 0) == code, said.err
        assert "Traceback" not in said.err
        return said.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def lcr(nodes: Nodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(groups, "entry_points", lambda group, name=None: [Entry()])
    # A group that another test added already must not be there twice.
    monkeypatch.setattr(cli.app, "registered_groups", list(cli.app.registered_groups))
    return Shell(nodes, capsys, monkeypatch)


@pytest.fixture
def enabled(lcr: Shell) -> Shell:
    """The cluster in mode enabled."""
    lcr("mode", "enabled")
    return lcr


def test_the_mode_is_switched_in_steps_and_shown(lcr: Shell, nodes: Nodes) -> None:
    lcr("mode", "disabled")
    assert lcr.json("mode")["mode"] == "disabled"
    nodes.connect(0, "before")
    lcr("mode", "enabled")
    assert "all nodes have entered their channels" in lcr.err or "waiting for" in lcr.err
    found = lcr.json("mode")
    assert (found["mode"], found["effective"], found["old_nodes"]) == ("enabled", "enabled", [])
    assert [(each["name"], each["up"], each["adopted"]) for each in found["nodes"]] == [
        ("core1", True, True),
        ("replicant1", True, True),
    ]
    assert lcr.json("lookup", "before")["node"] == "core1"
    assert "NODE" in lcr("mode")
    assert "mode enabled since log index" in lcr.err
    nodes.leave(0, "before")


def test_a_word_that_is_no_mode_is_wrong_usage(lcr: Shell) -> None:
    lcr("mode", "on", code=2)
    assert "'on' is no mode: say one of disabled, migration, dual, enabled" in lcr.err


def test_lookup_shows_the_channel_or_says_that_there_is_none(enabled: Shell, nodes: Nodes) -> None:
    nodes.connect(1, "one")
    table = enabled("lookup", "one")
    assert table.split()[:6] == ["CLIENT", "CHANNEL", "NODE", "INCARNATION", "VERSION", "TICKET"]
    assert table.splitlines()[1].split()[:3] == ["one", "1", "replicant1"]
    assert enabled.json("lookup", "one", "--local")["node"] == "replicant1"
    nodes.leave(1, "one")
    assert enabled("lookup", "one", code=1) == ""
    assert "the client 'one' has no channel" in enabled.err
    assert enabled.err.count("\n") == 1
    enabled("lookup", "", code=2)
    assert "name a client id" in enabled.err


@pytest.mark.parametrize("client_id", ODD_IDS)
def test_a_client_id_may_hold_any_letters(enabled: Shell, nodes: Nodes, client_id: str) -> None:
    nodes.connect(0, client_id)
    assert enabled.json("lookup", client_id)["client_id"] == client_id
    (listed,) = enabled.json("list", "--from", client_id, "--limit", "1")["channels"]
    assert listed["client_id"] == client_id
    assert len(enabled("list").splitlines()) == 2
    assert enabled.json("kick", client_id) == {"client_id": client_id, "kicked": True}
    assert nodes.closed_for(0, client_id) == "kicked by an operator"
    enabled("lookup", client_id, code=1)


def test_list_goes_through_all_pages(
    enabled: Shell, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftkv_lcr.cli.PAGE_MAX", 2)
    for number in range(5):
        nodes.connect(number % 2, f"p{number}")
    whole = enabled.json("list", "--limit", "0")
    assert [row["client_id"] for row in whole["channels"]] == [f"p{n}" for n in range(5)]
    assert (whole["next"], whole["total"]) == (None, 5)
    some = enabled.json("list", "--from", "p1", "--limit", "3")
    assert [row["client_id"] for row in some["channels"]] == ["p1", "p2", "p3"]
    assert some["next"] == "p4"
    own = enabled.json("list", "--node", "replicant1")
    assert [row["client_id"] for row in own["channels"]] == ["p1", "p3"]
    assert len(enabled("list").splitlines()) == 6
    assert enabled.err == "5 shown; clients with a row: 5\n"
    for number in range(5):
        nodes.leave(number % 2, f"p{number}")


def test_kick_reaches_the_session_on_another_node(enabled: Shell, nodes: Nodes) -> None:
    # The endpoint that is asked first is the core's.
    nodes.connect(1, "elsewhere")
    assert enabled("kick", "elsewhere", "--reason", "bye") == "elsewhere: kicked\n"
    assert nodes.closed_for(1, "elsewhere") == "bye"
    enabled("kick", "elsewhere", code=1)
    assert "has no channel" in enabled.err
    enabled("kick", "elsewhere", "--reason", "x" * 1025, code=1)
    assert "say it in 1024" in enabled.err


def test_discard_ends_the_session(enabled: Shell, nodes: Nodes) -> None:
    nodes.connect(0, "gone")
    assert enabled("discard", "gone") == "gone: discarded\n"
    assert nodes.closed_for(0, "gone") == "discarded"
    enabled("discard", "gone", code=1)


def test_stats_have_a_column_for_each_node(enabled: Shell, nodes: Nodes) -> None:
    found = enabled.json("stats")
    assert [each["endpoint"] for each in found] == nodes.endpoints
    assert all(each["stats"]["clients"] == 0 for each in found)
    assert enabled("stats").splitlines()[0].split() == ["FIGURE", *nodes.endpoints]
    sweep = enabled.json("stats", "--sweep")
    assert all(each["stats"]["interval_s"] == 600 for each in sweep)
    enabled("stats", "--endpoint", "http://127.0.0.1:1", code=3)
    assert "cannot be reached" in enabled.err


def test_history_says_that_none_is_kept(enabled: Shell) -> None:
    enabled("history", "whoever", code=1)
    assert "history_ms is 0" in enabled.err


def test_nobody_answers(enabled: Shell) -> None:
    nowhere = ("--endpoint", "http://127.0.0.1:1", "--timeout", "0.1")
    for words in (("lookup", "x"), ("list",), ("kick", "x"), ("mode",), ("mode", "dual")):
        enabled(*words, *nowhere, code=3, connected=False)
        assert "cannot be reached" in enabled.err


def test_a_node_does_not_import_the_commands() -> None:
    check = (
        "import sys, raftkv_lcr.public; "
        "print([m for m in sys.modules if m.split('.')[0] == 'typer'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_help_has_examples(lcr: Shell) -> None:
    for verb in ("lookup", "list", "kick", "discard", "mode", "stats", "history"):
        assert f"raftkv lcr {verb}" in lcr(verb, "--help", connected=False)


def test_settings_are_shown_and_changed(lcr: Shell) -> None:
    assert "claim_ms" in lcr("setting")
    assert "20000" in lcr("setting", "claim_ms", "20000")
    assert "20000" in lcr("setting", "claim_ms")
    assert '"refuse"' in lcr("setting", "policy", "refuse", "--json")
    lcr("setting", "claim_ms", "1", code=1)
    lcr("setting", "nosuch", code=2)
    for key in ("claim_ms", "policy"):
        lcr("setting", key, "default")
    assert "30000" in lcr("setting", "claim_ms")
