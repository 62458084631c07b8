"""Leaders that are killed, and whole clusters, while transactions run: real processes and signals.

Scenarios 3, 4 and 20 in the form in which they were meant: a client's program is in the process
that dies, or in another one. What a program was told before the end is the test's own account, and
the outcome that anybody is told afterwards must fit it.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import signal
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv_txqueue.xa import XaStatus
from tests.plugins.raftkv_txqueue.agents import (
    ABORTED,
    DEADLINE_S,
    Agent,
    Failed,
    Gone,
    Program,
    agree,
    ask,
    definite,
    started,
    until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

XYZ = ["x", "y", "z"]
XID = "7:6b696c6c6564:01"
# What the cluster has committed before the leader is killed under load.
LOAD_MIN = 60


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    with started(tmp_path / "txqueue") as made:
        yield made


def queues(dev: DevCluster, *names: str) -> None:
    for name in names:
        ask(dev, dev.names[0], "declare", queue=name)


def swap(agent: Agent, kind: str = "tx") -> int:
    """All of a to b in a transaction of a new session, not committed; the session."""
    session: int = agent("session", kind=kind)
    if kind == "dtx":
        assert agent("start", session=session, xid=XID) == XaStatus.OK
    got = agent("get", session=session, queue="a", count=3, wait_s=DEADLINE_S)
    assert [text for _, text, _ in got] == XYZ
    agent("accept", session=session, queue="a", seqs=[seq for seq, _, _ in got])
    agent("publish", session=session, queue="b", texts=XYZ)
    agent("flush", session=session)
    return session


def seen(dev: DevCluster, at: str, queue: str, *, everything: bool = False) -> list[str]:
    found: list[str] = ask(dev, at, "browse", queue=queue, everything=everything)
    return found


def another(dev: DevCluster, than: str) -> None:
    """Wait until another one leads."""

    def leads() -> bool:
        return dev.leader() != than

    until(leads, f"another one than {than} leads")


def test_3_the_leader_is_killed_with_the_transaction(dev: DevCluster) -> None:
    """Scenario 3: its client hears nothing more; all work is discarded, and the others know it."""
    queues(dev, "a", "b")
    ask(dev, "core1", "publish", queue="a", texts=XYZ)
    leader = dev.leader()
    others = [name for name in dev.names if name != leader]
    agent = Agent(dev, leader)
    session = swap(agent)
    txid = agent("txid", session=session)
    dev.kill_node(leader)
    for _ in range(2):
        with pytest.raises(Gone):
            agent("commit", session=session)
    another(dev, leader)
    assert definite(dev, txid) == "rolled back"
    for name in others:
        until(lambda name=name: seen(dev, name, "a") == XYZ, "a is as it was")  # type: ignore[misc]
        assert seen(dev, name, "b", everything=True) == []
    dev.start_node(leader)
    dev.wait_writable([leader], timeout_s=DEADLINE_S)
    agree(dev)
    assert ask(dev, leader, "outcome", txid=txid) == ["rolled back", "session"]
    # What is available again is taken once.
    agent = Agent(dev, leader)
    session = swap(agent)
    assert agent("commit", session=session) != txid
    agree(dev)
    assert seen(dev, others[0], "b") == XYZ


def test_3_the_leader_is_held_until_it_was_given_up(dev: DevCluster) -> None:
    """Scenario 3: its process goes on where it was: Aborted on sync, on commit, and again."""
    queues(dev, "a", "b")
    ask(dev, "core1", "publish", queue="a", texts=XYZ)
    leader = dev.leader()
    others = [name for name in dev.names if name != leader]
    agent = Agent(dev, leader)
    session = swap(agent)
    txid = agent("txid", session=session)
    dev.kill_node(leader, signal.SIGSTOP)
    until(lambda: seen(dev, others[0], "a") == XYZ, "a is as it was, without the leader")
    # Somebody else has them now.
    with Agent(dev, others[1]) as heir:
        assert heir("commit", session=swap(heir)) != txid
    dev.kill_node(leader, signal.SIGCONT)

    def sync() -> None:
        agent("publish", session=session, queue="b", texts=["late"])
        agent("flush", session=session)

    with pytest.raises(Failed) as told:
        sync()
    assert told.value.code == ABORTED
    for again in (None, txid, txid):
        with pytest.raises(Failed) as told:
            agent("commit", session=session, txid=again)
        assert (told.value.code, told.value.txid) == (ABORTED, txid)
    agree(dev)
    assert seen(dev, leader, "a", everything=True) == []
    assert seen(dev, leader, "b") == XYZ
    assert ask(dev, leader, "outcome", txid=txid) == ["rolled back", "session"]


class Clients:
    """Programs that commit transactions at one node until it is gone."""

    def __init__(self, dev: DevCluster, at: str, count: int) -> None:
        #: label -> its txid, of what a program was told to be committed.
        self.committed: dict[str, str] = {}
        #: label -> its txid, where the connection broke during the commit.
        self.unknown: dict[str, str] = {}
        self.failed: list[Failed] = []
        self._dev = dev
        self._at = at
        self._stop = False
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, client: int) -> None:
        with suppress(Gone), Agent(self._dev, self._at) as agent:
            session = agent("session", kind="tx")
            number = 0
            while not self._stop:
                label = f"{self._at}/{client}/{number}"
                number += 1
                agent("publish", session=session, queue="one", texts=[label])
                if client % 2:
                    agent("flush", session=session)
                agent("publish", session=session, queue="two", texts=[label])
                txid = self.unknown[label] = agent("txid", session=session)
                try:
                    agent("commit", session=session)
                except Failed as error:
                    # Unknown or aborted: what it was is asked later, as of the others.
                    self.failed.append(error)
                    continue
                self.committed[label] = txid
                del self.unknown[label]

    def ended(self) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join(2 * DEADLINE_S)
            assert not thread.is_alive(), "a client has not come back"


@pytest.mark.parametrize("who", ["the leader", "all"])
def test_4_the_leader_is_killed_during_commits(dev: DevCluster, who: str) -> None:
    """Scenario 4: under load of all nodes: all or nothing of each, as clients were told or ask."""
    queues(dev, "one", "two")
    leader = dev.leader()
    clients = [Clients(dev, name, 4) for name in dev.names]
    until(lambda: all(len(each.committed) > LOAD_MIN / 3 for each in clients), "the load is on")
    time.sleep(random.random() / 10)
    dev.kill_node(leader)
    if who == "all":
        for name in dev.names:
            if name != leader:
                dev.kill_node(name)
    else:
        another(dev, leader)
        before = {id(each): len(each.committed) for each in clients}
        until(
            lambda: sum(len(each.committed) > before[id(each)] + 5 for each in clients) == 2,
            "the load goes on at the others",
        )
    for each in clients:
        each.ended()
    dev.up(timeout_s=DEADLINE_S)
    agree(dev)
    one = seen(dev, leader, "one")
    assert one == seen(dev, leader, "two")
    there = set(one)
    assert len(one) == len(there)
    unknown = 0
    for each in clients:
        assert each.committed.keys() <= there
        for label, txid in each.unknown.items():
            unknown += 1
            assert (definite(dev, txid) == "committed") == (label in there), (label, txid)
            there.discard(label)
        there -= each.committed.keys()
    assert there == set()
    # One client of the dead node at a time may have been in its commit; the others' were told.
    print(
        f"{len(one)} committed, {unknown} had to ask, {[e.code for c in clients for e in c.failed]}"
    )


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL], ids=lambda sent: sent.name)
def test_5_a_rolling_restart_under_load(dev: DevCluster, sent: signal.Signals) -> None:
    """Scenario 5 for every node in turn: each transaction is done once, in both queues or none."""
    queues(dev, "one", "two")
    done: dict[int, list[str]] = {number: [] for number in range(4)}
    stop = threading.Event()

    def run(number: int) -> None:
        program = Program(dev)
        while not stop.is_set():
            label = f"{number}/{len(done[number])}"

            def work(agent: Agent, session: int, label: str = label) -> str:
                agent("publish", session=session, queue="one", texts=[label])
                agent("publish", session=session, queue="two", texts=[label])
                return label

            done[number].append(program.transact(work))
        program.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in done]
    for thread in threads:
        thread.start()
    for name in dev.names:
        counts = [len(each) for each in done.values()]
        until(
            lambda counts=counts: all(  # type: ignore[misc]
                len(each) > count + 5 for each, count in zip(done.values(), counts, strict=True)
            ),
            "the load is on",
        )
        dev.kill_node(name, sent)
        dev.start_node(name)
        dev.wait_writable(timeout_s=DEADLINE_S)
    stop.set()
    for thread in threads:
        thread.join(4 * DEADLINE_S)
        assert not thread.is_alive(), "a program has not come to its end"
    agree(dev)
    one = seen(dev, "core1", "one")
    assert one == seen(dev, "core2", "two")
    assert sorted(one) == sorted(label for each in done.values() for label in each)
    # In one program's order, whatever others did in between.
    for number, mine in done.items():
        assert [label for label in one if label.startswith(f"{number}/")] == mine


class Committing(threading.Thread):
    """One commit that is on its way."""

    def __init__(self, agent: Agent, session: int) -> None:
        super().__init__()
        self.told = ""
        self.cause: str | None = None
        self._agent = agent
        self._session = session
        self.start()

    def run(self) -> None:
        try:
            self._agent("commit", session=self._session)
            self.told = "committed"
        except Failed as error:
            self.told, self.cause = error.code, error.cause
        except Gone:
            self.told = "gone"


@pytest.mark.parametrize("how", ["lags", "is killed", "is held too long"])
def test_7_a_participant(dev: DevCluster, how: str) -> None:
    """Scenario 7: it is stopped by a signal while its vote is wanted, and continued, or not."""
    queues(dev, "a", "b")
    ask(dev, "core1", "publish", queue="a", texts=XYZ)
    leader = dev.leader()
    participant = next(name for name in dev.names if name != leader)
    ask(dev, participant, "observe")
    ask(dev, leader, "observe")
    agent = Agent(dev, leader)
    session = swap(agent)
    txid = agent("txid", session=session)
    dev.kill_node(participant, signal.SIGSTOP)
    committing = Committing(agent, session)
    until(lambda: ask(dev, leader, "outcome", txid=txid)[0] == "preparing", "it is wanted")
    assert seen(dev, leader, "b", everything=True) == []
    if how == "lags":
        dev.kill_node(participant, signal.SIGCONT)
    elif how == "is killed":
        dev.kill_node(participant)
    committing.join(2 * DEADLINE_S)
    assert not committing.is_alive()
    if how == "lags":
        assert (committing.told, definite(dev, txid)) == ("committed", "committed")
    else:
        assert (committing.told, committing.cause) == (ABORTED, "participant")
        assert definite(dev, txid) == "rolled back"
    if how == "is killed":
        dev.start_node(participant)
    elif how == "is held too long":
        dev.kill_node(participant, signal.SIGCONT)
    dev.wait_writable([participant], timeout_s=DEADLINE_S)
    agent("close", session=session)
    agree(dev)
    for name in dev.names:
        assert seen(dev, name, "a") == ([] if how == "lags" else XYZ)
        assert seen(dev, name, "b") == (XYZ if how == "lags" else [])


def at_door(
    dev: DevCluster, at: str, method: str, path: str, body: Any = None
) -> tuple[int, dict[str, Any]]:
    """One request to a node's door: (status, answer); status 0: the connection broke."""
    address = urllib.parse.urlsplit(dev.endpoint(at))
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=2 * DEADLINE_S
    )
    try:
        connection.request(
            method, f"/v1/txqueue/{path}", json.dumps(body) if body is not None else None
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, http.client.HTTPException):
        return 0, {}
    finally:
        connection.close()


class DoorClient(threading.Thread):
    """Commits small transactions, a request each, until the connection breaks or it is to stop."""

    def __init__(self, dev: DevCluster, at: str, number: int) -> None:
        super().__init__()
        self.committed: list[str] = []
        #: What it was about to commit when it lost the connection, and the txid of that.
        self.lost: tuple[str, str] | None = None
        self.stop = False
        self.session = 0
        self._dev = dev
        self._at = at
        self._number = number

    @staticmethod
    def operations(label: str) -> dict[str, Any]:
        message = {"body": base64.b64encode(label.encode()).decode()}
        return {
            "operations": [{"publish": queue, "messages": [message]} for queue in ("one", "two")],
            "timeout_s": DEADLINE_S,
        }

    def run(self) -> None:
        status, opened = at_door(self._dev, self._at, "POST", "sessions", {"kind": "tx"})
        assert status == 200, opened
        self.session, txid = opened["session"], opened["txid"]
        while not self.stop:
            label = f"{self._at}/{self._number}/{len(self.committed)}"
            status, answer = at_door(
                self._dev, self._at, "POST", f"tx/{txid}/commit", self.operations(label)
            )
            if status != 200:
                self.lost = label, txid
                return
            assert (answer["txid"], answer["state"]) == (txid, "committed")
            self.committed.append(label)
            txid = answer["next"]


@pytest.mark.parametrize("killed", ["leader", "follower"])
def test_4_commits_over_a_door_that_breaks(dev: DevCluster, killed: str) -> None:
    """Scenario 4 over the network: whoever lost the connection asks any other door.

    It is told a definite outcome there, and may send the same commit again: it is the same answer,
    and nothing is done twice.
    """
    queues(dev, "one", "two")
    leader = dev.leader()
    gone, other = [leader, *(name for name in dev.names if name != leader)][:2]
    if killed == "follower":
        gone, other = other, gone
    clients = [DoorClient(dev, at, number) for at in (gone, other) for number in range(6)]
    for client in clients:
        client.start()
    until(lambda: all(len(each.committed) > 5 for each in clients), "the load is on")
    dev.kill_node(gone)
    until(lambda: all(each.lost for each in clients[:6]), "its clients have lost it")
    another(dev, gone)
    reached = [len(each.committed) for each in clients[6:]]
    until(
        lambda: all(
            each.lost or len(each.committed) > count
            for each, count in zip(clients[6:], reached, strict=True)
        ),
        "the others go on",
    )
    for client in clients:
        client.stop = True
        client.join(2 * DEADLINE_S)
        assert not client.is_alive(), "a client has not come back"
    expected = {label for client in clients for label in client.committed}
    states: list[str] = []
    for label, txid in [client.lost for client in clients if client.lost]:
        assert definite(dev, txid) in ("committed", "rolled back")
        for name in (other, other):
            status, answer = at_door(dev, name, "GET", f"tx/{txid}")
            assert status == 200
            states.append(answer["state"])
            again = at_door(dev, name, "POST", f"tx/{txid}/commit", DoorClient.operations(label))
            if answer["state"] == "committed":
                assert (again[0], again[1]["state"]) == (200, "committed")
                expected.add(label)
            else:
                assert answer["state"] == "rolled back"
                assert (again[0], again[1]["reason"]) == (409, ABORTED), again
    dev.start_node(gone)
    dev.wait_writable([gone], timeout_s=DEADLINE_S)
    for client in clients[6:]:
        session = client.session
        assert at_door(dev, other, "DELETE", f"sessions/{session}")[0] == 200
    agree(dev)
    for name in dev.names:
        one = seen(dev, name, "one")
        assert one == seen(dev, name, "two")
        assert sorted(one) == sorted(expected)
    print(f"{len(expected)} committed; those that had to ask: {states[::2]}")


@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_20_prepared_survives_the_death_of_all_processes(dev: DevCluster, then: str) -> None:
    """Scenario 20: all are killed by signal 9; it is in recover, and nothing else of it is seen."""
    queues(dev, "a", "b", "c")
    ask(dev, "core1", "publish", queue="a", texts=XYZ)
    leader = dev.leader()
    with Agent(dev, leader) as agent:
        session = swap(agent, "dtx")
        assert agent("end", session=session, xid=XID) == XaStatus.OK
        assert agent("dtx", call="prepare", xid=XID) == XaStatus.OK
        lost = agent("session", kind="tx")
        agent("publish", session=lost, queue="c", texts=["lost"])
        agent("flush", session=lost)
        txid = agent("txid", session=lost)
        for name in dev.names:
            dev.kill_node(name)
    dev.up(timeout_s=DEADLINE_S)
    for name in dev.names:
        assert ask(dev, name, "recover") == [[XID, "prepared"]]
        assert seen(dev, name, "a") == seen(dev, name, "b", everything=True) == []
    assert definite(dev, txid) == "rolled back"
    assert ask(dev, "core2", "dtx", call=then, xid=XID) == XaStatus.OK
    agree(dev)
    for name in dev.names:
        assert ask(dev, name, "recover") == []
        assert seen(dev, name, "c", everything=True) == []
        assert seen(dev, name, "a") == ([] if then == "commit" else XYZ)
        assert seen(dev, name, "b") == (XYZ if then == "commit" else [])
