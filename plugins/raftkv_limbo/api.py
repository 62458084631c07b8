"""The limbo as a program sees it on one node: `limbo = node.plugin(Limbo)`.

    await limbo.create_space("accounts", sync=True)
    await limbo.promote()                               # this node owns the queue from now on

    done = await limbo.submit([Write("accounts", b"ann", b"70"), Write("accounts", b"bob", b"30")])
    done.state                                          # "confirmed": its quorum has it

    t = limbo.transaction()
    t.expect("accounts", b"ann", value=b"70")
    t.put("accounts", b"ann", b"60")
    await t.submit(wait="submit")                       # in the queue; the verdict comes later

This file only joins the parts and gives them their public names. `submitting.py` brings
transactions into the queue, `waiting.py` brings the verdicts back, `reading.py` reads,
`promoting.py` changes the owner, `acking.py` speaks for this node, `hooks.py` calls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, overload

from raftkv.errors import ReadTimeout
from raftkv.plugin import Host, PluginSettings, Proposer
from raftkv.validation import checked

from .acking import Acking
from .checking import Order
from .commands import (
    FORMAT_CONFIRMATIONS,
    AlterFenced,
    AlterSpace,
    Condition,
    CreateSpace,
    Demoted,
    DropEntered,
    DropFenced,
    DropSpace,
    Promoted,
    RolledBackTo,
    Row,
    SpaceAltered,
    SpaceCreated,
    SpaceDropped,
    Write,
)
from .gathering import NEVER
from .hooks import Confirmed, Hooks, Restored, Undone
from .metrics import Counters
from .options import options_of
from .promoting import Promoting, Rest
from .quorum_change import QuorumChange, set_quorum
from .reading import Reading, Sight
from .refusals import BadSpaceName, UnknownSpace
from .status import LimboStatus, status_of
from .submission import Receipt, Submission, Wait
from .submitting import Submitting
from .transaction import TransactionBuilder
from .validators import Validator, Validators
from .views import SpaceRow, space_rows, state_of
from .waiting import Verdict, Waiting, error_of, verdict_of

__all__ = ["LimboApi"]

TIMEOUT_S = 5.0


@checked
class LimboApi:
    """The limbo on one node. All methods belong to the node's event loop. Times are seconds."""

    def __init__(self, host: Host) -> None:
        self.host = host
        #: The replicated settings of the plugin.
        self.settings = PluginSettings(host)
        self.options = options_of(host)
        self.counters = Counters()
        self.validators = Validators()
        self.hooks = Hooks(host, self.counters)
        self.waiting = Waiting(host)
        self.proposer = Proposer(host, self.counters)
        self.submitting = Submitting(host, self.options, self.proposer, self.waiting, self.counters)
        self.promoting = Promoting(
            host, self.proposer, self.submitting, self.waiting, self.counters
        )
        self.acking = Acking(host, self.options.zone, self.validators, self.counters)
        self.reading = Reading(host)

    # --- transactions ---

    @overload
    async def submit(
        self,
        writes: Iterable[Write],
        conditions: Sequence[Condition] = ...,
        *,
        order: Order = ...,
        wait: Literal["complete", "submit"] = ...,
        timeout_s: float | None = ...,
    ) -> Receipt: ...

    @overload
    async def submit(
        self,
        writes: Iterable[Write],
        conditions: Sequence[Condition] = ...,
        *,
        order: Order = ...,
        wait: Literal["none"],
        timeout_s: float | None = ...,
    ) -> Submission: ...

    @overload
    async def submit(
        self,
        writes: Iterable[Write],
        conditions: Sequence[Condition] = ...,
        *,
        order: Order = ...,
        wait: Wait,
        timeout_s: float | None = ...,
    ) -> Receipt | Submission: ...

    async def submit(
        self,
        writes: Iterable[Write],
        conditions: Sequence[Condition] = (),
        *,
        order: Order = "ordered",
        wait: Wait = "complete",
        timeout_s: float | None = TIMEOUT_S,
    ) -> Receipt | Submission:
        """Write several keys of several spaces, all or nothing, if all conditions hold.

        `wait` "complete" returns when the transaction is confirmed, "submit" when it is in the
        queue, "none" at once, with the handle to wait by. Transactions of one node enter the queue
        in the order of the calls. What is sync, or ordered behind something pending, waits for room
        in the queue, in that order, too; with "none" it is refused instead.

        `order` "independent" (async only) is confirmed at once, whatever is pending.

        Raises the refusals of `refusals.py` (`Unclaimed`, `ForeignOwner`, `StaleOwner`,
        `ConditionFailed`, `KeyPending`, `QueueFull`, ...) and `RolledBack`: verdicts.
        `NotSubmitted` and other `NotApplied` kinds: nothing happened. `StillPending` and
        `SubmitUnknown` after `timeout_s`: nothing is decided, and their `submission` goes on
        waiting. A cancelled caller withdraws what was not written; what was written goes on.
        """
        submission = self.submitting.enter(writes, conditions, order, wait, timeout_s)
        future = submission.future
        if future is None:
            return submission
        try:
            return await future
        except asyncio.CancelledError:
            self.submitting.leave(submission)
            raise

    def transaction(self) -> TransactionBuilder:
        """Gather writes and conditions, then `await t.submit(...)`."""
        return TransactionBuilder(self)

    async def flush(self, timeout_s: float | None = TIMEOUT_S) -> None:
        """Wait until all that was submitted here before is in the queue, or refused.

        Raises ReadTimeout: some of it still waits.
        """
        if not await self.submitting.flush(self._deadline(timeout_s) or NEVER):
            raise ReadTimeout(
                f"{len(self.submitting)} transactions of this node are not in the queue yet"
            )

    # --- verdicts ---

    def verdict(self, position: int) -> Verdict:
        """What became of a position, as far as this node has applied the log."""
        return verdict_of(self.host.view(), position)

    async def wait_verdict(self, position: int, timeout_s: float | None = TIMEOUT_S) -> Verdict:
        """Wait until a position, which may not have been given yet, is decided.

        Raises `StillPending` after `timeout_s`.
        """
        return await self.waiting.verdict(position, self._deadline(timeout_s))

    async def wait_confirmed(self, position: int, timeout_s: float | None = TIMEOUT_S) -> int:
        """Wait until everything up to a position is decided; the confirmed position then.

        Raises `StillPending` after `timeout_s`.
        """
        return await self.waiting.confirmed(position, self._deadline(timeout_s))

    # --- reading ---

    async def get(
        self,
        space: str,
        key: bytes,
        *,
        view: Sight = "confirmed",
        timeout_s: float = TIMEOUT_S,
    ) -> Row | None:
        """A row, with the position that wrote it; see `reading.py` for `view`.

        Raises `UnknownSpace`, and with "linearizable" ReadTimeout.
        """
        return await self.reading.get(space, key, view, timeout_s)

    async def range(
        self,
        space: str,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int = 0,
        reverse: bool = False,
        view: Sight = "confirmed",
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[tuple[bytes, Row], ...]:
        """Rows with `start` <= key < `end` in key order, `limit` at most (0: all)."""
        return await self.reading.range(space, start, end, limit, reverse, view, timeout_s)

    # --- the owner ---

    async def promote(self, timeout_s: float = TIMEOUT_S, *, rest: Rest = "wait") -> Promoted:
        """Make this node the owner of the queue, in a new term.

        What the old owner left is settled first: with `rest` "wait" this waits for its quorum (what
        is submitted meanwhile is rolled back), with "roll back" it does not, and all of it is
        rolled back. The owner itself keeps its term.

        Raises `InterferingPromote` (another one was faster), `PromoteTimedOut` (nothing has
        changed), `InAnotherPromote`, ReadTimeout and other `NotApplied` kinds; OutcomeUnknown when
        the log did not answer in time.
        """
        return await self.promoting.promote(rest, timeout_s)

    async def demote(self, timeout_s: float = TIMEOUT_S, *, rest: Rest = "wait") -> Demoted:
        """Give the queue away: nobody owns it afterwards. Raises `NotOwner`, else as `promote`."""
        return await self.promoting.demote(rest, timeout_s)

    async def rollback(
        self,
        position: int,
        reason: str = "requested",
        *,
        term: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> RolledBackTo:
        """Have everything that is pending from a position on rolled back, if it still is pending.

        `term` is the one in which the caller has seen it, the present one if it is None. Raises
        `AlreadyConfirmed`, `AlreadyRolledBack`, `UnknownPosition`, `StaleTerm`; else as `promote`.
        """
        return await self.promoting.rollback(position, reason, term, timeout_s)

    @property
    def busy(self) -> bool:
        """Whether this node is promoting, demoting or rolling back."""
        return bool(self.promoting.doing)

    async def set_quorum(
        self,
        quorum: str | int | None = None,
        *,
        over: str | None = None,
        zones: dict[str, int] | None = None,
        validators: dict[str, int] | None = None,
    ) -> None:
        """Change the parts of the quorum that are given; it counts for what waits, too.

        `quorum` is a number or an expression in N, the nodes that count: "cores" or "members"
        (`over`). `zones` and `validators` say how many nodes each must have. Raises InvalidSetting.
        """
        text = str(quorum) if isinstance(quorum, int) else quorum
        await set_quorum(self.host, QuorumChange(text, over, zones, validators))

    # --- spaces ---

    async def create_space(
        self, name: str, *, sync: bool = False, timeout_s: float | None = None
    ) -> SpaceCreated:
        """Make a space. `sync`: what writes to it waits for the quorum. Raises `SpaceExists`."""
        if not name.isascii():
            raise BadSpaceName(name)
        made: SpaceCreated = await self.host.propose(CreateSpace(name, sync), timeout_s=timeout_s)
        return made

    async def alter_space(
        self, name: str, *, sync: bool, timeout_s: float | None = None
    ) -> SpaceAltered:
        """Make a space sync or async from the next transaction on.

        From format 2 on, only the owner may make a sync space async: raises `ForeignOwner`,
        `StaleOwner`, `Unclaimed`.
        """
        _require_possible(name)
        command: AlterSpace | AlterFenced = AlterSpace(name, sync)
        if self._is_fenced:
            command = AlterFenced(name, sync, state_of(self.host.view()).term)
        done: SpaceAltered = await self.host.propose(command, timeout_s=timeout_s)
        return done

    async def drop_space(self, name: str, *, timeout_s: float | None = None) -> SpaceDropped:
        """Remove a space with all its rows. Raises `SpaceBusy`: something pending writes it.

        A sync space is dropped by the owner only, and when the quorum has that (format 2): raises
        `ForeignOwner`, `StaleOwner`, `Unclaimed`, `DropPending`, and `RolledBack`, if the drop was
        rolled back. `StillPending` after `timeout_s`: the drop goes on, and its `position` tells.
        """
        _require_possible(name)
        if not self._is_fenced:
            done: SpaceDropped = await self.host.propose(DropSpace(name), timeout_s=timeout_s)
            return done
        deadline = self._deadline(TIMEOUT_S if timeout_s is None else timeout_s)
        command = DropFenced(name, state_of(self.host.view()).term)
        entered: DropEntered = await self.host.propose(command, timeout_s=timeout_s)
        if not entered.confirmed:
            verdict = await self.waiting.verdict(entered.position, deadline)
            if verdict.fate != "confirmed":
                raise error_of(self.host.view(), entered.position)
        return SpaceDropped(entered.rows)

    @property
    def _is_fenced(self) -> bool:
        return self.host.view().version >= FORMAT_CONFIRMATIONS

    def spaces(self) -> tuple[SpaceRow, ...]:
        """All spaces, by name."""
        return space_rows(self.host.view())

    # --- callbacks and validators ---

    def on_confirm(self, callback: Callable[[Confirmed], None]) -> Callable[[], None]:
        """Call back for every confirmed transaction, oldest first; the result takes it away again.

        It must be quick, and submit nothing itself (spawn a task for that). While a callback is
        registered, applying a transaction costs this node some microseconds more.
        """
        return self.hooks.on_confirm(callback)

    def on_rollback(self, callback: Callable[[Undone], None]) -> Callable[[], None]:
        """Call back for every transaction that is rolled back, newest first."""
        return self.hooks.on_rollback(callback)

    def on_restored(self, callback: Callable[[Restored], None]) -> Callable[[], None]:
        """Call back when a snapshot has taken this node over verdicts that were not called back."""
        return self.hooks.on_restored(callback)

    def validator(self, name: str, function: Validator | None = None) -> Callable[..., Validator]:
        """Register a validator: a decorator, or a call with the function. See `validators.py`.

        It counts once the setting `quorum_validators` names it, for what waits already, too.
        """

        def register(given: Validator) -> Validator:
            self.validators.add(name, given)
            self.acking.wake()
            return given

        if function is not None:
            register(function)
        return register

    # --- seeing ---

    def status(self) -> LimboStatus:
        """Owner, quorum, queue, nodes and spaces, as this node's copy has them."""
        return status_of(
            self.host,
            busy=self.busy,
            is_in_rollback=self.hooks.is_in_rollback,
            waiting_for_room=len(self.submitting.room),
            submitting=len(self.submitting),
        )

    def stop(self) -> None:
        """The node stops: end what callers wait for. Called by the service."""
        self.submitting.stop()
        self.waiting.stop()

    def _deadline(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self.host.runtime.monotonic() + timeout_s


def _require_possible(name: str) -> None:
    """No space has a name that could not even be sent. Raises UnknownSpace."""
    if not name.isascii():
        raise UnknownSpace(name)
