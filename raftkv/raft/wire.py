"""The messages between nodes and their codec.

A frame is a little-endian u32 length and that many bytes of msgpack. Every message is a tagged,
array-like struct, so that a new field with a default can be appended and an old node still reads
the message. Nothing is decoded before its length was checked against the limit of its stage:
`HELLO_BYTES_MAX` before the peer is known, `limits.frame_bytes_max` afterwards.

Terms. Every consensus message carries the term of the moment it was made (rule 21), not of the
moment it is flushed. Proposals, read requests and what replicants exchange carry none: they are
judged by whoever leads when they arrive.

What the types say is checked while decoding: no number is negative or larger than what the log can
hold, no entry is empty. So the handlers need not defend themselves against what no node can mean;
what remains is a member that lies with plausible values, and that costs at most a `NodeFault`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from raftkv.errors import RaftkvError

from .epoch import FOUNDED, Epoch

__all__ = [
    "NO_ANSWER",
    "About",
    "Addresses",
    "Append",
    "AppendReply",
    "Consensus",
    "Digests",
    "Feed",
    "FeedConfiguration",
    "FeedSnapshot",
    "Follow",
    "Founded",
    "Hello",
    "LeaderChanged",
    "Liveness",
    "LostEntries",
    "Message",
    "Presence",
    "Progressed",
    "Propose",
    "ProtocolError",
    "ReadReply",
    "ReadRequest",
    "Refusal",
    "Rejected",
    "Relayed",
    "RpcReply",
    "RpcRequest",
    "SnapshotChunk",
    "SnapshotReply",
    "TimeoutNow",
    "Vote",
    "VoteReply",
    "check_terms",
    "decode",
    "encode",
]

PROTOCOL_VERSION = 1

# A greeting holds names and addresses only. Larger ones come from something that is no node.
HELLO_BYTES_MAX = 4096

# The round of an `Append` that needs no answer. Those that need one are numbered from 1.
NO_ANSWER: Final = 0

_LENGTH = struct.Struct("<I")

# Indexes and terms have 16 digits in file names; sizes and counters need no more.
NUMBER_MAX: Final = 10**16 - 1

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
"""An index, a term, a counter, a size or a time: never negative."""

Nonce = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Of a `NodeUp`, 0 for none; or the number of a command, which that is in session 0."""

Payload = Annotated[bytes, msgspec.Meta(min_length=1)]
"""Of an entry: its first byte is its kind, so there is one."""


class ProtocolError(RaftkvError):
    """The peer sent something that no node sends. The connection is closed, nothing else."""

    code = "protocol_error"


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pass


class About(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a node tells of its software. Raftkv 0.1.0 sends none, and passes it over.

    `formats` are the newest that the sender knows, as (name, version) pairs; the core format is
    called "core". `process` is a random token of the running process. `bootstrap` is a digest of
    the core names in the sender's configuration file. An empty text is unknown, not different.
    """

    software: str = ""
    formats: list[tuple[str, Number]] = []
    process: str = ""
    bootstrap: str = ""

    @property
    def core_format(self) -> int:
        """The newest core format that the sender knows."""
        return max((version for name, version in self.formats if name == "core"), default=1)


class Hello(_Message, frozen=True, tag=1):
    """The first frame in both directions. `purpose`: raft, follow or rpc (the dialler's wish).

    `wanted` is the name of whom the dialler means; "" in an answer. `member`: the sender's own log
    has it as a member, under this very raft id. `about` is None from raftkv 0.1.0.
    """

    version: Number
    purpose: str
    cluster: str
    cluster_id: str
    raft_id: str
    role: str
    peer_address: str
    epoch: Epoch = FOUNDED
    wanted: str = ""
    member: bool = False
    about: About | None = None

    @property
    def core_format(self) -> int:
        """The newest core format that the sender knows; a node of raftkv 0.1.0 knows the first."""
        return 1 if self.about is None else self.about.core_format


class Refusal(_Message, frozen=True, tag=2):
    """Instead of a Hello: why the acceptor will not talk. `code` is that of an error class."""

    code: str
    reason: str


class Founded(_Message, frozen=True, tag=3):
    """The founder tells a core that has no cluster yet which one it belongs to from now on."""

    cluster_id: str


class Addresses(_Message, frozen=True, tag=4):
    """A core tells another where its peers are by their own word: (name, address) pairs."""

    pairs: list[tuple[str, str]]


class Vote(_Message, frozen=True, tag=10):
    term: Number
    attempt: Number
    last_index: Number
    last_term: Number
    pre_vote: bool
    transfer: bool


class VoteReply(_Message, frozen=True, tag=11):
    """`term` is the voter's own; `asked_term` and `attempt` repeat the question's."""

    term: Number
    asked_term: Number
    attempt: Number
    pre_vote: bool
    granted: bool


class Append(_Message, frozen=True, tag=12):
    """Entries behind (prev_index, prev_term); a heartbeat if there are none.

    `round` numbers what the leader sends and is echoed; with NO_ANSWER the receiver answers only if
    it refuses (an older version echoes that, too, and it counts for nothing). `lease_ms`: for so
    long after this message the receiver is to elect nobody else.
    """

    term: Number
    prev_index: Number
    prev_term: Number
    commit: Number
    round: Number
    entries: list[tuple[Number, Payload]]
    lease_ms: Number = 0


class AppendReply(_Message, frozen=True, tag=13):
    """accepted: `index` is durably matched. Else `index` echoes prev; the hints say where to go.

    `lease_ms`: for so long after the message that it answers, the sender elects nobody else.
    """

    term: Number
    accepted: bool
    index: Number
    round: Number
    hint_term: Number
    hint_index: Number
    lease_ms: Number = 0


class SnapshotChunk(_Message, frozen=True, tag=14):
    """A piece of a snapshot file: bytes from `offset`, with their own checksum."""

    term: Number
    snapshot_id: str
    index: Number
    snapshot_term: Number
    size_bytes: Number
    offset: Number
    crc: Number
    data: bytes


class SnapshotReply(_Message, frozen=True, tag=15):
    """`offset` is wanted next; `done` once installed (or known to be committed anyway)."""

    term: Number
    snapshot_id: str
    index: Number
    offset: Number
    done: bool


class TimeoutNow(_Message, frozen=True, tag=16):
    """The leader hands its office over: campaign at once."""

    term: Number


class Propose(_Message, frozen=True, tag=20):
    """Encoded commands on their way to the leader."""

    commands: list[bytes]


class ReadRequest(_Message, frozen=True, tag=21):
    number: Number


class ReadReply(_Message, frozen=True, tag=22):
    """`index` to wait for, or 0: this node could not confirm; ask again."""

    number: Number
    index: Number


class Liveness(_Message, frozen=True, tag=23):
    """A core tells the leader which replicants it feeds (names), so that none looks dead."""

    names: list[str]


class Presence(_Message, frozen=True, tag=24):
    """Sent once in a report period on every consensus link and learner stream, from core format 2.

    `incarnation` and `nonce` are the sender's: 0 as long as it has no session, and then the nonce
    of the `NodeUp` with which it asks for one. A leader numbers its periods in (term, round);
    what the others send repeats the numbers that came last from the leader. `heard`, to a leader
    only: of each node that this core has heard in the period, its name, incarnation and nonce.
    """

    incarnation: Number
    nonce: Nonce
    term: Number = 0
    round: Number = 0
    heard: list[tuple[str, Number, Nonce]] = []


class Digests(_Message, frozen=True, tag=25):
    """Digests of the sender's state at `index`, on consensus links, from core format 2.

    The sender's cluster and epoch are those of the link. `core_format` is the one in force at
    `index`. `code` names what decides what `apply` does: the versions of the sender's software.
    """

    index: Number
    core_format: Number
    code: str
    tables: list[tuple[str, bytes]]


class LostEntries(_Message, frozen=True, tag=26):
    """A leader tells a core that it no longer holds what it had acknowledged, up to `index`.

    Only from core format 2 on, and to nodes that know it.
    """

    term: Number
    index: Number


class Rejected(_Message, frozen=True, tag=27):
    """A proposed command was left out; `code` is that of an error class. One copy of it is meant.

    `origin` is that of the `Relayed` in which it came, else "". Only from core format 2 on: nodes
    of release 0.1.0 do not know it.
    """

    session: Number
    seq: Nonce
    code: str
    reason: str
    origin: str = ""


class Relayed(_Message, frozen=True, tag=28):
    """Encoded commands on their way to the leader, from a core that `origin` copies from.

    Only from core format 2 on; before it a `Propose` takes its place.
    """

    commands: list[bytes]
    origin: str


class Follow(_Message, frozen=True, tag=30):
    """A replicant asks for everything behind (index, term), which it has applied."""

    index: Number
    term: Number


class Feed(_Message, frozen=True, tag=31):
    """Committed entries behind (prev_index, prev_term) and the upstream's commit index."""

    prev_index: Number
    prev_term: Number
    commit: Number
    entries: list[tuple[Number, Payload]]


class FeedSnapshot(_Message, frozen=True, tag=32):
    """A piece of a snapshot's content for a replicant; `last` ends it."""

    index: Number
    term: Number
    number: Number
    last: bool
    data: bytes


class Progressed(_Message, frozen=True, tag=33):
    """The replicant has applied up to `index`; flow control and lag."""

    index: Number


class LeaderChanged(_Message, frozen=True, tag=34):
    """The upstream's view: the leader's name ("" if none), its term, milliseconds since heard."""

    leader: str
    term: Number
    age_ms: Number


class FeedConfiguration(_Message, frozen=True, tag=35):
    """The configuration in force at `index`, which the replicant stands at or will soon.

    `since` is the index of the entry that holds it; 0: not known to the upstream. Only from core
    format 2 on: nodes of release 0.1.0 do not know it.
    """

    index: Number
    configuration: bytes
    since: Number


class RpcRequest(_Message, frozen=True, tag=40):
    number: Number
    method: str
    payload: bytes


class RpcReply(_Message, frozen=True, tag=41):
    """`error` is empty, or the code of an error; `payload` is then its text."""

    number: Number
    error: str
    payload: bytes


Message = (
    Hello
    | Refusal
    | Founded
    | Addresses
    | Vote
    | VoteReply
    | Append
    | AppendReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
    | Propose
    | ReadRequest
    | ReadReply
    | Liveness
    | Presence
    | Rejected
    | Relayed
    | Digests
    | LostEntries
    | Follow
    | Feed
    | FeedSnapshot
    | FeedConfiguration
    | Progressed
    | LeaderChanged
    | RpcRequest
    | RpcReply
)

# What goes through the engine's inbox. Each carries a term.
Consensus = Vote | VoteReply | Append | AppendReply | SnapshotChunk | SnapshotReply | TimeoutNow

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def check_terms(prev_term: int, entries: Sequence[tuple[int, bytes]], term: int) -> None:
    """Terms never fall along a log, nor exceed that of who sends it. Raises ProtocolError."""
    for entry_term, _ in entries:
        if entry_term < prev_term:
            raise ProtocolError(f"an entry of term {entry_term} behind one of term {prev_term}")
        prev_term = entry_term
    if prev_term > term:
        raise ProtocolError(f"an entry of term {prev_term} in a message of term {term}")


def encode(message: Message) -> bytes:
    """A whole frame, ready to be written."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray | memoryview) -> Message:
    """The message in a frame's body. Raises `ProtocolError` for anything else."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a message of this protocol: {error}") from None


class Frames:
    """Cuts a byte stream into frame bodies. `limit` may be raised once the peer is known."""

    __slots__ = ("_buffer", "limit")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self.limit = limit

    @property
    def waiting_bytes(self) -> int:
        """What is kept until the rest of its frame arrives: never more than one frame."""
        return len(self._buffer)

    def feed_one(self, data: bytes) -> bytes | None:
        """The first frame alone, once complete; what follows it stays for `feed`."""
        self._buffer += data
        if len(self._buffer) < 4:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, 0)
        if length > self.limit:
            raise ProtocolError(f"a frame of {length} bytes exceeds the limit {self.limit}")
        if len(self._buffer) - 4 < length:
            return None
        body = bytes(memoryview(self._buffer)[4 : 4 + length])
        del self._buffer[: 4 + length]
        return body

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by `data`. Raises `ProtocolError` for an oversized length."""
        buffer = self._buffer
        buffer += data
        found: list[bytes] = []
        start, end = 0, len(buffer)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self.limit:
                raise ProtocolError(f"a frame of {length} bytes exceeds the limit {self.limit}")
            if end - start - 4 < length:
                break
            found.append(bytes(memoryview(buffer)[start + 4 : start + 4 + length]))
            start += 4 + length
        if start:
            del buffer[:start]
        return found
