"""A watch that goes on by itself: at another endpoint, from the next revision.

Theory. A node gives the events of whole revisions, in order, and says with each line up to which
revision it has told everything. So one number is the whole state of a watch: the revision behind
the last line that its user was given. Whatever ends a stream (a node that stops or hangs, a
network, a slow user whom the node let go) the next one is asked for from there: nothing is missed
and nothing comes twice, for a revision is one place in the history and the history is replicated.

Rules of this file
1. The position moves when a batch is handed out, not when it arrives: a line that was only half
   received, or that nobody took, is asked for again.
2. A watch "from now" is from now once, at its first success; then the header's revision of that
   answer fixes the position, and a later stream never starts at a later "now".
3. A node that says nothing is asked for a sign of life: lines come at least every PROGRESS_S (the
   door marks progress), so a stream that was silent for SILENCE_S is given up for another.
4. Lines are taken from the socket when the user asks for the next batch. There is no buffer in
   between whose bound would have to be argued about: TCP tells the node, and it lets go of a
   watch that is too slow, which comes back here as any other end.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from raftkv.errors import (
    PeerUnreachable,
    RaftkvError,
    Refused,
    TooLarge,
    WatchCancelled,
    again,
)
from raftkv.kv.commands import Compacted
from raftkv.kv.watch import WatchBatch

from . import words
from .calls import Caller, Place, Unusable
from .http import Broken, Excess, LineStream

__all__ = ["ClientWatch"]

# How long a node may need to begin a stream.
BEGIN_S: Final = 5.0
# A stream without a line for so long is given up; the door marks progress more often than that.
SILENCE_S: Final = 30.0

_encode = msgspec.json.Encoder().encode
_line = msgspec.json.Decoder(words.WatchLine, strict=False).decode


class ClientWatch:
    """An async iterator of `WatchBatch`, and a context manager that closes it. For one consumer.

    Made by `client.kv.watch`. `revision` is the position: everything up to it was given.
    """

    def __init__(
        self, caller: Caller, request: dict[str, Any], start_revision: int, progress_s: float
    ) -> None:
        self._caller = caller
        self._request = request
        self._next = start_revision
        # The revision of the keyspace when the last stream began.
        self._reached = 0
        self._progress_s = progress_s
        self._marked_at = 0.0
        self._stream: LineStream | None = None
        self._place: Place | None = None
        self._opening: asyncio.Task[tuple[Place, LineStream]] | None = None
        self._last: RaftkvError | None = None
        self._began = 0
        self._cancelled: WatchCancelled | None = None
        self._closed = False
        self._waiting = False
        self._reading = asyncio.Lock()
        self._held: WatchBatch | None = None
        self.resumptions = -1

    @property
    def revision(self) -> int:
        """Everything up to here was given; watch again from the next to go on."""
        return max(0, self._next - 1)

    @property
    def cancelled(self) -> WatchCancelled | None:
        """How the watch has ended; None while it has not, or if its user has closed it."""
        return self._cancelled

    async def created(self) -> int:
        """The keyspace's revision when the watch began. Raises WatchCancelled if it never did.

        With `start_revision` 0 the watch gives every change of a later revision.
        """
        while not self._began:
            if self._cancelled is not None:
                raise again(self._cancelled)
            if self._closed:
                raise WatchCancelled("stopped")
            async with self._reading:
                if not self._began:
                    # What comes with the beginning is kept for the consumer.
                    self._held = self._held or await self._advance()
        return self._began

    def close(self) -> None:
        """End the watch; whoever iterates over it comes to its end. Idempotent."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            self._opening.add_done_callback(_close_stream)
        if self._stream is not None:
            self._stream.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        if self._waiting:
            raise RuntimeError("a watch has one consumer: somebody waits for its next batch")
        self._waiting = True
        try:
            while True:
                if self._cancelled is not None:
                    raise again(self._cancelled)
                if self._closed:
                    raise StopAsyncIteration
                async with self._reading:
                    batch, self._held = self._held, None
                    if batch is None:
                        batch = await self._advance()
                if batch is not None:
                    self._next = batch.revision + 1
                    if batch.events or self._mark_wanted():
                        return batch
        finally:
            self._waiting = False

    async def __aenter__(self) -> Self:
        """Wait until the watch has begun: what is changed inside the block is not missed.

        That takes until a node can be reached. A watch that has ended raises when it is iterated.
        """
        try:
            with contextlib.suppress(WatchCancelled):
                await self.created()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- one step

    def _mark_wanted(self) -> bool:
        """Whether the user asked for progress marks, and the last one is long enough ago."""
        now = asyncio.get_running_loop().time()
        if not self._progress_s or now - self._marked_at < self._progress_s:
            return False
        self._marked_at = now
        return True

    async def _advance(self) -> WatchBatch | None:
        """Take one line, opening a stream first if there is none. None: nothing to give yet.

        May be cancelled at any point: a line is taken and judged without waiting in between.
        """
        try:
            if self._stream is None:
                await self._open()
                return None
            # From the last sign of life on: a wait that is cancelled and begun anew is one wait.
            async with asyncio.timeout_at(self._stream.heard_at + SILENCE_S):
                line = await self._stream.next()
        except Excess as error:
            # It would be as long everywhere, and at every try.
            self.close()
            raise TooLarge(f"{error} (answer_bytes_max): watch with a larger one") from None
        except TimeoutError:
            now = asyncio.get_running_loop().time()
            if self._stream is not None and now < self._stream.heard_at + SILENCE_S:
                return None  # a long line arrives in pieces
            # From a revision that does not exist yet nothing comes, whoever is asked.
            ahead = self._reached < self._next - 1
            self._drop(rest=not self._closed and not ahead)
            return None
        except Broken:
            self._drop(rest=not self._closed)
            return None
        except Compacted as refusal:
            self._end("compacted", int(refusal.args[1]) if len(refusal.args) > 1 else 0)
            return None
        except Unusable:
            if not self._caller.closed:
                raise
            self._end("stopped")
            return None
        except Refused:
            self._closed = True
            raise
        except RaftkvError:
            return None  # no endpoint yet; the caller has let some time pass
        return self._judge(line)

    async def _open(self) -> None:
        if self._opening is None:
            request = dict(self._request)
            if self._next:
                request["start_revision"] = str(self._next)
            body = _encode({"create_request": request})
            deadline = self._caller.deadline(max(BEGIN_S, self._caller.timeout_s))
            # A task of its own: a wait that is cancelled goes on at the next one.
            last, self._last = self._last, None
            opening = self._caller.stream(words.WATCH, body, deadline=deadline, last=last)
            self._opening = asyncio.get_running_loop().create_task(opening, name="begin a watch")
            self._opening.add_done_callback(_heed)
        task = self._opening
        try:
            opened = await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self._closed or (current is not None and current.cancelling()):
                raise
            self._opening = None  # `close` has ended it, not whoever waits here
            return
        except BaseException:
            self._opening = None
            raise
        self._opening = None
        self._place, self._stream = opened
        self.resumptions += 1
        if self._closed:
            self._stream.close()

    def _drop(self, *, rest: bool = True) -> None:
        if self._stream is not None and self._place is not None:
            self._stream.close()
            if rest:
                # Whatever is wrong with it: no loop without a pause.
                self._caller.failed(self._place)
                self._last = PeerUnreachable("the stream has ended")
        self._stream = None

    def _end(self, reason: str, compact_revision: int = 0) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        resume_revision = self._next if reason == "stopped" else 0
        self._cancelled = WatchCancelled(
            reason, resume_revision=resume_revision, compact_revision=compact_revision
        )

    def _judge(self, line: bytes) -> WatchBatch | None:
        try:
            found = _line(line)
        except (msgspec.DecodeError, ValueError):
            self._drop()  # half a line before the end of the stream, or no answer of a door
            return None
        result = found.result
        if result is None:
            self._drop()
            return None
        if result.canceled:
            self._judge_end(result)
            return None
        if result.created:
            self._reached = result.header.revision
            self._began = self._began or result.header.revision
            if not self._next:
                self._next = result.header.revision + 1
        if result.events:
            last = max(change.kv.mod_revision for change in result.events)
            return WatchBatch(last, words.events(result.events))
        if not result.created and result.header.revision >= self._next:
            return WatchBatch(result.header.revision, ())
        return None

    def _judge_end(self, result: words.WatchResult) -> None:
        reason = result.cancel_reason
        if result.compact_revision or reason == "raftkv: compacted":
            self._end("compacted", result.compact_revision)
        elif reason.startswith("raftkv: given_up"):
            self._end("given_up")
        elif result.created and not reason.startswith(("raftkv: stopped", "raftkv: slow")):
            # It was never begun, and would not be anywhere else.
            self.close()
            raise Refused(reason or "the node does not take this watch")
        else:
            # On from the position. A node that stops must rest; a user who was slow need not.
            self._drop(rest=not reason.startswith("raftkv: slow"))


def _close_stream(opening: asyncio.Task[tuple[Place, LineStream]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].close()


def _heed(opening: asyncio.Task[tuple[Place, LineStream]]) -> None:
    if not opening.cancelled():
        opening.exception()  # its user may have gone
