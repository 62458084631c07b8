"""Scenario 10 with real processes: the initiator dies between its effect and the call's outcome.

The effect is a line in a file, and on the disk. Nothing of the call is in the log but that it was
reserved. Then the process gets SIGKILL (or is held so long that the call's time is over). The
others must not run it, must not wait for ever, and must go on; the initiator must learn what became
of it, and an operator must see it until somebody has looked after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli import groups
from raftkv.cli import main as cli
from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import request
from raftkv.errors import RaftkvError
from raftkv.plugin import Plugin
from raftkv_cluster_call import Calls

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[3]
NODE = Path(__file__).with_name("calls_node.py")
DEADLINE_S = 60.0
# How long an initiator that does not answer holds the others up, at most.
NODE_DOWN_MS = 3_000
# Less than that, and more than it takes to hold the process.
HELD_CALL_S = 2.0


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'plugins'}")
    made = DevCluster(tmp_path / "calls", command=[sys.executable, str(NODE)])
    made.create(cores=3, replicants=0, plugins=[])
    for name in made.names:
        with open(made.config_path(name), "a", encoding="utf-8") as file:
            file.write(f"\n[raft]\nnode_down_ms = {NODE_DOWN_MS}\n")
    made.up(timeout_s=DEADLINE_S)
    yield made
    made.down()


class _Entry:
    """What an installed plugin announces."""

    name = "calls"

    def load(self) -> type[Plugin[Any]]:
        return Calls


class Operator:
    """Calls and looks through the nodes' doors; `shell` is the command line."""

    def __init__(
        self, dev: DevCluster, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self._dev = dev
        self._capsys = capsys
        self._patch = patch
        self.told = ""
        patch.setattr(groups, "entry_points", lambda group, name=None: [_Entry()])
        # A group that another test added already must not be there twice.
        patch.setattr(cli.app, "registered_groups", list(cli.app.registered_groups))

    def call(self, at: str, function: str, **more: Any) -> Any:
        """Make a call through the node's door; the answer."""
        body = {"function": function, "args": {"text": "t"}, "timeout_s": DEADLINE_S, **more}
        endpoint = self._dev.endpoint(at)
        return request(endpoint, "POST", "/v1/calls/call", body, timeout_s=2 * DEADLINE_S)

    def query(self, at: str, id: int) -> Any:
        return request(self._dev.endpoint(at), "GET", f"/v1/calls/calls/{id}")

    def status(self, at: str) -> Any:
        return request(self._dev.endpoint(at), "GET", "/v1/calls/status")

    def cursors(self, at: str) -> dict[str, int | None]:
        return {row["name"]: row["cursor"] for row in self.status(at)["nodes"]}

    def shell(self, at: str, *arguments: str) -> str:
        """`raftkv calls ...` against that node; what it printed. `told`: on stderr, to people."""
        argv = ["raftkv", "calls", *arguments, "--endpoint", self._dev.endpoint(at)]
        self._patch.setattr(sys, "argv", argv)
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        assert not ended.value.code, said.err
        self.told = said.err
        return said.out

    def effects(self, name: str) -> list[str]:
        """What the functions left on that node: "ID KIND ATTEMPT"."""
        path = Path(self._dev.config_path(name)).with_name("effects")
        return path.read_text(encoding="ascii").splitlines() if path.exists() else []

    def log(self, name: str) -> str:
        return Path(self._dev.log_path(name)).read_text(encoding="utf-8")


@pytest.fixture
def operator(
    dev: DevCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Operator:
    made = Operator(dev, capsys, monkeypatch)
    until(lambda: list(made.cursors("core1").values()) == [0, 0, 0], "all take part")
    return made


class Behind:
    """A call that is on its way in a thread of its own."""

    def __init__(self, operator: Operator, at: str, function: str, **more: Any) -> None:
        self.answer: Any = None
        self.error: RaftkvError | None = None
        self._thread = threading.Thread(target=self._run, args=(operator, at, function, more))
        self._thread.start()

    def _run(self, operator: Operator, at: str, function: str, more: dict[str, Any]) -> None:
        try:
            self.answer = operator.call(at, function, **more)
        except RaftkvError as error:
            self.error = error

    def result(self) -> Any:
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive(), "the call has not come back"
        assert self.error is None, self.error
        return self.answer

    def ended(self) -> None:
        """Wait for it, whatever it came to: its node was killed."""
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive(), "the call has not come back"


def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except RaftkvError as error:
            told = f"{what}; last: {error}"
        else:
            told = what
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {told}"
        time.sleep(0.02)


def a_call_that_hangs(dev: DevCluster, operator: Operator, victim: str, **more: Any) -> Behind:
    """Call 1 ran everywhere; call 2 has left its effect on the victim, and is not decided."""
    first = operator.call(victim, "mark")
    assert (first["outcome"], first["id"]) == ("ok", 1)
    hanging = Behind(operator, victim, "hang", **more)
    until(lambda: "2 initiate 1" in operator.effects(victim), "the effect is on the disk")
    assert operator.query("core1", 2)["state"] == "reserved"
    return hanging


def reported(dev: DevCluster, operator: Operator, victim: str, cause: str) -> None:
    """The initiator has learnt of it, everybody shows it, and goes on to until acknowledged."""
    for name in dev.names:
        assert operator.query(name, 2)["state"] == "aborted"
        assert operator.query(name, 2)["cause"] == cause
        document = json.loads(operator.shell(name, "status", "--json"))
        [lost] = document["lost"]
        assert (lost["node"], lost["id"], lost["function"]) == (victim, 2, "hang")
        assert lost["cause"] == cause
        alarm = {"name": "effect_lost", "node": victim, "id": 2}
        assert any(alarm.items() <= found.items() for found in document["alarms"]), document
    operator.shell(dev.names[0], "status")
    assert f"call 2 (hang) was aborted, {victim} may have run it" in operator.told
    until(
        lambda: any(
            "WARNING" in line and "effect_lost" in line
            for line in operator.log(victim).splitlines()
        ),
        "the initiator's own log says so",
    )
    operator.shell(victim, "acknowledge", "2")
    document = json.loads(operator.shell(victim, "status", "--json"))
    assert (document["lost"], document["alarms"]) == ([], [])


@pytest.mark.parametrize("victim_leads", [False, True], ids=["follower", "leader"])
@pytest.mark.parametrize("comes_back", ["later", "at once"])
def test_10_initiator_is_killed_between_its_effect_and_the_outcome(
    dev: DevCluster, operator: Operator, victim_leads: bool, comes_back: str
) -> None:
    leader = dev.leader()
    victim = leader if victim_leads else next(name for name in dev.names if name != leader)
    one, other = (name for name in dev.names if name != victim)
    hanging = a_call_that_hangs(dev, operator, victim)
    queued = Behind(operator, one, "mark", required=[one, other])
    until(lambda: operator.status(one)["queue"] == 1, "another call waits behind it")
    dev.kill_node(victim)
    hanging.ended()
    if comes_back == "at once":
        dev.start_node(victim)
    # Who waits for the dead one's turn gets its own.
    done = queued.result()
    assert (done["outcome"], done["id"]) == ("ok", 3)
    assert operator.call(other, "mark", required=[one, other])["id"] == 4
    if comes_back == "later":
        assert operator.query(one, 2)["state"] == "aborted"
        dev.start_node(victim)
    dev.wait_writable([victim], timeout_s=DEADLINE_S)
    until(lambda: operator.cursors(victim)[victim] == 4, "it has executed what it missed")
    back = operator.call(victim, "mark")
    assert (back["outcome"], back["id"]) == ("ok", 5)

    # What was aborted has run on its initiator only, and only once.
    for name in dev.names:
        began = [("initiate" if name == who else "replicate") for who in (victim, one, other)]
        mine = [line.rsplit(" ", 1)[0] for line in operator.effects(name)]
        own = "initiate" if name == victim else "replicate"
        expected = [f"1 {own}", f"3 {began[1]}", f"4 {began[2]}", f"5 {own}"]
        if name == victim:
            expected.insert(1, "2 initiate")
        assert mine == expected, name
    reported(dev, operator, victim, "initiator_ended")


@pytest.mark.parametrize(
    ("timeout_s", "expected"), [(HELD_CALL_S, "expired"), (DEADLINE_S, "initiator_ended")]
)
def test_10_initiator_is_held_until_the_log_has_ended_its_call(
    dev: DevCluster, operator: Operator, timeout_s: float, expected: str
) -> None:
    """By the log's clock, or because it is not heard for so long that it counts as dead.

    Its process goes on where it was: it has run the function, and commits too late.
    """
    leader = dev.leader()
    victim, other = [name for name in dev.names if name != leader]
    hanging = a_call_that_hangs(dev, operator, victim, timeout_s=timeout_s)
    queued = Behind(operator, other, "mark", required=[leader, other])
    dev.kill_node(victim, signal.SIGSTOP)
    done = queued.result()
    assert (done["outcome"], done["id"]) == ("ok", 3)
    cause = operator.query(leader, 2)["cause"]
    Path(dev.config_path(victim)).with_name("go").touch()
    dev.kill_node(victim, signal.SIGCONT)
    failed = hanging.result()
    assert (failed["outcome"], failed["id"]) == ("init_failure", 2)
    if expected == "initiator_ended":
        # Where its time was up, the function may have been told so before it looked for the file.
        assert failed["error"]["kind"] == "Expired"
    until(lambda: operator.cursors(leader)[victim] == 3, "it has executed what it missed")
    assert operator.call(victim, "mark")["outcome"] == "ok"
    assert [line for line in operator.effects(victim) if line.startswith("2 ")] == ["2 initiate 1"]
    for name in (leader, other):
        assert not [line for line in operator.effects(name) if line.startswith("2 ")]
    assert cause == expected
    reported(dev, operator, victim, cause)


def test_10_lost_effect_of_a_node_that_never_comes_back_is_acknowledged_elsewhere(
    dev: DevCluster, operator: Operator
) -> None:
    victim = next(name for name in dev.names if name != dev.leader())
    one, other = (name for name in dev.names if name != victim)
    hanging = a_call_that_hangs(dev, operator, victim)
    dev.kill_node(victim)
    hanging.ended()
    until(lambda: operator.status(one)["lost"] != [], "the log has ended the call")
    [alarm] = operator.status(other)["alarms"]
    assert (alarm["name"], alarm["node"], alarm["id"]) == ("effect_lost", victim, 2)
    operator.shell(one, "acknowledge", "2")
    assert operator.status(other)["alarms"] == []
    operator.shell(one, "force-leave", victim, "--yes")
    assert (operator.cursors(other)[victim], operator.call(other, "mark")["outcome"]) == (
        None,
        "ok",
    )


def test_10_all_nodes_die_with_the_initiator(dev: DevCluster, operator: Operator) -> None:
    """What was reserved is in the log, and the log's end of that life ends it."""
    victim = dev.leader()
    one, other = (name for name in dev.names if name != victim)
    hanging = a_call_that_hangs(dev, operator, victim)
    for name in dev.names:
        dev.kill_node(name)
    hanging.ended()
    dev.up(timeout_s=DEADLINE_S)
    until(lambda: operator.query(one, 2)["state"] == "aborted", "the call is aborted")
    done = operator.call(one, "mark")
    assert (done["outcome"], done["id"]) == ("ok", 3)
    for name in (one, other):
        assert not [line for line in operator.effects(name) if line.startswith("2 ")]
    assert [line for line in operator.effects(victim) if line.startswith("2 ")] == ["2 initiate 1"]
    reported(dev, operator, victim, "initiator_ended")
