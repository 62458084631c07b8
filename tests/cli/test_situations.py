"""Commands that ask the cluster, while a part of it is away: what they print and their exit codes.

Three real cores; the node that is cut off from the others is a fake, which answers as one does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from raftkv.cli import main as cli
from raftkv.cli.devcluster import DevCluster
from tests.cli.conftest import ROOT
from tests.cli.json_node import JsonHandler, served

pytestmark = pytest.mark.cluster

UP_S = 60.0
CUT_OFF = "cut off: no leader answers it"


class CutOff(JsonHandler):
    """A core that the others do not reach: it knows the members, and no leader."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer({"health": "false", "reason": CUT_OFF}, 503)
        elif self.path == "/v1/status":
            self.answer({"name": "stale", "role": "follower", "leader": None, "ready": False})
        else:
            rows = [_row("stale"), _row("forgotten")]
            self.answer({"leader": None, "told_by": "stale", "epoch": "1", "members": rows})

    def do_POST(self) -> None:
        self.body()
        self.answer({"error": "etcdserver: no leader", "reason": "no_leader", "code": 14}, 503)


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("raft_id", "peer_address", "http_address", "connected", "match_index", "lag_entries")
    )
    row |= {"name": name, "standing": "voter", "leads": False, "up": True, "incarnation": 1}
    return row


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        cluster = DevCluster(tmp_path_factory.mktemp("situations"))
        cluster.up(cores=3, replicants=0, fsync="off", plugins=[], timeout_s=UP_S)
        yield cluster
        cluster.down()


class Command:
    """Runs commands in this process; `out`, `err` and `code` are the last one's."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd, self._monkeypatch = capfd, monkeypatch
        self.out = self.err = ""

    def run(self, words: str, at: list[str], timeout_s: float = 2.0) -> int:
        given = [*words.split(), "--endpoint", ",".join(at)]
        if "--timeout" not in given:
            given += ["--timeout", f"{timeout_s:g}"]
        self._monkeypatch.setattr(sys, "argv", ["raftkv", *given])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        self.out, self.err = self._capfd.readouterr()
        return int(ended.value.code or 0)

    def check(self, table: list[tuple[str, int, str]], at: list[str]) -> None:
        """Each command ends with its code, and prints what the pattern finds."""
        for words, code, pattern in table:
            got = self.run(words, at)
            said = self.out + self.err
            assert (got, bool(re.search(pattern, said))) == (code, True), (words, got, said)
            assert "defect" not in said
            assert "Traceback" not in said


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capfd, monkeypatch)


def endpoints(dev: DevCluster, *first: str) -> list[str]:
    """Those of all cores, these first."""
    names = [*first, *(name for name in dev.names if name not in first)]
    return [dev.endpoint(name) for name in names]


NO_ANSWER = r"cannot be reached|did not answer"
EVERY_LISTED = r"core1.*\n.*core2.*\n.*core3"

# Everything works although one core is away.
WITH_A_QUORUM = [
    ("put sit/a 1", 0, "^OK"),
    ("get sit/a", 0, r"^sit/a\n1\n$"),
    ("get sit/a --consistency s", 0, r"^sit/a\n1\n$"),
    ("del sit/none", 0, "^0"),
    ("lease grant 60", 0, "granted"),
    ("member list", 0, EVERY_LISTED),
    ("member remove nosuch", 1, "nosuch is no member of this cluster"),
    ("member promote zzz", 1, "^error: .*zzz is no core of this cluster"),
    ("member add zzz", 1, "(?m)^error: .*no core called 'zzz'"),
    ("member add z/z", 1, "^error: .*name = 'z/z' is not a valid name"),
    ("quota list", 0, "kv"),
    ("alarm disarm", 0, "NOSPACE was not on"),
    # The leader asks every node, and waits for one that hangs.
    ("format show --timeout 15", 0, "core1"),
]
# Each node is asked itself: the code is 3 when one does not answer.
EACH_ASKED = [
    ("endpoint status --cluster", 3, NO_ANSWER),
    ("health --cluster", 3, NO_ANSWER),
    ("endpoint hashkv --cluster", 3, NO_ANSWER),
    ("alarm list --cluster", 3, NO_ANSWER),
]
# Nothing can be decided; what a node has itself is still read.
WITHOUT_A_QUORUM = [
    ("put sit/a 2", 3, "^error: "),
    ("get sit/a", 3, "^error: "),
    ("get sit/a --consistency s", 0, r"^sit/a\n1\n$"),
    ("get sit/ --prefix --count-only --consistency s", 0, r"^\d+\n$"),
    ("lease grant 60", 3, "^error: "),
    ("member list", 3, "no leader answers: this is what core. knows"),
    ("member remove core1", 3, "^error: "),
    ("quota set kv default", 3, "^error: "),
    ("quota list", 3, "^error: "),
    ("endpoint status", 3, NO_ANSWER),
    ("health", 3, "unhealthy"),
    ("endpoint hashkv", 3, NO_ANSWER),
]
# A core that has applied nothing since its start knows the voters from its log, and no key.
AFTER_A_RESTART = [
    ("put sit/a 2", 3, "^error: "),
    ("get sit/a --consistency s", 3, "has applied nothing since its start"),
    ("get sit/ --prefix --count-only --consistency s", 3, "has applied nothing since its start"),
    ("quota list", 3, "^error: "),
    ("member list", 3, EVERY_LISTED),
    ("endpoint status --cluster", 3, r"core[12] .*its HTTP address is unknown"),
    ("health --cluster", 3, r"core[12] is unhealthy: its HTTP address is unknown"),
    ("endpoint hashkv --cluster", 3, "there is nothing to compare"),
    ("alarm list --cluster", 3, r"core[12] .*its HTTP address is unknown"),
]


def test_a_node_that_is_cut_off_and_asked_first(dev: DevCluster, command: Command) -> None:
    with served(CutOff) as stale:
        command.check(WITH_A_QUORUM, [stale, *endpoints(dev)])
        assert command.run("member list", [stale]) == 3
        assert "no leader answers: this is what stale knows" in command.err
        assert command.run("member remove forgotten", [stale]) == 3
        assert "does not reach the leader" in command.err


def test_a_node_that_hangs_or_is_down_and_asked_first(dev: DevCluster, command: Command) -> None:
    leader = dev.leader()
    away = next(name for name in dev.names if name != leader)
    pid = dev.pid(away)
    assert pid is not None
    with _stopped(pid):
        command.check(WITH_A_QUORUM, endpoints(dev, away))
        command.check(EACH_ASKED, endpoints(dev, away))
        command.run("endpoint hashkv --cluster --json", endpoints(dev, away))
        found = json.loads(command.out)
        assert found["same"] is False
        assert len({each["digest"] for each in found["nodes"]} - {None}) == 1
    dev.kill_node(away)
    command.check(WITH_A_QUORUM, endpoints(dev, away))
    command.check(EACH_ASKED, endpoints(dev, away))
    dev.up(timeout_s=UP_S)


def test_a_quorum_that_is_lost_and_a_restart_without_it(dev: DevCluster, command: Command) -> None:
    assert command.run("put sit/a 1", endpoints(dev)) == 0
    left = dev.names[2]
    for name in dev.names[:2]:
        dev.kill_node(name)
    _until_leaderless(dev, left, command)
    command.check(WITHOUT_A_QUORUM, endpoints(dev, left))
    assert _status(dev, left, command)["ready"] is False
    dev.kill_node(left)
    dev.start_node(left)
    _until_answering(dev, left, command)
    command.check(AFTER_A_RESTART, [dev.endpoint(left)])
    dev.up(timeout_s=UP_S)


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _status(dev: DevCluster, name: str, command: Command) -> dict[str, Any]:
    command.run("endpoint status --json", [dev.endpoint(name)])
    found: dict[str, Any] = json.loads(command.out)[0]["status"] or {}
    return found


def _until_leaderless(dev: DevCluster, name: str, command: Command) -> None:
    for _ in range(100):
        if _status(dev, name, command).get("leader", "") is None:
            return
        signal.sigtimedwait((), 0.1)
    raise AssertionError("it still knows a leader")


def _until_answering(dev: DevCluster, name: str, command: Command) -> None:
    for _ in range(100):
        if _status(dev, name, command):
            return
        signal.sigtimedwait((), 0.2)
    raise AssertionError("it does not answer")
