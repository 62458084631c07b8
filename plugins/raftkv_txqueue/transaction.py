"""What one transaction of a session does: gathered on the node, in order, before it is staged.

Theory. Nothing of a transaction is visible before it is decided, so its operations need not travel
one by one. The node gathers them and sends them in packs, each as large as one command may be; a
transaction that is smaller than one pack is one entry of the log, its commit. Until they are sent
they are nowhere else: a node that dies takes them with it, and with them the session and the
transaction.

A `Transaction` is a TX (it has a counter) or the part of one session in a branch of a DTX (it has a
xid). A TX gets its counter with its first operation, so one in which nothing happens is nothing to
the log; a counter that was given is always decided in the log, so no txid ever means two things.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from .commands import (
    COMMAND_BYTES,
    ROWS_MAX,
    AcceptOf,
    Message,
    Operation,
    PublishTo,
    size_of,
)
from .errors import TransactionAborted
from .options import TxQueueOptions
from .times import timed
from .xa import Xid

if TYPE_CHECKING:
    from .consuming import Delivery

__all__ = ["Committed", "Content", "Outgoing", "Transaction", "messages_of"]

#: What a caller may give to be published.
Outgoing = bytes | Message | Iterable[bytes | Message]


class Committed(msgspec.Struct, frozen=True):
    """The transaction was committed: all of it is visible, on every node from `index` on.

    `spans`: what it published, as (queue, first seq, last seq) in the order of first use. After a
    lost answer, or a vote, nobody may remember them: then they are empty, and `index` is 0 where
    that is not known either. A transaction in which nothing happened has the txid "".
    """

    txid: str
    index: int = 0
    spans: tuple[tuple[str, int, int], ...] = ()


def messages_of(
    what: Outgoing, ttl_s: float | None = None, delay_s: float | None = None
) -> tuple[Message, ...]:
    """What a caller gave, as messages, with these times unless they are None.

    Raises TypeError for what is no message, ValueError for what is no time.
    """
    if isinstance(what, Message):
        messages: tuple[Message, ...] = (what,)
    elif isinstance(what, bytes):
        messages = (Message(what),)
    else:
        messages = tuple(one if isinstance(one, Message) else _message(one) for one in what)
    if ttl_s is None and delay_s is None:
        return messages
    return tuple(timed(one, ttl_s, delay_s) for one in messages)


def _message(body: object) -> Message:
    if not isinstance(body, bytes):
        raise TypeError(f"a message is bytes or a Message, not {type(body).__name__}: encode it")
    return Message(body)


class _Published:
    """Messages to one queue."""

    __slots__ = ("messages", "queue")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.messages: list[Message] = []

    def __len__(self) -> int:
        return len(self.messages)

    def fitting(self, start: int, rows: int, size: int, alone: bool) -> int:
        """How many from `start` on fit; one that is `alone` fits always."""
        count = 0
        for one in self.messages[start : start + rows]:
            size -= size_of(one)
            if size < 0 and not (alone and count == 0):
                break
            count += 1
        return count

    def size(self, start: int, stop: int) -> int:
        return sum(size_of(one) for one in self.messages[start:stop])

    def part(self, start: int, stop: int) -> Operation:
        return PublishTo(self.queue, tuple(self.messages[start:stop]))


class _Accepted:
    """Messages of one queue that are done with."""

    __slots__ = ("queue", "seqs")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.seqs: list[int] = []

    def __len__(self) -> int:
        return len(self.seqs)

    def fitting(self, start: int, rows: int, size: int, alone: bool) -> int:
        return min(rows, len(self.seqs) - start)

    def size(self, start: int, stop: int) -> int:
        return 0

    def part(self, start: int, stop: int) -> Operation:
        return AcceptOf(self.queue, tuple(self.seqs[start:stop]))


class Content:
    """Operations in the order of the calls. Those of one kind on one queue in a row are one."""

    __slots__ = ("_operations", "bytes", "rows")

    def __init__(self) -> None:
        self._operations: list[_Published | _Accepted] = []
        self.rows = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._operations)

    def is_full(self, options: TxQueueOptions) -> bool:
        """Whether it is time to stage it."""
        return self.rows >= options.stage_operations or self.bytes >= options.stage_bytes

    def publish(self, queue: str, messages: Sequence[Message], size: int) -> None:
        """Messages, and their bytes together."""
        last = self._operations[-1] if self._operations else None
        if not isinstance(last, _Published) or last.queue != queue:
            last = _Published(queue)
            self._operations.append(last)
        last.messages.extend(messages)
        self.rows += len(messages)
        self.bytes += size

    def accept(self, queue: str, seqs: Sequence[int]) -> None:
        last = self._operations[-1] if self._operations else None
        if not isinstance(last, _Accepted) or last.queue != queue:
            last = _Accepted(queue)
            self._operations.append(last)
        last.seqs.extend(seqs)
        self.rows += len(seqs)

    def take(self) -> list[tuple[Operation, ...]]:
        """All of it, in packs of one command each; nothing is left."""
        operations = self._operations
        if not operations:
            return []
        if self.rows <= ROWS_MAX and self.bytes <= COMMAND_BYTES:
            packs = [tuple(operation.part(0, len(operation)) for operation in operations)]
        else:
            packs = [tuple(pack) for pack in _packs(operations)]
        self.drop()
        return packs

    def drop(self) -> None:
        """Forget it."""
        self._operations = []
        self.rows = self.bytes = 0


def _packs(operations: Iterable[_Published | _Accepted]) -> Iterator[list[Operation]]:
    """At most ROWS_MAX rows and COMMAND_BYTES in each, unless one message has more."""
    pack: list[Operation] = []
    rows, size = ROWS_MAX, COMMAND_BYTES
    for operation in operations:
        start = 0
        while start < len(operation):
            stop = start + operation.fitting(start, rows, size, alone=not pack)
            if stop > start:
                pack.append(operation.part(start, stop))
                rows -= stop - start
                size -= operation.size(start, stop)
                start = stop
            if start < len(operation):
                yield pack
                pack, rows, size = [], ROWS_MAX, COMMAND_BYTES
    if pack:
        yield pack


class Transaction:
    """A TX, or what one session does in a branch. Of the node: the log has rows of its own.

    `aborted`: why it can only be rolled back. `accepted`: what its session held before.
    """

    __slots__ = ("aborted", "accepted", "content", "counter", "session", "xid")

    def __init__(self, session: int, xid: Xid | None = None) -> None:
        self.session = session
        self.xid = xid
        #: 0: a branch, or a TX in which nothing happened yet.
        self.counter = 0
        self.content = Content()
        self.accepted: list[Delivery] = []
        self.aborted: TransactionAborted | None = None

    @property
    def txid(self) -> str:
        """Its name; "" of a TX in which nothing happened yet."""
        if self.xid is not None:
            return str(self.xid)
        return f"{self.session}.{self.counter}" if self.counter else ""

    def abort(self, cause: str, reason: str) -> TransactionAborted:
        """It can only be rolled back from now on; the first reason counts."""
        if self.aborted is None:
            self.aborted = TransactionAborted(self.txid, cause, reason)
        self.content.drop()
        return self.aborted
