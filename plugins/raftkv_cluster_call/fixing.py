"""`fix`: make the nodes equal again, by the most advanced one, or say why that cannot be.

A node that was skipped past a call, or that stands at a call it fails to execute, may hold other
data than the rest. `fix` compares what calls have made of the nodes (their `NodeState`s) and lets
all cursors stand at one new id: at once where the data is the lead's, elsewhere with a copy of it.

Rules of this file:

1. It decides from dumps, each as of one cursor, and the log checks all those cursors once more when
   it is applied (`Force`). Whatever happens in between is found there and nowhere else; then
   nothing was changed, and the verdict is "moved".
2. A node with the lead's cursor and other data is never changed. Both executed the same calls, so
   the difference comes from outside (a local file, an environment), and a copy would bury it.
3. Who is merely busy is waited for: a node that is executing what was committed is not stuck, and
   to force it would throw away what it is about to do by itself.
4. Values never leave the comparison: reports name keys.

What is ugly: two whole copies are in memory at a time, the lead's and that of the node which is
compared with it; `STATE_BYTES_MAX` bounds each. And the lead may itself not have executed
everything, when the one that had is gone for good (force-leave). The ids between are then passed
over by all; the report lists them. A node whose states equal the lead's although it never executed
a call that the lead did is forwarded past it: no state covers what the call does, or it was undone.
The report names these calls and warns, and the log notes them with the node as skipped. For a node
that gets a copy the report names them too (`copied`). The log does not: a node whose data is older
than its cursor has to copy again unless what lies between was skipped (`states.covers`), and data
from before the copy lacks these calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from raftkv.errors import NotApplied, OutcomeUnknown, RemoteFailed
from raftkv.plugin import Host, Member, TableView, View

from .commands import Cursor, Force, Moved, Record
from .reports import KEYS_SHOWN_MAX, Differing, FixReport, Reachability, Skipped
from .transfer import Copied
from .views import calls_between, cursor_of, last_id

__all__ = ["Copies", "fix"]

# How long nodes that are executing calls are waited for, before `fix` says that the log moves.
SETTLE_S = 10.0
# Between two looks at this node's own view.
LOOK_S = 0.05


class Copies(Protocol):
    """Where the states come from: transfer.py."""

    async def fetch(self, node: str, *, timeout_s: float) -> Copied:
        """The states of that node, which may be this one, dumped afresh.

        Raises kinds of NotApplied, of OutcomeUnknown, or RemoteFailed.
        """


class _Plan(msgspec.Struct):
    """What the comparison came to. Pairs are (node, the cursor it was compared at)."""

    forward: list[tuple[str, int]] = []
    sync: list[tuple[str, int]] = []
    differing: list[Differing] = []
    # Nodes that have the lead's cursor and not its values.
    unchanged: list[str] = []


class _Stopped(Exception):
    """The comparison cannot go on: the verdict, and why in words."""

    def __init__(self, verdict: Literal["moved", "unreachable"], reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


async def fix(host: Host, copies: Copies, timeout_s: float) -> FixReport:
    """Compare, force, and wait until those that copy have finished, all within `timeout_s`.

    Raises what a barrier or a proposal raises: kinds of `NotApplied`, and `OutcomeUnknown`, after
    which a second `fix` is safe. All else is a verdict of the report.
    """
    until = host.runtime.monotonic() + timeout_s
    await host.barrier("linearizable", timeout_s=timeout_s)
    busy = await _settled(host, min(SETTLE_S, timeout_s / 2))
    view = host.view()
    lead, at = _lead(view)
    report = FixReport("consistent", lead, at, absent=_absent(view))
    if busy:
        return replace(report, verdict="moved", reason=f"{busy}; fix again when that is over")
    try:
        last, rows = last_id(view), _compared(view)
        _lead_answers(view, lead)
        plan = await _compare(host, copies, rows, lead, until)
        _source_is_left(view, rows, plan)
    except _Stopped as stopped:
        return replace(report, verdict=stopped.verdict, reason=stopped.reason)
    report = replace(
        report,
        verdict="differs" if plan.unchanged else "consistent",
        differing=tuple(plan.differing),
    )
    if not plan.forward and not plan.sync:
        return report
    view = host.view()
    passed_over = calls_between(view, at, last)
    skipped = _skipped(view, plan.forward, at)
    copied = _skipped(view, plan.sync, at)
    warning = _warning(view, skipped)
    if at < last:
        # They stand at the lead's cursor, which is behind the log too.
        level = [(name, row.id) for name, row in rows.items() if row.id == at]
        plan.forward.extend(level)
    forced = Force(last, tuple(sorted(plan.forward)), tuple(sorted(plan.sync)))
    try:
        await host.propose(forced, timeout_s=max(1.0, until - host.runtime.monotonic()))
    except Moved:
        reason = "a call was made or executed while the nodes were compared; fix again"
        return replace(report, verdict="moved", reason=reason)
    synced = tuple(name for name, _ in forced.sync)
    return replace(
        report,
        verdict="differs" if plan.unchanged else "fixed",
        id=last + 1,
        forwarded=tuple(name for name, _ in forced.forward),
        synced=synced,
        passed_over=passed_over,
        skipped=skipped,
        copied=copied,
        reason=warning,
        copying=await _copied(host, synced, last + 1, until),
    )


# --- who is compared ------------------------------------------------------------------------------


def _cursors(view: View) -> Iterator[tuple[Member, Cursor]]:
    for name, member in view.members.items():
        row: Cursor | None = cursor_of(view, name)
        if row is not None:
            yield member, row


def _compared(view: View) -> dict[str, Cursor]:
    return {
        member.name: row for member, row in _cursors(view) if member.up and row.state == "following"
    }


def _absent(view: View) -> tuple[Reachability, ...]:
    found = []
    for member, row in _cursors(view):
        if not member.up:
            found.append(Reachability(member.name, f"down, its cursor is {row.id}"))
        elif row.state != "following":
            found.append(Reachability(member.name, f"{row.state}: it has to copy the state first"))
    return tuple(found)


def _lead(view: View) -> tuple[str, int]:
    """The most advanced node: among equals one that is up, then by name."""
    following = [
        (-row.id, not member.up, member.name)
        for member, row in _cursors(view)
        if row.state == "following"
    ]
    if not following:
        return "", 0
    behind, _, name = min(following)
    return name, -behind


def _lead_answers(view: View, lead: str) -> None:
    if not lead:
        raise _Stopped("unreachable", "no node executes calls: none follows the log")
    if not view.members[lead].up:
        raise _Stopped(
            "unreachable",
            f"{lead} is the most advanced and is down: start it, or, if it is lost, force it to "
            f"leave the calls, and fix again",
        )


def _source_is_left(view: View, rows: Mapping[str, Cursor], plan: _Plan) -> None:
    """Copies come from cores only (joining.py): one of them must not need a copy itself."""
    copying = [name for name, _ in plan.sync]
    cores = [name for name in rows if view.members[name].role == "core"]
    if copying and all(name in copying for name in cores):
        raise _Stopped(
            "unreachable",
            f"{', '.join(copying)} would need a copy, copies come from cores only, and no core "
            f"that is up has executed as much as the most advanced node: start one that has, "
            f"remove the cause and wait, or skip what fails there",
        )


async def _settled(host: Host, timeout_s: float) -> str:
    """Wait until nothing runs and everybody who is up has executed all, or fails. What is left."""
    until = host.runtime.monotonic() + timeout_s
    while True:
        busy = _busy(host.view())
        if not busy or host.runtime.monotonic() >= until:
            return busy
        await host.runtime.sleep(LOOK_S)


def _busy(view: View) -> str:
    last = last_id(view)
    if view.table("meta").get("granted", 0):
        record: Record = view.table("records")[last]
        return f"call {last} ({record.function}) is running on {record.initiator}"
    waiting = len(view.table("queue"))
    if waiting:
        return f"{waiting} calls are waiting for their turn"
    for name, row in _compared(view).items():
        if row.id < last and not row.failing:
            return f"{name} is still executing calls: it stands at {row.id} of {last}"
    return ""


# --- comparing ------------------------------------------------------------------------------------


async def _compare(
    host: Host, copies: Copies, rows: Mapping[str, Cursor], lead: str, until: float
) -> _Plan:
    plan = _Plan()
    model = await _states(host, copies, lead, rows[lead].id, until)
    for name, row in rows.items():
        if name == lead:
            continue
        keys = list(_differing(model, await _states(host, copies, name, row.id, until)))
        if keys:
            more = max(0, len(keys) - KEYS_SHOWN_MAX)
            plan.differing.append(Differing(name, tuple(keys[:KEYS_SHOWN_MAX]), more))
        if row.id == rows[lead].id:
            if keys:
                plan.unchanged.append(name)
        else:
            (plan.sync if keys else plan.forward).append((name, row.id))
    return plan


async def _states(
    host: Host, copies: Copies, node: str, cursor: int, until: float
) -> Mapping[str, Mapping[str, bytes]]:
    left_s = until - host.runtime.monotonic()
    if left_s <= 0:
        raise _Stopped("unreachable", f"the time was up before {node} was asked")
    try:
        copy = await copies.fetch(node, timeout_s=left_s)
    except (NotApplied, OutcomeUnknown, RemoteFailed) as error:
        raise _Stopped("unreachable", f"{node} did not show its state: {error}") from error
    if copy.as_of != cursor:
        reason = f"{node} went from {cursor} to {copy.as_of} meanwhile; fix again"
        raise _Stopped("moved", reason)
    return copy.states


def _differing(
    one: Mapping[str, Mapping[str, bytes]], other: Mapping[str, Mapping[str, bytes]]
) -> Iterator[str]:
    """The keys that only one has, or that have other values, in order, as "state:key"."""
    for state in sorted({*one, *other}):
        left, right = one.get(state, {}), other.get(state, {})
        for key in sorted({*left, *right}):
            if left.get(key) != right.get(key):
                yield f"{state}:{key}"


def _skipped(view: View, nodes: list[tuple[str, int]], at: int) -> tuple[Skipped, ...]:
    """What the lead has executed, and these nodes, which are (name, cursor), have not."""
    found = ((node, calls_between(view, cursor, at)) for node, cursor in sorted(nodes))
    return tuple(Skipped(node, ids) for node, ids in found if ids)


def _warning(view: View, skipped: tuple[Skipped, ...]) -> str:
    """What an operator has to know about them."""
    if not skipped:
        return ""
    records: TableView[int, Record] = view.table("records")
    names = {records[id].function for each in skipped for id in each.ids}
    nodes = ", ".join(each.node for each in skipped)
    return (
        f"{nodes} never executed some calls, and no state shows a difference: what "
        f"{', '.join(sorted(names))} does outside of the states is missing there; call it again, "
        "or mend these nodes by hand"
    )


# --- afterwards -----------------------------------------------------------------------------------


async def _copied(host: Host, nodes: tuple[str, ...], id: int, until: float) -> tuple[str, ...]:
    """Wait for the nodes' copies, until the time is up: who has not finished."""
    while True:
        view = host.view()
        copying = tuple(name for name in nodes if _copies(view, name))
        if not copying or host.runtime.monotonic() >= until:
            return copying
        await host.runtime.sleep(LOOK_S)


def _copies(view: View, name: str) -> bool:
    row: Cursor | None = cursor_of(view, name)
    return row is not None and row.state != "following"
