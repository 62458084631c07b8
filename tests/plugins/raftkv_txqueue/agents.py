"""A cluster of whole processes (txqueue_node.py), and the programs that run in them.

`Agent` is a program's connection: its calls block, and raise `Gone` when the process is, `Failed`
with the error's code when the node said so. Programs that go on whatever is killed (`Program`) do
what an application would: attach to a node (here the leader, for it is the one that dies), do the
work of a transaction, commit, and ask for the outcome when they were not told.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from raftkv.cli.devcluster import DevCluster
from raftkv.errors import NotApplied
from raftkv_txqueue.errors import TransactionAborted

__all__ = [
    "ABORTED",
    "DEADLINE_S",
    "NODE_DOWN_MS",
    "Agent",
    "Failed",
    "Gone",
    "Program",
    "agree",
    "ask",
    "definite",
    "started",
    "until",
]

ROOT = Path(__file__).resolve().parents[3]
NODE = Path(__file__).with_name("txqueue_node.py")
DEADLINE_S = 60.0
# How long a node that does not answer holds the others up, at most.
NODE_DOWN_MS = 3_000
_POLL_S = 0.02
#: The code of what says that a transaction is surely not applied.
ABORTED = TransactionAborted.code

T = TypeVar("T")


class Gone(Exception):
    """The connection broke, or nothing came over it in time: nobody knows what was done."""


class Failed(Exception):
    """The node answered with this error."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer)
        self.code: str = answer["error"]
        self.cause: str | None = answer["cause"]
        self.txid: str | None = answer["txid"]


class Agent:
    """One connection to the process of one node."""

    def __init__(self, dev: DevCluster, at: str, *, timeout_s: float = 2 * DEADLINE_S) -> None:
        self.at = at
        self._socket: socket.socket | None = None
        pid = dev.pid(at)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with suppress(OSError, ValueError):
                told = Path(dev.config_path(at)).with_name("agent").read_text("ascii").split()
                if int(told[0]) == pid:
                    address = ("127.0.0.1", int(told[1]))
                    self._socket = socket.create_connection(address, timeout=timeout_s)
                    self._file = self._socket.makefile("rwb")
                    return
            if pid is None or dev.pid(at) != pid or time.monotonic() > deadline:
                raise Gone(f"{at} does not answer")
            time.sleep(_POLL_S)

    def __call__(self, verb: str, **asked: Any) -> Any:
        try:
            self._file.write(json.dumps({"do": verb, **asked}).encode() + b"\n")
            self._file.flush()
            line = self._file.readline()
        except OSError as error:
            raise Gone(str(error)) from None
        if not line.endswith(b"\n"):
            raise Gone(f"{self.at} has closed the connection")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer)
        return answer["ok"]

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def ask(dev: DevCluster, at: str, verb: str, **asked: Any) -> Any:
    """One call over a connection of its own."""
    with Agent(dev, at) as agent:
        return agent(verb, **asked)


def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


@contextmanager
def started(directory: Path) -> Iterator[DevCluster]:
    """Three cores, each a process; all are ended in the end."""
    former = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    made = DevCluster(directory, command=[sys.executable, str(NODE)])
    try:
        made.create(cores=3, replicants=0, plugins=[])
        for name in made.names:
            with open(made.config_path(name), "a", encoding="utf-8") as file:
                file.write(f"\n[raft]\nnode_down_ms = {NODE_DOWN_MS}\n")
        made.up(timeout_s=DEADLINE_S)
        yield made
    finally:
        made.down()
        if former is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = former


def definite(dev: DevCluster, txid: str) -> str:
    """The verdict, asked of whoever lives until it is one."""
    deadline = time.monotonic() + DEADLINE_S
    # A client of the HTTP API has the secret of its session in it.
    session, _, counter = txid.partition(".")
    known = f"{session.partition('-')[0]}.{counter}"
    while True:
        for name in dev.names:
            if dev.pid(name) is None:
                continue
            with suppress(Gone, Failed):
                state: str = ask(dev, name, "outcome", txid=known)[0]
                if state in ("committed", "rolled back"):
                    return state
        assert time.monotonic() < deadline, f"{txid} has no outcome"
        time.sleep(_POLL_S)


def agree(dev: DevCluster) -> None:
    """All nodes have the same lawful state, with nothing left of any transaction."""
    seen: dict[str, Any] = {}

    def same() -> bool:
        seen.update({name: ask(dev, name, "state") for name in dev.names})
        states = list(seen.values())
        return all(
            each["index"] == states[0]["index"] == states[0]["commit"] and not each["residue"]
            for each in states
        )

    until(same, "all have the same, and nothing is left of transactions")
    first = seen[dev.names[0]]
    for name, state in seen.items():
        assert state["digest"] == first["digest"], name
        assert not state["violated"], (name, state["violated"])
        assert not state["faults"], (name, state["faults"][0])


class Program:
    """Does transactions one after the other, at the node that leads; each is done once."""

    def __init__(self, dev: DevCluster, kind: str = "tx") -> None:
        self._dev = dev
        self._kind = kind
        self._agent: Agent | None = None
        self._session = 0
        #: Nothing was committed yet in the session that is used now.
        self.fresh = True
        #: How often it had to begin again, and how often it had to ask for the outcome.
        self.again = 0
        self.asked = 0

    def transact(self, work: Callable[[Agent, int], T]) -> T:
        """Do the work and commit it, again and again until it is committed; once, that is."""
        while True:
            txid = ""
            done: T | None = None
            try:
                agent = self._attached()
                done = work(agent, self._session)
                txid = agent("txid", session=self._session)
                agent("commit", session=self._session)
                self.fresh = False
                return done
            except (Gone, Failed) as error:
                self._detach()
                told = isinstance(error, Failed) and error.code == ABORTED
                if txid and not told:
                    self.asked += 1
                    if definite(self._dev, txid) == "committed":
                        assert done is not None
                        return done
                self.again += 1

    def _attached(self) -> Agent:
        """Its agent; where there is none yet, at the node that leads."""
        while self._agent is None:
            with suppress(Gone, Failed, NotApplied):
                self._agent = Agent(self._dev, self._dev.leader())
                self._session = self._agent("session", kind=self._kind)
                return self._agent
            self._detach()
            time.sleep(_POLL_S)
        return self._agent

    def _detach(self) -> None:
        """Leave the session alone: it is for the cluster to find out that nobody is there."""
        if self._agent is not None:
            with suppress(Gone, Failed):
                self._agent("close", session=self._session)
            self._agent.close()
            self._agent = None
            self.fresh = True

    def close(self) -> None:
        self._detach()
