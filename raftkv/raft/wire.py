"""The messages between nodes and their codec.

A frame is a little-endian u32 length and that many bytes of msgpack. Every message is a tagged,
array-like struct, so that a new field with a default can be appended and an old node still reads
the message. Nothing is decoded before its length was checked against the limit of its stage:
`HELLO_BYTES_MAX` before the peer is known, `limits.frame_bytes_max` afterwards.

Terms. Every consensus message carries the term of the moment it was made (rule 21), not of the
moment it is flushed. Proposals, read requests and what replicants exchange carry none: they are
judged by whoever leads when they arrive.
"""

from __future__ import annotations

import struct

import msgspec

from raftkv.errors import RaftkvError

__all__ = [
    "Append",
    "AppendReply",
    "Consensus",
    "Feed",
    "FeedSnapshot",
    "Follow",
    "Founded",
    "Hello",
    "LeaderChanged",
    "Liveness",
    "Message",
    "Progressed",
    "Propose",
    "ProtocolError",
    "ReadReply",
    "ReadRequest",
    "Refusal",
    "RpcReply",
    "RpcRequest",
    "SnapshotChunk",
    "SnapshotReply",
    "TimeoutNow",
    "Vote",
    "VoteReply",
    "decode",
    "encode",
]

PROTOCOL_VERSION = 1

# A greeting holds names and addresses only. Larger ones come from something that is no node.
HELLO_BYTES_MAX = 4096

_LENGTH = struct.Struct("<I")


class ProtocolError(RaftkvError):
    """The peer sent something that no node sends. The connection is closed, nothing else."""

    code = "protocol_error"


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pass


class Hello(_Message, frozen=True, tag=1):
    """The first frame in both directions. `purpose`: raft, follow or rpc (the dialler's wish)."""

    version: int
    purpose: str
    cluster: str
    cluster_id: str
    raft_id: str
    role: str
    peer_address: str


class Refusal(_Message, frozen=True, tag=2):
    """Instead of a Hello: why the acceptor will not talk. `code` is that of an error class."""

    code: str
    reason: str


class Founded(_Message, frozen=True, tag=3):
    """The founder tells a core that has no cluster yet which one it belongs to from now on."""

    cluster_id: str


class Vote(_Message, frozen=True, tag=10):
    term: int
    attempt: int
    last_index: int
    last_term: int
    pre_vote: bool
    transfer: bool


class VoteReply(_Message, frozen=True, tag=11):
    """`term` is the voter's own; `asked_term` and `attempt` repeat the question's."""

    term: int
    asked_term: int
    attempt: int
    pre_vote: bool
    granted: bool


class Append(_Message, frozen=True, tag=12):
    """Entries behind (prev_index, prev_term); a heartbeat if there are none.

    `round` numbers what the leader sends and is echoed. `lease_ms`: for so long after this message
    the receiver is to elect nobody else.
    """

    term: int
    prev_index: int
    prev_term: int
    commit: int
    round: int
    entries: list[tuple[int, bytes]]
    lease_ms: int = 0


class AppendReply(_Message, frozen=True, tag=13):
    """accepted: `index` is durably matched. Else `index` echoes prev; the hints say where to go."""

    term: int
    accepted: bool
    index: int
    round: int
    hint_term: int
    hint_index: int


class SnapshotChunk(_Message, frozen=True, tag=14):
    """A piece of a snapshot file: bytes from `offset`, with their own checksum."""

    term: int
    snapshot_id: str
    index: int
    snapshot_term: int
    size_bytes: int
    offset: int
    crc: int
    data: bytes


class SnapshotReply(_Message, frozen=True, tag=15):
    """`offset` is wanted next; `done` once installed (or known to be committed anyway)."""

    term: int
    snapshot_id: str
    index: int
    offset: int
    done: bool


class TimeoutNow(_Message, frozen=True, tag=16):
    """The leader hands its office over: campaign at once."""

    term: int


class Propose(_Message, frozen=True, tag=20):
    """Encoded commands on their way to the leader."""

    commands: list[bytes]


class ReadRequest(_Message, frozen=True, tag=21):
    number: int


class ReadReply(_Message, frozen=True, tag=22):
    """`index` to wait for, or 0: this node could not confirm; ask again."""

    number: int
    index: int


class Liveness(_Message, frozen=True, tag=23):
    """A core tells the leader which replicants it feeds (names), so that none looks dead."""

    names: list[str]


class Follow(_Message, frozen=True, tag=30):
    """A replicant asks for everything behind (index, term), which it has applied."""

    index: int
    term: int


class Feed(_Message, frozen=True, tag=31):
    """Committed entries behind (prev_index, prev_term) and the upstream's commit index."""

    prev_index: int
    prev_term: int
    commit: int
    entries: list[tuple[int, bytes]]


class FeedSnapshot(_Message, frozen=True, tag=32):
    """A piece of a snapshot's content for a replicant; `last` ends it."""

    index: int
    term: int
    number: int
    last: bool
    data: bytes


class Progressed(_Message, frozen=True, tag=33):
    """The replicant has applied up to `index`; flow control and lag."""

    index: int


class LeaderChanged(_Message, frozen=True, tag=34):
    """The upstream's view: the leader's name ("" if none), its term, milliseconds since heard."""

    leader: str
    term: int
    age_ms: int


class RpcRequest(_Message, frozen=True, tag=40):
    number: int
    method: str
    payload: bytes


class RpcReply(_Message, frozen=True, tag=41):
    """`error` is empty, or the code of an error; `payload` is then its text."""

    number: int
    error: str
    payload: bytes


Message = (
    Hello
    | Refusal
    | Founded
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
    | Follow
    | Feed
    | FeedSnapshot
    | Progressed
    | LeaderChanged
    | RpcRequest
    | RpcReply
)

# What goes through the engine's inbox. Each carries a term.
Consensus = Vote | VoteReply | Append | AppendReply | SnapshotChunk | SnapshotReply | TimeoutNow

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


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
