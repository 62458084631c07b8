"""The owner's process is killed: with pending transactions, and while many submit through its door.

Whole processes, each with its own directory and door (limbo_node.py). What was said through a door
is the test's own account of what may not be lost: nothing that was confirmed to a caller ever is,
what was pending is pending as it was, and no node has another verdict than the others.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv_limbo.errors import RolledBack
from raftkv_limbo.refusals import ForeignOwner, InterferingPromote, StaleOwner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
NODE = Path(__file__).with_name("limbo_node.py")
DEADLINE_S = 60.0
# How long a node that does not answer holds the others up, at most.
NODE_DOWN_MS = 3_000
WRITERS = 16
# What the owner confirms before it is killed under load.
LOAD_MIN = 200


class Doors:
    """Requests to single nodes: (status, answer); status 0: the connection broke."""

    def __init__(self, dev: DevCluster) -> None:
        self._dev = dev

    def ask(self, at: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        address = urllib.parse.urlsplit(self._dev.endpoint(at))
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=2 * DEADLINE_S
        )
        try:
            connection.request(method, f"/v1/limbo/{path}", json.dumps(body) if body else None)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def done(self, at: str, method: str, path: str, body: Any = None) -> Any:
        """The answer of a request that must succeed."""
        status, answer = self.ask(at, method, path, body)
        assert status in (200, 202), (at, path, status, answer)
        return answer

    def submit(self, at: str, key: str, wait: str = "complete") -> tuple[int, Any]:
        write = {"space": "sync", "key": text(key), "value": text(f"of {key}")}
        body = {"writes": [write], "wait": wait, "timeout_s": DEADLINE_S}
        return self.ask(at, "POST", "submit", body)

    def promote(self, at: str, rest: str = "wait") -> Any:
        body = {"node": at, "rest": rest, "timeout_s": DEADLINE_S}
        return self.done(at, "POST", "promote", body)

    def verdict(self, at: str, position: int) -> str:
        return str(self.done(at, "GET", f"verdicts/{position}?consistency=local")["fate"])

    def rows(self, at: str) -> dict[str, int]:
        """key -> the position that wrote it, of confirmed rows, as the node's own copy has them."""
        found: dict[str, int] = {}
        start: str | None = ""
        while start is not None:
            body = {"space": "sync", "start": start, "limit": 1_000}
            answer = self.done(at, "POST", "range", body)
            for row in answer["rows"]:
                key = base64.b64decode(row["key"]).decode()
                assert base64.b64decode(row["value"]).decode() == f"of {key}"
                found[key] = row["position"]
            start = answer["next"]
        return found

    def queue(self, at: str) -> list[int]:
        """The positions that are pending, as the node's own copy has them."""
        answer = self.done(at, "GET", "queue?consistency=local&limit=1000")
        return [entry["position"] for entry in answer["entries"]]

    def status(self, at: str) -> Any:
        return self.done(at, "GET", "status?consistency=local")


def text(plain: str) -> str:
    return base64.b64encode(plain.encode()).decode("ascii")


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'plugins'}")
    made = DevCluster(tmp_path / "limbo", command=[sys.executable, str(NODE)])
    made.create(cores=3, replicants=0, plugins=[])
    for name in made.names:
        with open(made.config_path(name), "a", encoding="utf-8") as file:
            file.write(f"\n[raft]\nnode_down_ms = {NODE_DOWN_MS}\n")
    made.up(timeout_s=DEADLINE_S)
    yield made
    made.down()


@pytest.fixture
def doors(dev: DevCluster) -> Doors:
    made = Doors(dev)
    made.done("core1", "POST", "spaces", {"name": "sync", "sync": True})
    return made


def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


def gate(dev: DevCluster, name: str) -> Path:
    """The file that keeps this node's validator from approving anything."""
    return Path(dev.config_path(name)).with_name("closed")


def verdicts_heard(dev: DevCluster) -> dict[int, set[str]]:
    """position -> what the callbacks of all nodes, in all lives, called its verdict."""
    heard: dict[int, set[str]] = {}
    for name in dev.names:
        lines: set[str] = set()
        for line in (
            Path(dev.config_path(name)).with_name("verdicts").read_text("ascii").split("\n")
        ):
            if line:
                assert line not in lines, f"{name} heard of it twice in one life: {line}"
                lines.add(line)
                _, position, verdict = line.split()
                heard.setdefault(int(position), set()).add(verdict)
    return heard


def agree(dev: DevCluster, doors: Doors) -> None:
    """All nodes are equally far, with the same rows and verdicts, and nobody heard otherwise."""
    until(
        lambda: (
            len({doors.status(name)["last"] for name in dev.names}) == 1
            and all(doors.status(name)["head"] == 0 for name in dev.names)
        ),
        "all have the same, and nothing is pending",
    )
    rows = [doors.rows(name) for name in dev.names]
    assert rows[0] == rows[1] == rows[2]
    runs = [doors.done(name, "GET", "verdicts?consistency=local&limit=1000") for name in dev.names]
    assert runs[0]["verdicts"] == runs[1]["verdicts"] == runs[2]["verdicts"]
    for position, verdicts in verdicts_heard(dev).items():
        assert len(verdicts) == 1, f"{position} is {verdicts}"
        fate = doors.verdict("core1", position)
        assert fate == ("confirmed" if verdicts == {"confirmed"} else "rolled back")


class Behind:
    """A submission that is on its way in a thread of its own."""

    def __init__(self, doors: Doors, at: str, key: str) -> None:
        self.answer: tuple[int, Any] = (-1, {})
        self._thread = threading.Thread(target=self._run, args=(doors, at, key))
        self._thread.start()

    def _run(self, doors: Doors, at: str, key: str) -> None:
        self.answer = doors.submit(at, key)

    def ended(self) -> tuple[int, Any]:
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive(), "the caller has not come back"
        return self.answer


def a_queue(dev: DevCluster, doors: Doors, owner: str) -> Behind:
    """Position 1 is confirmed to its caller; 2 and 3 are in the queue, for 3 a caller waits."""
    doors.done("core1", "PUT", "quorum", {"validators": {"gate": 3}})
    doors.promote(owner)
    status, first = doors.submit(owner, "first")
    assert (status, first["state"], first["position"]) == (200, "confirmed", 1)
    other = next(name for name in dev.names if name != owner)
    gate(dev, other).touch()
    status, second = doors.submit(owner, "second", wait="submit")
    assert (status, second["state"], second["position"]) == (202, "pending", 2)
    waiting = Behind(doors, owner, "third")
    until(lambda: all(doors.queue(name) == [2, 3] for name in dev.names), "both are in the queue")
    return waiting


def is_as_it_was(dev: DevCluster, doors: Doors, names: list[str]) -> None:
    until(lambda: all(doors.queue(name) == [2, 3] for name in names), "both are pending")
    for name in names:
        assert doors.rows(name) == {"first": 1}
        assert [doors.verdict(name, p) for p in (1, 2, 3)] == ["confirmed", "pending", "pending"]


@pytest.mark.parametrize("owner_leads", [False, True], ids=["follower", "leader"])
@pytest.mark.parametrize("rest", ["wait", "roll back"])
def test_the_owner_is_killed_and_another_is_promoted(
    dev: DevCluster, doors: Doors, owner_leads: bool, rest: str
) -> None:
    leader = dev.leader()
    owner = leader if owner_leads else next(name for name in dev.names if name != leader)
    others = [name for name in dev.names if name != owner]
    waiting = a_queue(dev, doors, owner)
    dev.kill_node(owner)
    assert waiting.ended()[0] == 0
    until(lambda: dev.leader() != owner, "another one leads")
    is_as_it_was(dev, doors, others)
    new = others[1]
    # It is not the owner before it was promoted, and says who is.
    status, refused = doors.submit(new, "early")
    assert (status, refused["reason"], refused["owner"]) == (409, ForeignOwner.code, owner)
    if rest == "wait":
        # The dead one has no say any more: two of those that live must do.
        for name in dev.names:
            gate(dev, name).unlink(missing_ok=True)
        doors.done(new, "PUT", "quorum", {"validators": {"gate": 2}})
    promoted = doors.promote(new, rest)
    assert (promoted["term"], promoted["rolled_back"]) == (2, 0 if rest == "wait" else 2)
    for name in dev.names:
        gate(dev, name).unlink(missing_ok=True)
    doors.done(new, "PUT", "quorum", {"validators": {"gate": 2}})
    status, done = doors.submit(new, "after")
    assert (status, done["state"], done["position"], done["term"]) == (200, "confirmed", 4, 2)
    dev.start_node(owner)
    dev.wait_writable([owner], timeout_s=DEADLINE_S)
    status, refused = doors.submit(owner, "late")
    assert (status, refused["reason"]) == (409, ForeignOwner.code)
    assert (refused["owner"], refused["term"]) == (new, 2)
    agree(dev, doors)
    left = {"second": 2, "third": 3} if rest == "wait" else {}
    assert doors.rows(owner) == {"first": 1, **left, "after": 4}
    # Back as the owner: a term of its own.
    assert doors.promote(owner)["term"] == 3
    assert doors.submit(owner, "back")[1]["term"] == 3
    agree(dev, doors)


@pytest.mark.parametrize("who_dies", ["the owner", "all"])
def test_the_owner_comes_back_before_anybody_else_is_promoted(
    dev: DevCluster, doors: Doors, who_dies: str
) -> None:
    """Its queue is there as it was, and it does not own it until it is promoted anew."""
    owner = next(name for name in dev.names if name != dev.leader())
    waiting = a_queue(dev, doors, owner)
    for name in dev.names if who_dies == "all" else [owner]:
        dev.kill_node(name)
    assert waiting.ended()[0] == 0
    dev.up(timeout_s=DEADLINE_S)
    is_as_it_was(dev, doors, list(dev.names))
    status, refused = doors.submit(owner, "stale")
    assert (status, refused["reason"], refused["term"]) == (409, StaleOwner.code, 1)
    found = doors.status(owner)
    assert (found["owner"], found["mine"], found["live"]) == (owner, False, False)
    for name in dev.names:
        gate(dev, name).unlink(missing_ok=True)
    promoted = doors.promote(owner)
    assert (promoted["term"], promoted["rolled_back"]) == (2, 0)
    assert doors.submit(owner, "anew")[1]["position"] == 4
    agree(dev, doors)
    assert doors.rows(owner) == {"first": 1, "second": 2, "third": 3, "anew": 4}


@pytest.mark.parametrize("rest", ["wait", "roll back"])
def test_the_owner_is_held_until_another_was_promoted(
    dev: DevCluster, doors: Doors, rest: str
) -> None:
    """Its process goes on where it was, and has not heard of anything that happened meanwhile."""
    owner = next(name for name in dev.names if name != dev.leader())
    new = dev.leader()
    waiting = a_queue(dev, doors, owner)
    dev.kill_node(owner, signal.SIGSTOP)
    # What it has approved counts until it is declared dead.
    until(lambda: not doors.status(new)["live"], "the owner counts as dead")
    doors.done(new, "PUT", "quorum", {"validators": {"gate": 2}})
    if rest == "wait":
        for name in dev.names:
            gate(dev, name).unlink(missing_ok=True)
    promoted = doors.promote(new, rest)
    for name in dev.names:
        gate(dev, name).unlink(missing_ok=True)
    assert (promoted["term"], promoted["rolled_back"]) == (2, 0 if rest == "wait" else 2)
    assert doors.submit(new, "first")[1]["position"] == 4
    dev.kill_node(owner, signal.SIGCONT)
    status, refused = doors.submit(owner, "late")
    assert (status, refused["reason"], refused["owner"]) == (409, ForeignOwner.code, new)
    # Who waited there all the time is told the verdict that the others gave.
    status, told = waiting.ended()
    if rest == "wait":
        assert (status, told["state"], told["position"]) == (200, "confirmed", 3)
    else:
        assert (status, told["reason"], told["position"]) == (409, RolledBack.code, 3)
        assert told["by"] == new
    agree(dev, doors)
    left = {"second": 2, "third": 3} if rest == "wait" else {}
    assert doors.rows(owner) == {"first": 4, **left}


class Load:
    """Writers that go on through one node's door until it does not answer any more."""

    def __init__(self, doors: Doors, at: str) -> None:
        #: key -> its position, of what was confirmed to the caller.
        self.confirmed: dict[str, int] = {}
        #: Keys of which the caller heard nothing, or that nothing is decided.
        self.unknown: set[str] = set()
        self._doors = doors
        self._at = at
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _write(self, writer: int) -> None:
        number = 0
        while True:
            key = f"{writer}/{number}"
            number += 1
            self.unknown.add(key)
            status, answer = self._doors.submit(self._at, key)
            if status != 200:
                return
            self.unknown.discard(key)
            self.confirmed[key] = answer["position"]

    def ended(self) -> None:
        for thread in self._threads:
            thread.join(2 * DEADLINE_S)
            assert not thread.is_alive(), "a caller has not come back"


@pytest.mark.parametrize("quorum", ["N / 2 + 1", "N"])
def test_the_owner_is_killed_under_load(dev: DevCluster, doors: Doors, quorum: str) -> None:
    """Nothing that was confirmed to a caller is lost; of the rest every node thinks the same."""
    owner = dev.leader()
    others = [name for name in dev.names if name != owner]
    doors.done("core1", "PUT", "quorum", {"quorum": quorum})
    doors.promote(owner)
    load = Load(doors, owner)
    until(lambda: len(load.confirmed) >= LOAD_MIN, "the load is on")
    dev.kill_node(owner)
    load.ended()
    assert len(load.unknown) <= WRITERS
    # Both want it at once.
    answers: dict[str, tuple[int, Any]] = {}

    def promote(name: str) -> None:
        body = {"node": name, "rest": "roll back", "timeout_s": DEADLINE_S}
        answers[name] = doors.ask(name, "POST", "promote", body)

    promoting = [threading.Thread(target=promote, args=(name,)) for name in others]
    for thread in promoting:
        thread.start()
    for thread in promoting:
        thread.join(2 * DEADLINE_S)
    winners = [name for name in others if answers[name][0] == 200]
    assert winners, answers
    for name in others:
        if name not in winners:
            assert answers[name][1]["reason"] == InterferingPromote.code, answers
    new = max(winners, key=lambda name: answers[name][1]["term"])
    doors.done(new, "PUT", "quorum", {"quorum": "2"})
    status, done = doors.submit(new, "after")
    assert (status, done["state"]) == (200, "confirmed")
    dev.start_node(owner)
    dev.wait_writable([owner], timeout_s=DEADLINE_S)
    status, refused = doors.submit(owner, "late")
    assert (status, refused["reason"]) == (409, ForeignOwner.code)
    agree(dev, doors)
    rows = doors.rows(owner)
    assert load.confirmed.items() <= rows.items()
    # What else is there are transactions whose callers heard nothing.
    assert rows.keys() - load.confirmed.keys() - {"after"} <= load.unknown
    print(f"{len(load.confirmed)} confirmed, {len(load.unknown)} unknown before the kill")
