"""Bugs to be planted into the plugin: each breaks one of its rules for the time of a storm.

    with planted("one-ack-is-enough"):
        ...                               # the storm must notice

A storm that finds nothing proves nothing until it has found what is known to be wrong. These are
the mistakes that the seed's upstream made and repaired, those that it still has, and those that a
queue with quorums invites. They replace functions (`raftkv/testing/patching.py`), so a rename is an
error and not a bug that is never planted; the plugin itself has no switch for any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

from raftkv.errors import NotApplied
from raftkv.plugin import Proposer
from raftkv.testing.patching import around, around_entry, replaced
from raftkv.testing.planting import Bugs, Wrap
from raftkv_limbo import (
    acking,
    acks,
    entering,
    hooks,
    ownership,
    queue,
    quorum,
    reading,
    submitting,
    views,
    waiting,
)
from raftkv_limbo import plugin as plugin_module
from raftkv_limbo import submission as submissions
from raftkv_limbo.commands import DropSpace, SpaceDropped
from raftkv_limbo.errors import NotSubmitted

__all__ = ["BUGS", "SEEDS_MAX", "planted"]

# Each must be found within so many seeds.
SEEDS_MAX = 200

BUGS = Bugs(SEEDS_MAX)
planted = BUGS.planted
_wrapping = BUGS.wrapping
_patching = BUGS.patching


def _nothing(*given: Any, **more: Any) -> None:
    return None


def _ignoring(*keys: str) -> Wrap:
    """What is reached if these requirements did not exist."""

    def wrap(reached: Callable[[Any], int]) -> Callable[[Any], int]:
        def broken(view: Any) -> int:
            settings = {**view.settings, **{key: {} for key in keys}}
            without = SimpleNamespace(
                settings=settings, members=view.members, voters=view.voters, table=view.table
            )
            return reached(without)

        return broken

    return wrap


# The quorum ---------------------------------------------------------------------------------------


@_wrapping(
    "one-ack-is-enough",
    "whatever one node has acknowledged is confirmed",
    queue,
    "reached",
)
def _one_ack_is_enough(reached: Callable[..., int]) -> Callable[..., int]:
    def broken(view: Any) -> int:
        acked = [node.acked for _, node in view.table("nodes").scan()]
        return max(acked, default=reached(view))

    return broken


_wrapping("zones-forgotten", "nobody looks whether the named zones have it", queue, "reached")(
    _ignoring("quorum_zones")
)
_wrapping("validators-forgotten", "nobody looks whether validators approve", queue, "reached")(
    _ignoring("quorum_validators")
)
_wrapping(
    "replicants-counted",
    "replicants count, whatever the setting says",
    quorum,
    "counts",
)(lambda counts: lambda *given: True)
_wrapping(
    "always-fast",
    "Raft's commit is taken for the quorum, however many nodes are asked for",
    entering,
    "is_fast",
)(lambda is_fast: lambda view: True)


@contextlib.contextmanager
def _dead_acks_count() -> Iterator[None]:
    """Nothing is dropped, and nobody looks from which life it is."""

    def keep(members_changed: Callable[..., None]) -> Callable[..., None]:
        return lambda change, ctx: queue.confirm_reached(ctx, "member", "")

    def all_rows(living: Callable[..., Any]) -> Callable[..., Any]:
        return lambda view: [
            (name, node) for name, node in view.table("nodes").scan() if name in view.members
        ]

    with around(acks, "members_changed", keep), around(quorum, "_living", all_rows):
        yield


_patching("dead-acks-count", "what a node said in a former life goes on to count", _dead_acks_count)
_wrapping(
    "new-quorum-unheard",
    "a lower quorum does not count for what waits already",
    acks,
    "setting_changed",
)(lambda setting_changed: _nothing)


@_wrapping(
    "members-unheard",
    "a change of members does not count for what waits already",
    acks,
    "members_changed",
)
def _members_unheard(members_changed: Callable[..., None]) -> Callable[..., None]:
    def broken(change: Any, ctx: Any) -> None:
        with replaced(acks, "confirm_reached", _nothing):
            members_changed(change, ctx)

    return broken


# The queue ----------------------------------------------------------------------------------------


@_wrapping(
    "async-overtakes",
    "an async transaction is written at once, although something is pending",
    queue.Draft,
    "wait",
)
def _async_overtakes(wait: Callable[..., None]) -> Callable[..., None]:
    def broken(self: queue.Draft, position: int, entry: Any) -> None:
        if entry.sync:
            wait(self, position, entry)
        else:
            self.settle(position, entry)

    return broken


@_wrapping(
    "newest-confirmed-first",
    "a confirm folds in the newest transaction first, so that the oldest value stays",
    queue.Draft,
    "confirm",
)
def _newest_confirmed_first(confirm: Callable[..., None]) -> Callable[..., None]:
    def broken(self: queue.Draft, upto: int) -> None:
        folds: list[tuple[int, Any]] = []
        with replaced(queue.Draft, "fold", lambda draft, *given: folds.append(given)):
            confirm(self, upto)
        for position, writes in reversed(folds):
            self.fold(position, writes)

    return broken


@_wrapping(
    "rollback-of-one",
    "a rollback takes one transaction away, and not those that wait behind it",
    queue.Draft,
    "roll_back",
)
def _rollback_of_one(roll_back: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: queue.Draft, *given: Any) -> Any:
        def only(pending_from: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *asked: islice(pending_from(*asked), 1)

        with around(queue, "pending_from", only):
            return roll_back(self, *given)

    return broken


@_wrapping(
    "trim-forgets-the-pending",
    "old entries are deleted although they are pending",
    queue.Draft,
    "trim",
)
def _trim_forgets_the_pending(trim: Callable[..., None]) -> Callable[..., None]:
    def broken(self: queue.Draft, kept: int) -> None:
        head, self.head = self.head, 0
        trim(self, kept)
        self.head = head

    return broken


@_wrapping(
    "conditions-on-the-confirmed",
    "conditions are judged by what is confirmed, not by what waits before them",
    entering._Entrance,
    "_require",
)
def _conditions_on_the_confirmed(require: Callable[..., None]) -> Callable[..., None]:
    return lambda self, conditions, *, pending: require(self, conditions, pending=False)


_wrapping(
    "independent-overwrites",
    "an independent transaction may write what a pending one writes",
    entering._Entrance,
    "_require_free",
)(lambda require_free: _nothing)
_wrapping(
    "no-limit",
    "the queue takes more than its limits say",
    entering._Entrance,
    "_require_room",
)(lambda require_room: _nothing)


def _drop_without_look(command: DropSpace, ctx: Any) -> SpaceDropped:
    space = views.space_of(ctx, command.name)
    ctx.table("spaces").delete(command.name)
    if space.keys:
        ctx.table("dropped").put(space.id, None)
    return SpaceDropped(space.keys)


_patching(
    "dropped-while-busy",
    "a space is dropped although something pending writes to it",
    lambda: around_entry(plugin_module._APPLY, DropSpace, lambda drop: _drop_without_look),
)


# Owner and term -----------------------------------------------------------------------------------


@_wrapping(
    "drop-not-awaited",
    "a synchronous space is dropped at once, whether a quorum has that or not",
    entering._Entrance,
    "enter_drop",
)
def _drop_not_awaited(enter_drop: Callable[..., bool]) -> Callable[..., bool]:
    def broken(self: entering._Entrance, name: str) -> bool:
        self._fast = True
        return enter_drop(self, name)

    return broken


@_wrapping(
    "dropped-and-written",
    "a space takes transactions while its drop is pending",
    queue,
    "require_kept",
)
def _dropped_and_written(require_kept: Callable[..., None]) -> Callable[..., None]:
    return _nothing


@_wrapping(
    "confirmed-by-anybody",
    "the record of a confirmation names the owner, whose acknowledgement did not complete it",
    queue,
    "add_confirmations",
)
def _confirmed_by_anybody(add: Callable[..., None]) -> Callable[..., None]:
    def broken(ctx: Any, positions: Any, *, by: str, **more: Any) -> None:
        add(ctx, positions, by=ctx.table("meta")["state"].owner or by, **more)

    return broken


@_wrapping(
    "stale-owner-writes",
    "a former owner of the same name may write, in another life or under an older term",
    entering,
    "_denial",
)
def _stale_owner_writes(denial: Callable[..., Any]) -> Callable[..., Any]:
    def broken(draft: Any, origin: Any, term: int) -> Any:
        return None if draft.owner == origin.name else denial(draft, origin, term)

    return broken


_wrapping("everybody-writes", "nobody looks who owns the queue", entering, "_denial")(
    lambda denial: _nothing
)
_wrapping(
    "terms-ignored",
    "of two promotions at once both succeed",
    ownership,
    "_require_term",
)(lambda require_term: _nothing)
_wrapping(
    "promoted-unsettled",
    "a promotion does not look whether what it waited for is settled",
    ownership,
    "_require_settled",
)(lambda require_settled: _nothing)
_wrapping(
    "promotion-keeps-the-rest",
    "a promotion leaves what the former owner has pending in the queue",
    ownership,
    "_roll_back_rest",
)(lambda roll_back_rest: lambda *given: 0)
_wrapping(
    "rollback-after-confirm",
    "a request to roll back does not look whether a confirm came first",
    ownership,
    "fate",
)(lambda fate: lambda *given: "pending")


# Nodes --------------------------------------------------------------------------------------------


_wrapping(
    "time-out-decides",
    "a caller whose time is over is told that nothing happened",
    submissions.Submission,
    "unknown",
)(lambda unknown: lambda self: NotSubmitted("its time is over"))


@_wrapping(
    "confirmed-too-early",
    "a caller is told confirmed as soon as its transaction is in the queue",
    submissions.Submission,
    "place",
)
def _confirmed_too_early(place: Callable[..., None]) -> Callable[..., None]:
    def broken(self: submissions.Submission, *given: Any) -> None:
        place(self, *given)
        self.confirm()

    return broken


_wrapping(
    "last-call-first",
    "what was submitted in one turn is written in the opposite order",
    submitting.Submitting,
    "_next_batch",
)(lambda next_batch: lambda self: list(reversed(next_batch(self))))


@_wrapping(
    "sent-again",
    "a batch without an answer is written once more, without asking what became of it",
    Proposer,
    "_settled",
)
def _sent_again(settled: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def broken(self: Proposer, *given: Any) -> Any:
        raise NotApplied("it has no answer")

    return broken


_wrapping(
    "waiters-forgotten",
    "nobody tells those who wait that the queue has changed",
    waiting.Waiting,
    "look",
)(lambda look: _nothing)


@_wrapping(
    "failure-approves",
    "a validator that fails counts as one that approves",
    acking.Acking,
    "_ask",
)
def _failure_approves(ask: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    async def broken(self: acking.Acking, *given: Any) -> bool:
        try:
            return await ask(self, *given)
        except LookupError:
            return True

    return broken


@_wrapping(
    "nobody-is-asked",
    "a node speaks for its validators without asking them",
    acking.Acking,
    "_validated",
)
def _nobody_is_asked(validated: Callable[..., Any]) -> Callable[..., Awaitable[int]]:
    async def broken(self: acking.Acking, *given: Any) -> int:
        return views.newest_sync(self._host.view())

    return broken


_wrapping(
    "dirty-reads",
    "a confirmed read shows what is pending",
    views,
    "confirmed_row",
)(lambda confirmed_row: lambda *given: views.pending_row(*given))


@_wrapping(
    "reads-never-wait",
    "a linearizable read shows this node's copy at once",
    reading.Reading,
    "_barrier",
)
def _reads_never_wait(barrier: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
    async def broken(self: reading.Reading, *given: Any) -> None:
        return None

    return broken


def _in_opposite_order(tell: Callable[..., None]) -> Callable[..., None]:
    def broken(self: hooks.Hooks, *given: Any) -> None:
        calls: list[Any] = []
        with replaced(hooks.Hooks, "_call", lambda hooks, *event: calls.append(event)):
            tell(self, *given)
        for event in reversed(calls):
            self._call(*event)

    return broken


_wrapping(
    "hooks-newest-first",
    "callbacks are told what was confirmed newest first",
    hooks.Hooks,
    "_tell_confirms",
)(_in_opposite_order)
_wrapping(
    "hooks-oldest-undone-first",
    "callbacks are told what was rolled back oldest first",
    hooks.Hooks,
    "_tell_rollbacks",
)(_in_opposite_order)
