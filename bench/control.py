"""What the coordinator and its worker processes say to each other.

One JSON object a line: requests on the worker's standard input, answers on its standard output.
Each request has one answer, `Failed` when the worker could not do it. Whatever a worker or a
library prints goes to its error stream, which the coordinator keeps in a file: a stray `print`
cannot garble the channel. A worker whose standard input ends stops itself, so a coordinator that
was killed leaves no process behind.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Literal

import msgspec

from bench.cluster_calls import ClusterCallLoad
from bench.limbo import Confirmation, LimboLoad
from bench.scenarios import Collected, Load
from bench.schema import SessionMode
from bench.subscriptions import Followed, Moves, SubscriptionsLoad, Took
from bench.truth import Expectation
from bench.txqueue import Commitment, TxqueueLoad
from raftkv.config import NodeConfig
from raftkv.plugin import Consistency

__all__ = [
    "LINE_BYTES_MAX",
    "AskCommitted",
    "AskConfirmed",
    "AskCursor",
    "Audit",
    "AwaitCallers",
    "AwaitTakeover",
    "CallLoad",
    "Channel",
    "CheckQueues",
    "CheckRows",
    "Collect",
    "Committed",
    "Confirmed",
    "Cursor",
    "Done",
    "DropQueues",
    "DropRows",
    "DropTopic",
    "Effects",
    "Failed",
    "Flush",
    "Function",
    "HangUp",
    "Lag",
    "MakeQueues",
    "MakeTopic",
    "OwnLimbo",
    "Play",
    "ProfileStart",
    "ProfileStop",
    "Profiled",
    "Ran",
    "Reply",
    "Request",
    "Setup",
    "State",
    "Status",
    "Stop",
    "StopConsumer",
    "StopPublisher",
    "SwitchMode",
    "TakeOver",
    "TakePart",
    "WatchCursor",
    "open_control",
]

LINE_BYTES_MAX = 256 * 1024 * 1024
"""One message. A driver's whole truth about 200,000 clients is some 20 MB."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The file a worker is started with. `node` None: a caller over HTTP, without a node.

    `drivers` maps the names of all drivers to the Unix sockets of their mesh. `sessions`: a broker
    holds sessions on the node, and its messages are counted. `cluster_calls`: the node has the
    plugin `calls` instead of the registry, and its messages are counted too; `limbo`: the plugin
    `limbo`, `txqueue`: the plugin `txqueue`, `subscriptions`: that one, likewise.
    """

    name: str
    run: str
    layout: str
    out: str
    node: NodeConfig | None
    drivers: dict[str, str]
    sessions: bool = False
    cluster_calls: bool = False
    limbo: bool = False
    txqueue: bool = False
    subscriptions: bool = False


class Play(msgspec.Struct, frozen=True, tag="play"):
    """Sends off the clients of the load that was set by `Load`."""


class Collect(msgspec.Struct, frozen=True, tag="collect"):
    """How is the load? `final`: also everything the audit needs."""

    final: bool = False


class Audit(msgspec.Struct, frozen=True, kw_only=True, tag="audit"):
    """Compare this node's registry with the truth."""

    load: Load
    expectations: tuple[Expectation, ...]


class CallLoad(msgspec.Struct, frozen=True, kw_only=True, tag="calls"):
    """Puts and gets in a closed loop: every `put_every` calls a put (1: all of them, 0: none).

    It ends early after `calls_max` calls.

    `endpoint`, `serves` and `role`: over HTTP, to the node of that name, logged as that role.
    """

    in_flight: int
    seconds: float
    value_bytes: int
    scenario: str = "puts"
    put_every: int = 1
    consistency: Consistency = "linearizable"
    calls_max: int = 1_000_000
    endpoint: str | None = None
    serves: str | None = None
    role: str | None = None


class Lag(msgspec.Struct, frozen=True, tag="lag"):
    """Make a replicant's applying, and what its old registry spreads, late; no lag in a core."""

    seconds: float


class SwitchMode(msgspec.Struct, frozen=True, tag="switch_mode"):
    """Switch the cluster to this mode of the registry, and wait until all nodes have adopted it."""

    mode: SessionMode


class HangUp(msgspec.Struct, frozen=True, tag="hang_up"):
    """End all sessions of this node's broker."""


class AwaitCallers(msgspec.Struct, frozen=True, tag="await_callers"):
    """Wait for the callers of the cluster calls that were set off, and ask for `Ran`."""


class TakePart(msgspec.Struct, frozen=True, tag="take_part"):
    """Set `replicants_take_part` for the cluster."""

    on: bool


class Effects(msgspec.Struct, frozen=True, tag="effects"):
    """Log how often each of these nodes wrote into the keyspace in that load of cluster calls."""

    load: ClusterCallLoad
    nodes: tuple[str, ...]


class OwnLimbo(msgspec.Struct, frozen=True, tag="own_limbo"):
    """Set the quorum of LIMBO_QUORUMS, become the owner, and make the space of the load."""

    quorum: str
    number: int


class AskConfirmed(msgspec.Struct, frozen=True, tag="ask_confirmed"):
    """Ask for `Confirmed`: what the writers of the last load were told."""


class CheckRows(msgspec.Struct, frozen=True, tag="check_rows"):
    """Log how many of these transactions this node has in its rows, and how many rows besides."""

    load: LimboLoad
    confirmed: tuple[Confirmation, ...]


class DropRows(msgspec.Struct, frozen=True, tag="drop_rows"):
    """Drop the space of the load of this number; its rows go in the background."""

    number: int


class MakeQueues(msgspec.Struct, frozen=True, tag="make_queues"):
    """Make the queues of the load of this number."""

    number: int


class AskCommitted(msgspec.Struct, frozen=True, tag="ask_committed"):
    """Ask for `Committed`: what the producers of the last load were told."""


class CheckQueues(msgspec.Struct, frozen=True, tag="check_queues"):
    """Log what this node has of these transactions in its queues, and what is wrong with it."""

    load: TxqueueLoad
    committed: tuple[Commitment, ...]


class DropQueues(msgspec.Struct, frozen=True, tag="drop_queues"):
    """Delete the queues of the load of this number; their rows go in the background."""

    number: int


class MakeTopic(msgspec.Struct, frozen=True, tag="make_topic"):
    """Set the mode, and in the `first` region make the load's topic and its subscription."""

    number: int
    mode: str
    first: bool


class StopConsumer(msgspec.Struct, frozen=True, tag="stop_consumer"):
    """Stop the consumer of the load, and ask for `Followed`; messages still come."""


class StopPublisher(msgspec.Struct, frozen=True, tag="stop_publisher"):
    """Stop the publisher of the load, and ask for `Followed`."""


class WatchCursor(msgspec.Struct, frozen=True, tag="watch_cursor"):
    """Note from now on how far the load's subscription is here with the messages of `origin`."""

    number: int
    origin: str


class AskCursor(msgspec.Struct, frozen=True, tag="ask_cursor"):
    """Ask for `Cursor`: how far the load's subscription is here with the messages of `origin`."""

    number: int
    origin: str


class TakeOver(msgspec.Struct, frozen=True, tag="take_over"):
    """Open a consumer here; ask for `Moves`, what was noted of the cursor up to now."""

    number: int


class AwaitTakeover(msgspec.Struct, frozen=True, tag="await_takeover"):
    """Wait until the consumer got `upto` (0: any), or nothing for so long; ask for `Took`."""

    upto: int
    idle_s: float
    timeout_s: float


class DropTopic(msgspec.Struct, frozen=True, tag="drop_topic"):
    """Take the topic of the load of this number out of the links, or delete it, in this region."""

    number: int
    step: Literal["withdraw", "delete"]


class Status(msgspec.Struct, frozen=True, tag="status"):
    """Ask for `State`."""


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Write the rows that have gathered."""


class ProfileStart(msgspec.Struct, frozen=True, tag="profile_start"):
    """Start profiling this process's event loop; without `calls` only the clocks."""

    calls: bool


class ProfileStop(msgspec.Struct, frozen=True, tag="profile_stop"):
    """Stop profiling and ask for `Profiled`."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Write everything, stop the node, end the process."""


Request = (
    Load | Play | Collect | Audit | CallLoad | Lag | SwitchMode | HangUp | Status | Flush
    | ProfileStart | ProfileStop | Stop | ClusterCallLoad | AwaitCallers | TakePart | Effects
    | LimboLoad | OwnLimbo | AskConfirmed | CheckRows | DropRows
    | TxqueueLoad | MakeQueues | AskCommitted | CheckQueues | DropQueues
    | SubscriptionsLoad | MakeTopic | StopConsumer | StopPublisher | WatchCursor | AskCursor
    | TakeOver | AwaitTakeover | DropTopic
)  # fmt: skip


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It was done and there is nothing to tell."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It could not be done. `message` is for the person at the terminal."""

    message: str


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """What a worker's node says about itself, and its driver's tally for the terminal.

    What follows `buckets` is counted since the process began, most of it only where there is a
    broker; `in_doubt` are rows that the node still has to delete, or to settle, by itself.

    With cluster calls `last_call` is the highest id that this node's copy shows, and `cursors` are
    those of the nodes that take part and follow. With the limbo `acks` are those that this node
    wrote, `pending` the transactions that wait for their quorum, `rows_dropped` how many spaces
    still have rows to be swept; with the queues they are the transactions that have rows of their
    own, and the deleted queues. With subscriptions `cpu_s` is the processor time of the process.
    """

    role: str
    leader: str | None
    commit_index: int
    applied_index: int
    endpoint: str | None
    outcomes: dict[str, int]
    buckets: dict[int, int]
    commands_applied: int = 0
    messages: dict[str, int] = {}
    sent_bytes: int = 0
    handovers_lost: int = 0
    hollow: int = 0
    in_doubt: int = 0
    last_call: int = 0
    cursors: dict[str, int] = {}
    acks: int = 0
    pending: int = 0
    rows_dropped: int = 0
    cpu_s: float = 0.0


class Ran(msgspec.Struct, frozen=True, kw_only=True, tag="ran"):
    """A load of calls is over. `buckets`: see `bench.live`; for the terminal only."""

    outcomes: dict[str, int]
    elapsed_s: float
    buckets: dict[int, int]


class Function(msgspec.Struct, frozen=True):
    """One function of a profile: its own time, without what it called."""

    file: str
    line: int
    name: str
    calls: int
    own_s: float


class Profiled(msgspec.Struct, frozen=True, kw_only=True, tag="profiled"):
    """Where the time of a process went."""

    elapsed_s: float
    cpu_s: float
    gc_s: float
    gc_runs: int
    sync_s: float
    syncs: int
    functions: tuple[Function, ...]


class Confirmed(msgspec.Struct, frozen=True, tag="confirmed"):
    """The transactions that writers were told are confirmed, the warm-up's too."""

    transactions: tuple[Confirmation, ...]


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """The transactions that producers were told are committed, the warm-up's too."""

    transactions: tuple[Commitment, ...]


class Cursor(msgspec.Struct, frozen=True, tag="cursor"):
    """Everything up to this seq is acknowledged; 0: nothing, or there is no subscription."""

    seq: int


Reply = (
    Done | Failed | Collected | State | Ran | Profiled | Confirmed | Committed
    | Followed | Moves | Took | Cursor
)  # fmt: skip


class Channel:
    """A worker's end of the control channel."""

    def __init__(self, reader: asyncio.StreamReader, descriptor: int) -> None:
        self._reader = reader
        self._descriptor = descriptor
        self._decoder = msgspec.json.Decoder(Request)

    async def receive(self) -> Request | None:
        """The next request; None when the coordinator is gone."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            return None
        request: Request = self._decoder.decode(line)
        return request

    def send(self, reply: Any) -> None:
        """Blocks while the pipe is full: a worker has nothing better to do then."""
        view = memoryview(msgspec.json.encode(reply) + b"\n")
        while view:
            view = view[os.write(self._descriptor, view) :]


async def open_control() -> Channel:
    """Takes standard input and output for the control channel; prints go to the error stream."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return Channel(reader, descriptor)
