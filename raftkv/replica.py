"""The state machine on one node: what the engine (or a replicant's follower) drives.

Order for one slice of an entry (most entries have one): tables change, plugins' services hear of
it, then this node's waiting callers get their outcomes. So a caller that is answered finds its
write in this node's own view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import DiskFailed, Diverged, NodeFault, SequenceTooFar
from .foreign import Foreign
from .freeing import frees_room
from .logclock import LogClock
from .outbox import Outbox
from .raft.engine import Frozen
from .reading import Reader
from .state.machine import Outcomes, StateMachine
from .state.tables import ABSENT

if TYPE_CHECKING:
    from .raft.wal import Wal

__all__ = ["Replica", "ReplicaLoading"]

# Waiting callers that are looked up in one turn after a snapshot: about 4 ms.
SETTLED_PER_TURN = 2_000

_stamp = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def _stamp_of(index: int, payload: bytes) -> int:
    try:
        return _stamp(payload[1:])[0]
    except msgspec.DecodeError as error:
        raise Diverged(f"entry {index} of the log is no batch: {error}") from None


def _array_header(count: int) -> bytes:
    """The msgpack header of an array, so that encoded commands are joined, not encoded again."""
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


class Replica:
    """See the module's text. The node sets the callbacks that it wants to hear."""

    def __init__(
        self, machine: StateMachine, clock: LogClock, outbox: Outbox, reader: Reader
    ) -> None:
        self.machine = machine
        self.clock = clock
        self._outbox = outbox
        # The commands of clients without a node; set by the node.
        self.foreign: Foreign | None = None
        self._reader = reader
        # The nonce under which this node waits for its session, and who is told of it.
        self.nonce: int | None = None
        self.on_session: Callable[[Any], None] = lambda outcome: None
        self.on_office: Callable[[], None] = lambda: None
        self.on_progress: Callable[[], None] = lambda: None
        self.on_restored: Callable[[int], None] = lambda index: None
        self.on_fault: Callable[[NodeFault], None] = lambda fault: None
        self.on_reads: Callable[[Sequence[Any], int], None] = lambda tokens, index: None
        # The state is at an index at which all nodes take digests of it.
        self.on_digest_point: Callable[[], None] = lambda: None
        # Runs something in a later turn of the loop.
        self.later: Callable[..., object] = lambda function, *arguments: function(*arguments)
        self.commands_applied = 0

    # -- driven by the engine

    def seal(self, commands: Sequence[bytes]) -> bytes:
        """A batch: [stamp, [commands...]], the commands as their origins encoded them."""
        stamp = _encode(max(self.clock.now_ms(), self.machine.now))
        return b"".join((b"\x92", stamp, _array_header(len(commands)), *commands))

    def frees_room(self, command: bytes) -> bool:
        return frees_room(command)

    def estimate(self, command: bytes) -> int:
        return self.machine.estimate(command)

    @property
    def costly_marks(self) -> tuple[tuple[bytes, ...], int]:
        return self.machine.costly_marks

    def apply(self, index: int, body: bytes, term: int) -> Iterator[None] | None:
        """Apply a first slice of an entry; the iterator applies the rest of it, if there is any."""
        slices = self.machine.slices(index, body, term)
        return None if self._apply_slice(index, slices) else self._rest(index, slices)

    def _rest(self, index: int, slices: Iterator[Outcomes]) -> Iterator[None]:
        while not self._apply_slice(index, slices):
            yield

    def _apply_slice(self, index: int, slices: Iterator[Outcomes]) -> bool:
        """Answer those whose commands have ended in this slice. True after the last one."""
        try:
            outcomes = next(slices)
        except NodeFault:
            raise
        except (OSError, MemoryError) as error:
            raise DiskFailed(
                f"this node ran out of a resource at entry {index}: {error}"
            ) from error
        except Exception as error:
            raise Diverged(
                f"entry {index} could not be applied ({type(error).__name__}: {error}). The node "
                f"stops, because other nodes may have applied it"
            ) from error
        outbox, foreign = self._outbox, self.foreign
        self.commands_applied += len(outcomes)
        for session, seq, outcome in outcomes:
            # Looked up each time: this very entry may open another, whose numbers begin anew.
            if session == outbox.session and session:
                outbox.settle(seq, outcome)
            elif session == 0 and seq == self.nonce:
                self.on_session(outcome)
            elif foreign is not None and foreign.waiting:
                foreign.settle(session, seq, outcome)
        outbox.landed()
        return self.machine.index == index

    def skip(self, index: int) -> None:
        self.machine.skip(index)

    def raise_format(self, index: int, body: bytes) -> None:
        self.machine.raise_format(index, body)

    def take_digests(self, index: int) -> None:
        self.machine.skip(index)
        self.on_digest_point()

    @property
    def core_format(self) -> int:
        return self.machine.core_format

    def freeze(self) -> Frozen:
        return self.machine.freeze()

    def loading(self) -> ReplicaLoading:
        """Begin to read a snapshot beside the state."""
        return ReplicaLoading(self)

    def restored(self, index: int) -> None:
        """The state is that of a snapshot: answer the callers whose entries it jumped over (15)."""
        self._settle_jumped(self._outbox.session, self._outbox.waiting())
        if self.foreign is not None:
            self.foreign.restored()
        self.on_restored(index)

    def _settle_jumped(self, session: int, waiting: list[int]) -> None:
        """Some at a time. Whoever is settled by an entry meanwhile is not waiting any more."""
        outbox, machine = self._outbox, self.machine
        if session != outbox.session:
            return  # it ended, and its callers were told so
        for seq in waiting[:SETTLED_PER_TURN]:
            outcome = machine.recall(session, seq, outbox.kind_of(seq))
            # A number beyond the window of the older state was not judged by it either.
            if outcome is not ABSENT and type(outcome) is not SequenceTooFar:
                outbox.settle(seq, outcome, jumped=True)
        if len(waiting) > SETTLED_PER_TURN:
            self.later(self._settle_jumped, session, waiting[SETTLED_PER_TURN:])

    def office_changed(self) -> None:
        self.on_office()

    def progressed(self) -> None:
        self.clock.observed(self.machine.now)
        self._reader.applied(self.machine.index)
        self.on_progress()

    def reads_confirmed(self, tokens: Sequence[Any], index: int) -> None:
        self.on_reads(tokens, index)

    def reads_failed(self, tokens: Sequence[Any]) -> None:
        self.on_reads(tokens, 0)

    def faulted(self, fault: NodeFault) -> None:
        self.on_fault(fault)

    # -- the clock of a new leader

    def elected(self, wal: Wal) -> None:
        """Start the log's clock behind every stamp in the log, applied or not (rule 19)."""
        largest = self.machine.now
        for entry in wal.newest_first(self.machine.index + 1):
            if entry.payload[0] == 0:
                # Stamps never fall along a log: every leader began behind those it found. So the
                # newest is the largest, and a tail of 10^5 entries need not be read.
                largest = max(largest, _stamp_of(entry.index, entry.payload))
                break
        self.clock.elected(largest)


class ReplicaLoading:
    """A snapshot that is being read, chunk by chunk. See `raft.engine.Loading`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._reader = replica.machine.reader()

    def add(self, chunk: bytes) -> None:
        self._reader.add(chunk)

    def adopt(self, index: int) -> None:
        self._replica.machine.adopt(self._reader.finish(), index)
        self._replica.restored(index)

    def discard(self) -> None:
        self._reader.discard(self._replica.machine.waste)
