"""Bugs to be planted into the plugin: each breaks one of its rules for the time of a storm.

    with planted("last-in-first-out"):
        ...                               # the storm must notice

A storm that finds nothing proves nothing until it has found what is known to be wrong. These are
the mistakes that the seed's upstream made and repaired, those its text warns of, and those that a
log of calls invites. They replace functions (`raftkv/testing/patching.py`), so a rename is an error
and not a bug that is never planted; the plugin itself has no switch for any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec.structs import replace

from raftkv.kv import KV, Put
from raftkv.testing.patching import around, around_entry
from raftkv.testing.planting import Bug, Bugs, Wrap
from raftkv_cluster_call import (
    cursors,
    fixing,
    log,
    plugin,
    states,
    trimming,
    views,
    waiting,
    worker,
)
from raftkv_cluster_call.commands import Advance, Commit, Committed, Cursor, Skip, Sync
from raftkv_cluster_call.proposing import NotWanted, Proposer
from raftkv_cluster_call.views import decided_id, last_id, participants, record_of

__all__ = ["BUGS", "SEEDS_MAX", "planted"]

# Each must be found within so many seeds.
SEEDS_MAX = 200

BUGS = Bugs(SEEDS_MAX)
planted = BUGS.planted
_wrapping = BUGS.wrapping


def _applying(name: str, what: str, command: type) -> Callable[[Wrap], Wrap]:
    """Register a bug that wraps what applies a command."""
    return BUGS.applying(plugin._APPLY, command)(name, what)


# The log ------------------------------------------------------------------------------------------


@_wrapping(
    "grant-to-the-dead",
    "an id is granted to a reservation of a life that has ended",
    log,
    "_cannot_run",
)
def _grant_to_the_dead(cannot_run: Callable[..., str | None]) -> Callable[..., str | None]:
    def broken(reservation: Any, ctx: Any) -> str | None:
        reason = cannot_run(reservation, ctx)
        return None if reason == "initiator_ended" else reason

    return broken


@_wrapping(
    "last-in-first-out",
    "whoever came last has the next turn",
    log,
    "grant_next",
)
def _last_in_first_out(grant_next: Callable[..., None]) -> Callable[..., None]:
    def broken(ctx: Any) -> None:
        if ctx.table("meta").get("granted", 0):
            return
        for ticket, reservation in list(ctx.table("queue").scan(reverse=True)):
            if log._cannot_run(reservation, ctx) is None:
                log._grant(ticket, reservation, ctx)
                return
        grant_next(ctx)

    return broken


def _commits_anything(commit: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        record = record_of(ctx, command.id)
        if record is None or record.state != "aborted":
            return commit(command, ctx)
        ctx.table("records").put(command.id, replace(record, state="committed"))
        return Committed(command.id, participants(ctx), ctx.index)

    return broken


@contextlib.contextmanager
def _commit_what_was_aborted() -> Iterator[None]:
    """Neither the log looks, nor the initiator before it proposes."""
    with (
        around_entry(plugin._APPLY, Commit, _commits_anything),
        around(worker, "is_decided", lambda is_decided: lambda *given: False),
    ):
        yield


BUGS["commit-what-was-aborted"] = Bug(
    "a commit does not look whether its id is reserved still, and whose it is",
    _commit_what_was_aborted,
    seeds_max=SEEDS_MAX,
)


@_wrapping(
    "abort-forgets-cursors",
    "the cursors that stand before an aborted id stay there",
    log,
    "abort_reserved",
)
def _abort_forgets_cursors(abort_reserved: Callable[..., None]) -> Callable[..., None]:
    def broken(cause: str, ctx: Any, **more: Any) -> None:
        table = ctx.table("cursors")
        before = dict(table.scan())
        abort_reserved(cause, ctx, **more)
        for node, cursor in before.items():
            table.put(node, cursor)

    return broken


@_wrapping(
    "aborted-without-a-word",
    "a call that its initiator may have run is aborted, and nobody is told",
    log,
    "_note_lost",
)
def _aborted_without_a_word(note_lost: Callable[..., None]) -> Callable[..., None]:
    return lambda *given: None


@_wrapping(
    "trim-forgets-the-slow",
    "records are deleted although a slow node still needs them",
    trimming,
    "clean_below",
)
def _trim_forgets_the_slow(clean_below: Callable[..., int]) -> Callable[..., int]:
    def broken(ctx: Any) -> int:
        return max(clean_below(ctx), decided_id(ctx) - int(ctx.settings["history_max"]))

    return broken


@_wrapping(
    "gap-jumped",
    "a node that fell out of the history goes on at the oldest record that is kept",
    trimming,
    "to_gap",
)
def _gap_jumped(to_gap: Callable[..., Cursor]) -> Callable[..., Cursor]:
    def broken(node: str, cursor: Cursor, as_of: int, ctx: Any) -> Cursor:
        jumped = replace(cursor, state="following", id=max(cursor.id, as_of))
        ctx.table("cursors").put(node, jumped)
        return jumped

    return broken


@_wrapping(
    "join-at-the-latest",
    "a new node begins at the last id, without a copy of what earlier calls have made",
    cursors,
    "_joined",
)
def _join_at_the_latest(joined: Callable[..., Cursor]) -> Callable[..., Cursor]:
    return lambda node, old, ctx: Cursor(decided_id(ctx), "following")


@_applying(
    "sync-to-the-end",
    "a node that has copied goes on at the last id, not at that of its copy",
    Sync,
)
def _sync_to_the_end(sync: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        return sync(replace(command, as_of=max(command.as_of, decided_id(ctx))), ctx)

    return broken


@_applying(
    "skip-two",
    "a skip passes over two calls",
    Skip,
)
def _skip_two(skip: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        advanced = skip(command, ctx)
        further = record_of(ctx, advanced.cursor + 1)
        if further is not None and further.state == "committed":
            return skip(replace(command, id=advanced.cursor + 1), ctx)
        return advanced

    return broken


@_wrapping(
    "failing-for-ever",
    "a node that has executed what failed goes on to count as stuck",
    cursors,
    "place",
)
def _failing_for_ever(place: Callable[..., int]) -> Callable[..., int]:
    def broken(node: str, cursor: Cursor, id: int, ctx: Any) -> int:
        at = place(node, cursor, id, ctx)
        table = ctx.table("cursors")
        table.put(node, replace(table[node], failing=cursor.failing, attempts=cursor.attempts))
        return at

    return broken


@_applying(
    "effect-forgotten",
    "a cursor moves, and the effect that came with it is not made",
    Advance,
)
def _effect_forgotten(advance: Callable[..., Any]) -> Callable[..., Any]:
    return lambda command, ctx: advance(replace(command, effect=None), ctx)


# Nodes --------------------------------------------------------------------------------------------


@_wrapping(
    "replicas-run-ahead",
    "a replica runs what its initiator has reserved, without waiting for the outcome",
    worker,
    "next_for",
)
def _replicas_run_ahead(next_for: Callable[..., Any]) -> Callable[..., Any]:
    def broken(view: Any, node: str) -> Any:
        found, last = next_for(view, node), last_id(view)
        record, cursor = record_of(view, last), view.table("cursors").get(node)
        if found is None and cursor is not None and cursor.id == last - 1 and record is not None:
            return None if record.initiator == node else (last, record)
        return found

    return broken


@_wrapping(
    "one-before-its-time",
    "a node that has several calls to execute runs the second one first",
    worker,
    "next_for",
)
def _one_before_its_time(next_for: Callable[..., Any]) -> Callable[..., Any]:
    def broken(view: Any, node: str) -> Any:
        found = next_for(view, node)
        further = None if found is None else record_of(view, found[0] + 1)
        if found is None or further is None or further.state != "committed":
            return found
        return found[0] + 1, further

    return broken


@_wrapping(
    "cursor-first",
    "the cursor moves before the function has run",
    worker.Worker,
    "_attempt",
)
def _cursor_first(attempt: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def broken(self: worker.Worker, id: int, record: Any) -> Any:
        with contextlib.suppress(NotWanted):
            await self._proposer.submit(Advance(id), lambda: self._is_next(id))
        return await attempt(self, id, record)

    return broken


@_wrapping(
    "effect-apart",
    "effect and cursor are two commands, so that a crash between them doubles the effect",
    Proposer,
    "submit",
)
def _effect_apart(submit: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def broken(self: Proposer, command: Any, *wanted: Any) -> Any:
        if isinstance(command, Advance) and isinstance(command.effect, Put):
            await self._host.api(KV).put(command.effect.key, command.effect.value)
            command = replace(command, effect=None)
        return await submit(self, command, *wanted)

    return broken


@_wrapping(
    "given-up-runs",
    "a call runs although its caller was told that its time was over before its turn",
    waiting.Initiations,
    "close",
)
def _given_up_runs(close: Callable[..., bool]) -> Callable[..., bool]:
    def broken(self: waiting.Initiations, initiation: Any) -> bool:
        # It stays where the worker finds it.
        return bool(initiation.state == "waiting")

    return broken


@_wrapping(
    "nobody-is-waited-for",
    "a call is answered ok as soon as it is committed, whoever is required",
    waiting.Waiting,
    "reached",
)
def _nobody_is_waited_for(reached: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: waiting.Waiting, *given: Any) -> Any:
        return waiting.Reached("ok", ())

    return broken


@_wrapping(
    "lost-states-unnoticed",
    "a node whose state is gone goes on from its cursor as if nothing had been",
    states,
    "covers",
)
def _lost_states_unnoticed(covers: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *given: True


@_wrapping(
    "failed-calls-wipe-history",
    "calls that failed push completed ones out of the history",
    views,
    "_before_completed",
)
def _failed_calls_wipe_history(before: Callable[..., Any]) -> Callable[..., Any]:
    return lambda view, floor, count: floor - count


# What nodes are taken past ------------------------------------------------------------------------


_wrapping(
    "force-notes-nothing",
    "a node is taken past calls by force, and the log notes none of them as skipped",
    trimming,
    "_skipping",
)(lambda skipping: lambda cursor, last, ctx: cursor)
_wrapping(
    "fix-names-nothing",
    "a fix takes a node past calls that it never executed, and names none of them",
    fixing,
    "_skipped",
)(lambda skipped: lambda view, nodes, at: ())
_wrapping(
    "fix-leaves-no-source",
    "a fix lets all cores copy from a replicant, which none of them does",
    fixing,
    "_source_is_left",
)(lambda source_is_left: lambda view, rows, plan: None)
