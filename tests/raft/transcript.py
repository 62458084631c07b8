"""Transcripts: a few engines, commands from a text file, and every message that they send.

    expire a                    <- a command
    ----
    a->b pre-vote t2 #1 ...     <- all that it leads to, in order
    a: follower t1              <- how the nodes changed

A transcript shows a reader how the protocol goes, message by message, and a change of the protocol
as a change of a text. `pytest tests/raft/test_transcripts.py --rewrite` writes all outputs anew:
commit them only if you understand each difference.

Commands (n, m are nodes; what a node sends waits on its way until it is delivered):

    nodes a b c [learners d] [lease MS] [tail N] [b=1,1,2]  engines; here b holds entries 3, 4, 5
    time S [n...]        the clocks of all (or these) nodes advance; timers fire
    expire n             n's clock advances to its election deadline
    deliver [n->m...]    what is on its way now (there) arrives, in order
    stabilize            deliver until nothing is on its way
    drop [n->m...]       what is on its way now (there) is lost
    cut n m / join n m   the stream between two nodes is reset / there is a new one
    silence n m          what they send each other is lost, unnoticed, until `heal`
    crash n              power cut and restart
    disk n hold|go       n's writes do not return / return again
    propose n TEXT, read n TOKEN, hand-over n, snapshot n
    add n m, promote n m, remove n m        asked of n: m becomes a copy, a voter, is removed
    show                 the nodes' states; log n: its entries
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from raftkv.config import Limits, RaftTimes
from raftkv.errors import MembershipRefused
from raftkv.raft import changing, wire
from raftkv.raft.engine import CONFIGURATION, NO_OP
from raftkv.raft.membership import Configuration, decode, name_of
from raftkv.raft.recovery import recover
from raftkv.testing.disk import SimDisk
from tests.fakes import FakeRuntime
from tests.raft.harness import (
    DIRECTORY,
    RecordingApplication,
    batch,
    make_engine,
    write_log,
)

__all__ = ["Transcript", "replay"]

# More rounds of messages than this are a conversation that never ends.
ROUNDS_MAX = 60


def raft_id(name: str) -> str:
    return f"{name}-1"


def names(members: Sequence[str]) -> str:
    return " ".join(name_of(member) for member in members)


def entry(payload: bytes) -> str:
    """The content of an entry, for a reader."""
    if payload[0] == NO_OP:
        return "no-op"
    if payload[0] == CONFIGURATION:
        configuration = decode(payload[1:])
        copies = f" copies {names(configuration.learners)}" if configuration.learners else ""
        return f"voters {names(configuration.voters)}{copies}"
    return repr(payload[1:].decode())


def told(message: wire.Message) -> str:
    """One message in one line."""
    match message:
        case wire.Vote():
            kind = "pre-vote" if message.pre_vote else "vote"
            by = " by transfer" if message.transfer else ""
            at = f"{message.last_index}/{message.last_term}"
            return f"{kind} t{message.term} #{message.attempt}, log ends at {at}{by}"
        case wire.VoteReply():
            kind = "pre-vote" if message.pre_vote else "vote"
            verdict = "granted" if message.granted else "refused"
            return f"{verdict}: {kind} t{message.asked_term} #{message.attempt}; my t{message.term}"
        case wire.Append():
            entries = [
                f"{message.prev_index + place}/{term} {entry(payload)}"
                for place, (term, payload) in enumerate(message.entries, 1)
            ]
            lease = f" lease {message.lease_ms}" if message.lease_ms else ""
            head = f"append t{message.term} behind {message.prev_index}/{message.prev_term}"
            tail = f"commit {message.commit} round {message.round}{lease}"
            return f"{head} [{', '.join(entries)}] {tail}"
        case wire.AppendReply():
            lease = f" lease {message.lease_ms}" if message.lease_ms else ""
            tail = f"; t{message.term} round {message.round}{lease}"
            if message.accepted:
                return f"holds up to {message.index}{tail}"
            if not message.hint_index:
                return f"your term is over{tail}"
            hint = f"term {message.hint_term} from {message.hint_index}"
            return f"does not hold {message.index}, has {hint}{tail}"
        case wire.SnapshotChunk():
            at = f"{message.index}/{message.snapshot_term}"
            size = f"{message.offset}+{len(message.data)} of {message.size_bytes}"
            return f"snapshot {at} t{message.term} bytes {size}"
        case wire.SnapshotReply():
            what = "taken over" if message.done else f"next is {message.offset}"
            return f"snapshot {message.index}: {what}; t{message.term}"
        case wire.TimeoutNow():
            return f"campaign now; t{message.term}"
    raise AssertionError(message)


_BEAT = re.compile(r"(.* (?:\[\] commit \d+|holds up to \d+; t\d+)) round (\d+)(.*)")


def _condensed(lines: Sequence[str]) -> list[str]:
    """Heartbeats, and answers to them, that differ by their round only are one line."""
    found: dict[str, list[str]] = {}
    for line in lines:
        match = _BEAT.fullmatch(line)
        found.setdefault(line if match is None else match[1] + match[3], []).append(line)
    return [
        first if len(same) == 1 else f"{first}, {len(same)} times, up to round {last}"
        for first, same, last in ((s[0], s, _round(s[-1])) for s in found.values())
    ]


def _round(line: str) -> str:
    match = _BEAT.fullmatch(line)
    return "" if match is None else match[2]


class Stream:
    """One end of a stream: what is sent here waits on its way."""

    def __init__(self, transcript: Transcript, source: str, target: str) -> None:
        self._transcript = transcript
        self.source, self.target = source, target
        self.peer_id = raft_id(target)
        self.unsent_bytes = 0
        self.delivered: Any = None

    def send_frame(self, frame: bytes) -> None:
        self._transcript.sent(self, wire.decode(frame[4:]))

    def close(self) -> None:
        self._transcript.cut(self.source, self.target)


class Member:
    """One engine with its clock and disk."""

    def __init__(self, name: str, disk: SimDisk, limits: Limits, times: RaftTimes) -> None:
        self.name = name
        self.disk = disk
        self._limits, self._times = limits, times
        self.held = False
        self.now = 1000.0
        self.lives = 0
        self.begin()

    def begin(self) -> None:
        """A life of the process, with what is on the disk."""
        self.lives += 1
        self.runtime = FakeRuntime(self.disk, seed=ord(self.name) * 100 + self.lives, now=self.now)
        self.application = RecordingApplication()
        recovered = recover(self.disk, DIRECTORY, self._limits, fsync=True, belongs=False)
        self.store = recovered.store
        self.engine = make_engine(
            raft_id(self.name),
            recovered,
            self.application,
            self.runtime,
            self._limits,
            self._times,
        )
        self.engine.start()
        self.seen = self.state()

    def settle(self) -> None:
        if self.held:
            self.runtime.run()
        else:
            self.runtime.settle()

    def state(self) -> dict[str, Any]:
        engine, application = self.engine, self.application
        leader = "nobody" if engine.leader is None else name_of(engine.leader)
        role = engine.role_name if engine.leading or engine.role == 1 else f"follows {leader}"
        return {
            "role": f"{role} t{engine.term}",
            "commit": f"commit {engine.commit}",
            "voters": f"voters {names(engine.configuration.voters)}",
            "copies": f"copies {names(engine.configuration.learners) or 'none'}",
            "lease": "holds the lease" if engine.holds_lease else "holds no lease",
            "reads": f"reads {application.confirmed}",
            "failed": f"reads failed {application.failed}",
            "faults": f"fault {[type(fault).__name__ for fault in application.faults]}",
        }


class Transcript:
    """The nodes of one file and what is on its way between them."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._way: dict[tuple[str, str], list[wire.Message]] = {}
        self._silent: set[frozenset[str]] = set()
        self._out: list[str] = []

    def run(self, line: str) -> str:
        """Carry out one command; what it led to."""
        self._out = []
        verb, *words = line.split()
        handler: Callable[..., None] = getattr(self, "do_" + verb.replace("-", "_"))
        try:
            handler(*words)
        except MembershipRefused as refusal:
            self._out.append(f"refused: {refusal}")
        self._settle()
        if verb not in ("show", "log"):
            self._changes()
        return "\n".join(_condensed(self._out)) or "ok"

    def sent(self, stream: Stream, message: wire.Message) -> None:
        pair = (stream.source, stream.target)
        lost = " (lost)" if frozenset(pair) in self._silent else ""
        self._out.append(f"{stream.source}->{stream.target} {told(message)}{lost}")
        if not lost:
            self._way.setdefault(pair, []).append(message)

    def _settle(self) -> None:
        for member in self.members.values():
            member.settle()

    def _changes(self) -> None:
        for member in self.members.values():
            before, member.seen = member.seen, member.state()
            news = [text for key, text in member.seen.items() if text != before[key]]
            if news:
                self._out.append(f"{member.name}: {', '.join(news)}")

    # -- commands

    def do_nodes(self, *words: str) -> None:
        voters, learners, logs, lease_ms, tail = [], [], {}, 0, 10_000
        rest = list(words)
        kind = voters
        while rest:
            word = rest.pop(0)
            if word == "learners":
                kind = learners
            elif word == "lease":
                lease_ms = int(rest.pop(0))
            elif word == "tail":
                tail = int(rest.pop(0))
            elif "=" in word:
                name, _, terms = word.partition("=")
                logs[name] = [int(term) for term in terms.split(",")]
            else:
                kind.append(word)
        limits = Limits(log_tail_entries=tail, snapshot_chunk_bytes=100)
        times = RaftTimes(lease_ms=lease_ms)
        configuration = Configuration(tuple(map(raft_id, voters)), tuple(map(raft_id, learners)))
        for name in [*voters, *learners]:
            disk = SimDisk(random.Random(1))
            terms = logs.get(name, [])
            log = [(term, batch(f"{index}")) for index, term in enumerate(terms, 3)]
            write_log(disk, configuration, log, max([1, *terms]))
            self.members[name] = Member(name, disk, limits, times)
        for name in self.members:
            for other in self.members:
                if name < other:
                    self.do_join(name, other)
        self._settle()
        self.do_show()

    def do_time(self, seconds: str, *who: str) -> None:
        """In small steps, so that nodes act in the order of their clocks."""
        left = float(seconds)
        while left > 0:
            step = min(left, 0.01)
            for name in who or self.members:
                member = self.members[name]
                member.runtime.advance(step)
                member.settle()
            left -= step

    def do_expire(self, name: str) -> None:
        member = self.members[name]
        member.runtime.advance(member.engine.campaigning.deadline.at - member.runtime.now)

    def _pairs(self, edges: Sequence[str]) -> list[tuple[str, str]]:
        if not edges:
            return sorted(self._way)
        return [(edge.split("->")[0], edge.split("->")[1]) for edge in edges]

    def do_deliver(self, *edges: str) -> None:
        arriving = [(pair, self._way.pop(pair, [])) for pair in self._pairs(edges)]
        for (source, target), messages in arriving:
            for message in messages:
                member = self.members[target]
                link = member.engine.links.get(raft_id(source))
                if link is None:
                    continue  # it has been closed meanwhile
                member.engine.receive(link, message)  # type: ignore[arg-type]
                member.engine.kick()
                member.settle()

    def do_stabilize(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not any(self._way.values()):
                return
            self.do_deliver()
            self._settle()
        raise AssertionError("the nodes never come to rest")

    def do_drop(self, *edges: str) -> None:
        for pair in self._pairs(edges):
            self._way.pop(pair, None)

    def cut(self, name: str, other: str) -> None:
        for source, target in ((name, other), (other, name)):
            self._way.pop((source, target), None)
            engine = self.members[source].engine
            link = engine.links.get(raft_id(target))
            if link is not None:
                engine.link_down(link)

    do_cut = cut

    def do_join(self, name: str, other: str) -> None:
        for source, target in ((name, other), (other, name)):
            stream: Any = Stream(self, source, target)
            self.members[source].engine.link_up(stream)

    def do_silence(self, name: str, other: str) -> None:
        self._silent.add(frozenset((name, other)))

    def do_heal(self) -> None:
        self._silent.clear()

    def do_crash(self, name: str) -> None:
        others = [other for other in self.members if other != name]
        connected = [o for o in others if raft_id(o) in self.members[name].engine.links]
        member = self.members[name]
        member.engine.stop()
        member.now = member.runtime.now
        for other in connected:
            self.cut(name, other)
        member.disk.crash()
        member.begin()
        for other in connected:
            self.do_join(name, other)

    def do_disk(self, name: str, how: str) -> None:
        self.members[name].held = how == "hold"

    def do_propose(self, name: str, text: str) -> None:
        if not self.members[name].engine.propose([text.encode()]):
            self._out.append("refused: it does not lead")

    def do_read(self, name: str, token: str) -> None:
        if not self.members[name].engine.read_index(token):
            self._out.append("refused: it does not lead")

    def do_hand_over(self, name: str) -> None:
        if not self.members[name].engine.hand_over():
            self._out.append("refused: nobody can take the office")

    def do_snapshot(self, name: str) -> None:
        self.members[name].engine.snapshotting.begin()

    def do_add(self, name: str, other: str) -> None:
        self._change(name, changing.add_learner, other)

    def do_promote(self, name: str, other: str) -> None:
        self._change(name, changing.promote, other)

    def do_remove(self, name: str, other: str) -> None:
        self._change(name, changing.remove, other)

    def _change(self, name: str, change: Callable[..., Configuration], other: str) -> None:
        engine = self.members[name].engine
        engine.change_configuration(change(engine.configuration, raft_id(other)), force=False)

    def do_show(self) -> None:
        for name, member in self.members.items():
            state = member.state()
            shown = [state[key] for key in ("role", "commit", "voters")]
            if member.engine.configuration.learners:
                shown.append(state["copies"])
            self._out.append(f"{name}: {', '.join(shown)}")

    def do_log(self, name: str) -> None:
        wal = self.members[name].engine.wal
        entries = [f"{e.index}/{e.term} {entry(e.payload)}" for e in wal.entries(wal.first_index)]
        self._out.append(f"behind {wal.base_index}/{wal.base_term}: {', '.join(entries)}")


_BLOCK = re.compile(r"((?:^#.*\n|^\n)*)^(?!#)(.+)\n----\n((?:.+\n)*)", re.MULTILINE)


def replay(text: str) -> str:
    """The same file with the outputs that its commands really have."""
    transcript = Transcript()
    written = []
    end = 0
    for match in _BLOCK.finditer(text):
        assert match.start() == end, f"not understood: {text[end : match.start()]!r}"
        comments, command, _ = match.groups()
        written.append(f"{comments}{command}\n----\n{transcript.run(command)}\n")
        end = match.end()
    assert not text[end:].strip(), f"not understood: {text[end:]!r}"
    return "".join(written)
