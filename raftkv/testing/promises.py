"""What nodes have promised to each other, against what their disks would still say after a crash.

A vote, a term and an acknowledgement are promises the moment they leave the node. This file reads
every frame that a core hands to a link, keeps the promises in it, and compares them with the
*platter* of the simulated disk: the bytes that survive a power failure at this very moment. It does
not ask the code under test whether something is durable; it searches for the encoded record.

- *Promise on disk*: a vote that leaves is on the platter; so is the last entry that an
  acknowledgement covers (one in `SAMPLE` is looked up).
- *Acknowledged what the leader has*: the last entry that an acknowledgement covers is the one
  that the leader of that term has, if it still leads. None leaves after its term has ended.
- *Quorum on disk*: what a leader commits is on the platters of a majority of the voters (sampled),
  and a majority of them has acknowledged it. Who votes is given by the log (observer.py).
- *Votes*: nobody votes for two candidates in one term.
- *Nothing promised is forgotten*: after a restart, term and vote are at least what was promised,
  and the log reaches as far as was acknowledged.

A promise is made by a raft id, not by a name: a core whose disk was wiped comes back as somebody
new, who has promised nothing, and what the old one had promised binds nobody any more.

With `fsync` off nobody promises anything to a disk, and only votes are compared.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from raftkv.raft import wire
from raftkv.raft.membership import Configuration, name_of
from raftkv.raft.records import entry_record, hard_state_record
from raftkv.raft.transport import Link
from raftkv.raft.wal import Entry
from raftkv.testing.current import running_host
from raftkv.testing.disk import SimDisk
from raftkv.testing.marks import Marks
from raftkv.testing.patching import around
from raftkv.testing.world import World

if TYPE_CHECKING:
    from raftkv.raft.engine import Engine

__all__ = ["Promises"]

# Tags of messages, the second byte of a frame's body: of Vote, VoteReply, Append and AppendReply,
# of SnapshotReply and TimeoutNow.
VOTE, VOTE_REPLY, APPEND, APPEND_REPLY, SNAPSHOT_REPLY, TIMEOUT_NOW = 10, 11, 12, 13, 15, 16
TAG_AT = 5
# One entry in so many is searched for on the disks: a search costs more than all other checks of
# an entry together. A prime, so that it falls into no step with batches.
SAMPLE = 5
# What tells a record from others: more than the head of an entry.
HEAD_BYTES = 24


class _Promised:
    """By one raft id, in all its lives."""

    __slots__ = ("index", "term", "votes")

    def __init__(self) -> None:
        self.term = 0
        self.votes: dict[int, str] = {}
        self.index = 0


class Promises:
    """See the module's text."""

    def __init__(
        self,
        world: World,
        violated: Callable[[str, str], NoReturn],
        marks: Marks,
        *,
        leader_of: Callable[[int], Engine | None],
        base_of: Callable[[str], int],
        synced: bool,
    ) -> None:
        self._world = world
        self._violated = violated
        self._marks = marks
        self._leader_of = leader_of
        # Of the log on a host: a snapshot holds what comes before it.
        self._base_of = base_of
        self._synced = synced
        self._by_id: dict[str, _Promised] = {}
        # By host: what had been promised when a copy of a core's directory was put there.
        self._copied: dict[str, _Promised] = {}
        # Raft ids whose disks were wiped: nothing can be looked up there.
        self.wiped: set[str] = set()

    def installed(self) -> contextlib.AbstractContextManager[None]:
        """While entered, every frame that leaves is read."""
        return around(Link, "send_frame", self._wrap_send)

    def voted(self, raft_id: str, term: int) -> str | None:
        """The raft id that this one has promised its vote of this term to."""
        return self._of(raft_id).votes.get(term)

    def acknowledged(self, raft_id: str) -> int:
        """The last entry that this raft id has acknowledged."""
        return self._of(raft_id).index

    def rolled_back(self, raft_id: str) -> None:
        """Its disk holds what it held some time ago (rollback.py): nothing is asked of it."""
        self._by_id[raft_id] = _Promised()

    def copied(self, raft_id: str, host: str) -> None:
        """`host` holds a copy of what is durable now: it owes no promise that is made later."""
        held, copy = self._of(raft_id), _Promised()
        copy.term, copy.votes, copy.index = held.term, dict(held.votes), held.index
        self._copied[host] = copy

    def _of(self, raft_id: str) -> _Promised:
        promised = self._by_id.get(raft_id)
        if promised is None:
            promised = self._by_id[raft_id] = _Promised()
        return promised

    # -- frames that leave

    def _wrap_send(self, original: Callable[..., None]) -> Callable[..., None]:
        def send_frame(link: Link, frame: bytes) -> None:
            tag = frame[TAG_AT]
            if link.purpose == "raft" and VOTE <= tag <= APPEND_REPLY:
                self._leaves(running_host(), link, frame)
            elif tag == SNAPSHOT_REPLY:
                self._installed(link, frame)
            elif tag == TIMEOUT_NOW:
                self._marks.hit("office offered")
            original(link, frame)

        return send_frame

    def _leaves(self, name: str, link: Link, frame: bytes) -> None:
        engine: Engine = link._hub.owner.engine  # type: ignore[attr-defined]
        tag = frame[TAG_AT]
        if tag == APPEND:
            # Its first field is the term; the rest may be long.
            term = frame[TAG_AT + 1]
            if term < 0x80:
                self._term(engine.me, term)
            return
        message = wire.decode(frame[4:])
        if isinstance(message, wire.Vote) and not message.pre_vote:
            self._term(engine.me, message.term)
            self._vote(name, engine, message.term, engine.me)
        elif isinstance(message, wire.VoteReply):
            self._term(engine.me, message.term)
            kind = "pre-vote" if message.pre_vote else "vote"
            if message.granted and not message.pre_vote:
                self._vote(name, engine, message.asked_term, link.peer_id)
            elif message.granted:
                self._marks.hit("pre-vote granted")
            else:
                self._marks.hit(f"{kind} refused")
        elif isinstance(message, wire.AppendReply):
            self._term(engine.me, message.term)
            if message.accepted and message.term < engine.term:
                self._violated(
                    "acknowledged what the leader has",
                    f"{name} acknowledges entry {message.index} to the leader of term "
                    f"{message.term}, and is in term {engine.term}",
                )
            if message.accepted:
                self._acknowledged(name, engine, message.index)
            else:
                self._marks.hit("append refused")

    def _installed(self, link: Link, frame: bytes) -> None:
        """The answer to the last chunk promises what the snapshot covers, or what is committed."""
        message = wire.decode(frame[4:])
        if isinstance(message, wire.SnapshotReply) and message.done:
            engine: Engine = link._hub.owner.engine  # type: ignore[attr-defined]
            promised = self._of(engine.me)
            promised.index = max(promised.index, message.index)

    def _term(self, raft_id: str, term: int) -> None:
        promised = self._of(raft_id)
        if term > promised.term:
            promised.term = term

    def _vote(self, name: str, engine: Engine, term: int, candidate: str) -> None:
        votes = self._of(engine.me).votes
        if votes.setdefault(term, candidate) != candidate:
            self._violated(
                "one vote per term",
                f"{name} votes for {candidate} in term {term}, after {votes[term]}",
            )
        if self._synced and not self._on_platter(name, hard_state_record(term, candidate)):
            self._violated(
                "promise on disk",
                f"{name}'s vote for {candidate} in term {term} leaves before it is on the disk",
            )

    def _acknowledged(self, name: str, engine: Engine, index: int) -> None:
        """An acknowledgement of the engine's term, which is the last one it has heard of."""
        promised, wal = self._of(engine.me), engine.wal
        if index > wal.last_index:
            self._violated(
                "promise on disk",
                f"{name} acknowledges entry {index}; its log ends at {wal.last_index}",
            )
        leader = self._leader_of(engine.term)
        terms = (wal.term_at(index), None if leader is None else leader.wal.term_at(index))
        if None not in terms and terms[0] != terms[1]:
            self._violated(
                "acknowledged what the leader has",
                f"{name} acknowledges entry {index} of term {terms[0]} to the leader of term "
                f"{engine.term}, whose entry is of term {terms[1]}",
            )
        promised.index = max(promised.index, index)
        looked_up = self._synced and index % SAMPLE == 0 and index > wal.base_index
        if looked_up and not self._holds(name, wal.entries(index, index)[0]):
            self._violated(
                "promise on disk", f"{name} acknowledges entry {index}: it is not on the disk"
            )

    # -- commits

    def committed(self, name: str, engine: Engine, index: int, by: Configuration) -> None:
        """The leader on `name` has just committed entries up to `index` by this configuration.

        A distrusted voter counts in the size of the majority, and for nothing else.
        """
        voters, counted = by.voters, [voter for voter in by.voters if by.trusts(voter)]
        told = [v for v in counted if v == engine.me or self._of(v).index >= index]
        if 2 * len(told) <= len(voters):
            self._violated(
                "commit by a majority",
                f"{name} commits entry {index}, which only {told} of {voters} have acknowledged",
            )
        if not self._synced or index % SAMPLE or index <= engine.wal.base_index:
            return
        entry = engine.wal.entries(index, index)[0]
        holding: list[str] = []
        # First those that have acknowledged it. A majority is enough: to find that a record is not
        # on a disk takes a search of all of its log.
        for voter in sorted(counted, key=lambda each: self._of(each).index < index):
            if self._still_holds(voter, entry):
                holding.append(voter)
            if 2 * len(holding) > len(voters):
                return
        self._violated(
            "quorum on disk",
            f"{name} commits entry {index} of term {entry.term}, which is on the disks of "
            f"{[name_of(voter) for voter in holding]} only",
        )

    def _still_holds(self, voter: str, entry: Entry) -> bool:
        """A wiped disk held what it had acknowledged; its old self counts nowhere any more.

        Others may have written a snapshot long since when a leader that stood still commits.
        """
        if voter in self.wiped:
            return self._of(voter).index >= entry.index
        name = name_of(voter)
        return entry.index <= self._base_of(name) or self._holds(name, entry)

    def truncated(self, raft_id: str, index: int) -> None:
        """The node cuts its log from `index` on, as a leader of a newer term told it."""
        promised = self._of(raft_id)
        promised.index = min(promised.index, index - 1)

    # -- restarts

    def recovered(self, name: str, engine: Engine) -> None:
        """A new life of the node has read its disk."""
        if not self._synced:
            return
        promised, wal = self._copied.get(name) or self._of(engine.me), engine.wal
        if engine.term < promised.term:
            self._violated(
                "term and vote on disk",
                f"{name} starts in term {engine.term}, it had spoken in term {promised.term}",
            )
        vote = promised.votes.get(engine.term)
        if vote is not None and engine.vote != vote:
            self._violated(
                "term and vote on disk",
                f"{name} had voted for {vote} in term {engine.term}, its disk says {engine.vote}",
            )
        if wal.last_index < promised.index:
            self._violated(
                "acknowledged entries on disk",
                f"{name} starts with a log up to {wal.last_index}, it had acknowledged "
                f"{promised.index}",
            )

    # -- platters

    def _holds(self, name: str, entry: Entry) -> bool:
        return self._on_platter(name, b"".join(entry_record(*entry)))

    def _on_platter(self, name: str, record: bytes) -> bool:
        disk = self._world.host(name).disk
        for path in self._segments(disk):
            platter = disk.platter(path)
            if platter is not None and _holds_record(platter, record):
                return True
        return False

    @staticmethod
    def _segments(disk: SimDisk) -> Iterator[str]:
        """Newest first: what is asked for was mostly written a moment ago."""
        paths = [path for path in disk.paths() if posixpath.splitext(path)[1] == ".wal"]
        return reversed(paths)


def _holds_record(platter: bytearray, record: bytes) -> bool:
    """Whether the record is there; looked for from the end, where it mostly stands.

    Its head is looked for, which names kind, length and index: a search for a long record takes as
    many steps at each place as it has zeros, where values are made of zeros.
    """
    head = record[:HEAD_BYTES]
    at = platter.rfind(head)
    while at >= 0:
        if platter.startswith(record, at):
            return True
        at = platter.rfind(head, 0, at + len(head) - 1)
    return False
