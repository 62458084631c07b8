"""What stock PySyncObj 0.3.17 does where our engine must do otherwise.

Each canary shows that a defect still exists, so that we learn when it is mended upstream: then the
rule's seam can be looked at again. The tests of our own engine are in test_rules_*.py, under the
same numbers. Nothing here says how PySyncObj should be used.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pysyncobj.syncobj
import pytest
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.node import Node
from pysyncobj.transport import Transport

LEADER = 2
Entry = tuple[bytes, int, int]


class Wire(Transport):
    """Keeps what is sent."""

    def __init__(self, sync_obj: Any, self_node: Any, other_nodes: Any) -> None:
        super().__init__(sync_obj, self_node, other_nodes)
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True


class NoPoller:
    def poll(self, timeout: float) -> None:
        """There are no sockets."""


class Stock(SyncObj):
    """A stock engine without sockets, threads and user code."""

    def __init__(self, me: str, others: str, **options: Any) -> None:
        self.applied: list[bytes] = []
        conf = SyncObjConf(
            autoTick=False,
            dynamicMembershipChange=True,
            raftMinTimeout=0.5,
            raftMaxTimeout=1.0,
            appendEntriesPeriod=0.05,
            leaderFallbackTimeout=1.0,
            **options,
        )
        nodes = [Node(name) for name in others]
        super().__init__(Node(me), nodes, conf, transportClass=Wire, nodeClass=Node)
        self._poller = NoPoller()
        self.wire: Wire = self._SyncObj__transport

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        self.applied.append(command)

    def field(self, name: str) -> Any:
        return getattr(self, f"_SyncObj__{name}")

    def receive(self, sender: str, **message: Any) -> list[dict[str, Any]]:
        """A message arrives; what the sender is answered."""
        self.wire.sent.clear()
        self.wire._onMessageReceived(Node(sender), message)
        return [message for node, message in self.wire.sent if node == sender]

    def log_end(self) -> int:
        return int(self.field("raftLog")[-1][1])

    def members(self) -> list[str]:
        return sorted(node.id for node in self.otherNodes)


def append(
    prev: int, prev_term: int, entries: list[Entry], term: int, commit: int
) -> dict[str, Any]:
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit,
        "entries": entries,
        "prevLogIdx": prev,
        "prevLogTerm": prev_term,
    }


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [(b"\x00%d" % index, index, term) for index in range(first, last + 1)]


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Clock]]:
    Clock.now = 100.0
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: Clock.now)
    return Clock


def campaigning(clock: type[Clock], others: str = "BC") -> Stock:
    node = Stock("A", others)
    for name in others:
        node.wire._onNodeConnected(Node(name))
    clock.now += 5
    node._onTick()
    return node


def leading(clock: type[Clock]) -> Stock:
    node = campaigning(clock)
    node.receive("B", type="response_vote", term=node.raftCurrentTerm)
    assert node._isLeader()
    return node


def test_rule_01_a_message_without_prev_check_commits_a_stale_tail(clock: type[Clock]) -> None:
    node = Stock("B", "AC")
    node.receive("A", **append(1, 0, entries(2, 3), 1, 2))
    node._onTick()
    assert len(node.applied) == 1
    node.receive("C", type="append_entries", term=2, commit_index=2000, serialized=None)
    node._onTick()
    assert len(node.applied) == 2, "entry 3 was never compared with the new leader's"


def test_rule_02_a_repeated_short_message_cuts_what_is_committed(clock: type[Clock]) -> None:
    node = Stock("B", "AC")
    node.receive("A", **append(1, 0, entries(2, 6), 1, 6))
    node._onTick()
    assert node.raftLastApplied == 6
    node.receive("A", **append(1, 0, entries(2, 2), 1, 6))
    assert (node.log_end(), node.raftCommitIndex) == (2, 2)


def test_rule_04_a_restart_forgets_the_members_in_the_log(
    clock: type[Clock], tmp_path: Path
) -> None:
    journal = str(tmp_path / "journal")
    node = Stock("B", "AC", journalFile=journal)
    added = [(b"\x02" + pickle.dumps(["add", name, Node(name)])) for name in "DE"]
    node.receive("A", **append(1, 0, [(added[0], 2, 1), (added[1], 3, 1)], 1, 1))
    assert node.members() == ["A", "C", "D", "E"]
    node._doDestroy()
    node = Stock("B", "AC", journalFile=journal)
    assert (node.members(), node.log_end()) == (["A", "C"], 3)
    node.wire._onNodeConnected(Node("A"))
    clock.now += 5
    node._onTick()
    node.receive("A", type="response_vote", term=node.raftCurrentTerm)
    assert node._isLeader(), "with two votes of five"
    node._doDestroy()


def test_rule_05_a_late_apply_brings_a_removed_member_back(clock: type[Clock]) -> None:
    node = Stock("B", "AC")
    node._SyncObj__doApplyCommand = super(Stock, node)._SyncObj__doApplyCommand
    add = b"\x02" + pickle.dumps(["add", "X", Node("X")])
    remove = b"\x02" + pickle.dumps(["rem", "X", Node("X")])
    node.receive("A", **append(1, 0, [(add, 2, 1), (remove, 3, 1)], 1, 2))
    assert node.members() == ["A", "C"]
    node._onTick()
    assert node.members() == ["A", "C", "X"]


def test_rule_06_a_start_drops_the_entries_behind_the_snapshot(
    clock: type[Clock], tmp_path: Path
) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"x")
    loaded = ((b"\x00c", 5, 1), (b"\x00c", 4, 1), [Node(name) for name in "ABC"])
    node = Stock(
        "B",
        "AC",
        fullDumpFile=str(dump),
        serializer=lambda path, data: None,
        deserializer=lambda path: loaded,
        serializeChecker=lambda: SERIALIZER_STATE.NOT_SERIALIZING,
    )
    log = node.field("raftLog")
    log.clear()
    for entry in entries(2, 10):
        log.add(*entry)
    node._onTick()
    assert (log[0][1], log[-1][1]) == (4, 5), "entries 6 to 10 were acknowledged"


def test_rule_08_a_hook_that_has_not_finished_replaces_the_good_snapshot(
    clock: type[Clock], tmp_path: Path
) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"good")

    def begin(path: str, data: object) -> None:
        Path(path).write_bytes(b"partial")

    state = [SERIALIZER_STATE.NOT_SERIALIZING]
    node = Stock(
        "B",
        "AC",
        fullDumpFile=str(dump),
        serializer=begin,
        deserializer=lambda path: None,
        serializeChecker=lambda: state[0],
    )
    node._SyncObj__needLoadDumpFile = False
    node.receive("A", **append(1, 0, entries(2, 10), 1, 10))
    node._onTick()
    node.forceLogCompaction()
    node._onTick()
    state[0] = SERIALIZER_STATE.SERIALIZING
    assert dump.read_bytes() == b"partial"


def test_rule_09_one_voter_counts_twice_and_a_stranger_counts(clock: type[Clock]) -> None:
    node = campaigning(clock, "BCDF")
    for _ in range(2):
        node.receive("B", type="response_vote", term=node.raftCurrentTerm)
    assert node._isLeader(), "a leader of five with one voter"
    node = campaigning(clock, "BC")
    node.receive("Z", type="response_vote", term=node.raftCurrentTerm)
    assert node._isLeader(), "a leader by the vote of a stranger"


def test_rule_12_a_lone_node_commits_in_the_tick_that_writes(clock: type[Clock]) -> None:
    node = Stock("A", "")
    clock.now += 5
    node._onTick()
    assert (node.log_end(), node.raftCommitIndex, node.raftLastApplied) == (2, 2, 2)


def test_rule_21_stale_messages_are_dropped_in_silence(clock: type[Clock]) -> None:
    node = Stock("B", "AC")
    node._SyncObj__raftCurrentTerm = 7
    assert node.receive("A", **append(1, 0, [], 3, 1)) == []
    vote = {"type": "request_vote", "term": 3, "last_log_index": 9, "last_log_term": 3}
    assert node.receive("C", **vote) == []
    node = leading(clock)
    node.receive("B", type="next_node_idx", next_node_idx=3, reset=False, success=True)
    assert "term" not in node.receive("B", **append(9, 9, [], node.raftCurrentTerm + 1, 1))[0]


def test_rule_24_an_old_acknowledgement_moves_next_back(clock: type[Clock]) -> None:
    node = leading(clock)
    for _ in range(5):
        node.field("raftLog").add(b"\x00x", node.log_end() + 1, node.raftCurrentTerm)
        node.field("sendAppendEntries")()
    assert node.field("raftNextIndex")[Node("B")] == 8
    node.receive("B", type="next_node_idx", next_node_idx=3, reset=False, success=True)
    assert node.field("raftNextIndex")[Node("B")] == 3


def test_rule_24_a_follower_steps_back_one_index_for_each_message(clock: type[Clock]) -> None:
    node = Stock("B", "AC")
    node.receive("A", **append(1, 0, entries(2, 50, term=1), 1, 1))
    (reply,) = node.receive("C", **append(50, 2, [], 3, 1))
    assert reply["next_node_idx"] == 50, "the whole term 1 will be asked index by index"


def test_rule_28_the_first_commit_after_a_snapshot_walks_from_one(clock: type[Clock]) -> None:
    node = Stock("A", "BC")
    log = node.field("raftLog")
    log.clear()
    log.add(b"\x01", 4999, 1)
    log.add(b"\x01", 5000, 1)
    node._SyncObj__raftLastApplied = 5000
    node._SyncObj__raftCurrentTerm = 1
    for name in "BC":
        node.wire._onNodeConnected(Node(name))
    clock.now += 5
    node._onTick()
    node.receive("B", type="response_vote", term=node.raftCurrentTerm)
    node.receive("B", type="next_node_idx", next_node_idx=5002, reset=False, success=True)
    walked: list[int] = []
    look = node._SyncObj__getEntries
    node._SyncObj__getEntries = lambda first, *more: (walked.append(first), look(first, *more))[1]
    node._onTick()
    assert len(walked) > 4900
    assert node.raftCommitIndex == 5001


def test_rule_28_one_tick_applies_everything(clock: type[Clock]) -> None:
    node = Stock("B", "AC")
    node.receive("A", **append(1, 0, entries(2, 3000), 1, 3000))
    node._onTick()
    assert len(node.applied) == 2999


def test_rule_29_an_answer_of_a_removed_member_breaks_the_leader(clock: type[Clock]) -> None:
    node = leading(clock)
    with pytest.raises(KeyError):
        node.receive("Z", type="next_node_idx", next_node_idx=3, reset=False, success=True)
