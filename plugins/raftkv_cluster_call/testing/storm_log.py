"""The log of a storm of calls, observed from outside of the plugin that decides in it.

Every command, and every change of the members, is judged when it is first applied anywhere: with
the plugin's tables as they were before it and are after it (`storm_check.py`). Whenever it is
applied again, on another node or in the next life of one, it must be answered the same.

First applications come in the order of the log: who applies an entry has applied all before it, or
restored what somebody made of them. So the state before a step must be the one after the step
before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from raftkv.errors import RaftkvError
from raftkv.plugin import Context, Host, MemberChange, Setting
from raftkv_cluster_call import Calls, CallsApi
from raftkv_cluster_call.options import CallsOptions

from .storm_check import State, Step, check_step
from .storm_ledger import Ledger, check_effect

__all__ = ["Log", "StormCalls", "state_of"]

Apply = Callable[[Any, Context], Any]


class StormCalls(Calls):
    """The plugin, with what it applies and the nodes that open it under observation."""

    def __init__(
        self,
        log: Log,
        opened: Callable[[Host, CallsApi], None],
        settings: tuple[Setting, ...],
        options: Mapping[str, Any],
    ) -> None:
        self._log = log
        self._opened = opened
        # In place of the class's: this run's.
        self.settings = settings  # type: ignore[misc]
        self.options = _with_defaults(options)  # type: ignore[misc]

    def open(self, host: Host) -> CallsApi:
        api = super().open(host)
        self._opened(host, api)
        return api

    def apply(self, command: Any, ctx: Context) -> Any:
        return self._log.apply(super().apply, command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        self._log.change(super().on_members, change, ctx)


def _with_defaults(given: Mapping[str, Any]) -> type[CallsOptions]:
    """The plugin's options, with this run's values as their defaults."""
    made = msgspec.defstruct(
        "StormOptions",
        [(name, type(value), value) for name, value in given.items()],
        bases=(CallsOptions,),
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, CallsOptions)
    return made


class Log:
    """What the nodes apply. `decided` is told each step."""

    def __init__(
        self,
        effectful: Mapping[str, bool],
        violated: Callable[[str, Sequence[str]], None],
        decided: Callable[[Step], None],
    ) -> None:
        self._effectful = effectful
        self._violated = violated
        self._decided = decided
        self.ledger = Ledger()
        self._state = State()
        # Where in the log -> what was answered: a result, or the type of the refusal.
        self._said: dict[tuple[Any, ...], Any] = {}

    def apply(self, apply: Apply, command: Any, ctx: Context) -> Any:
        """Let the plugin apply the command, and look at it."""
        place = (ctx.index, ctx.serial)
        if place in self._said:
            result, refusal = _tried(apply, command, ctx)
            said = result if refusal is None else type(refusal)
            if said != self._said[place]:
                text = f"{command} at index {ctx.index}: {self._said[place]}, and now {said}"
                self._violated("the same answer everywhere", [text])
        else:
            before = self._seen_before(ctx)
            result, refusal = _tried(apply, command, ctx)
            self._said[place] = result if refusal is None else type(refusal)
            self._judge(command, ctx, before, result, refusal)
        if refusal is not None:
            raise refusal
        return result

    def change(
        self, hook: Callable[[MemberChange, Context], None], change: MemberChange, ctx: Context
    ) -> None:
        """Let the plugin see a change of the members, and look at what it does."""
        member = change.new or change.old
        assert member is not None
        place = (ctx.index, ctx.serial, member.name, member.incarnation, change.ended)
        if place in self._said:
            hook(change, ctx)
            return
        before = self._seen_before(ctx)
        hook(change, ctx)
        self._said[place] = None
        self._judge(change, ctx, before, None, None)

    def _seen_before(self, ctx: Context) -> State:
        before = state_of(ctx)
        if before != self._state:
            text = f"index {ctx.index}: the tables are not as the step before left them"
            self._violated("nothing changes but by steps", [text])
        return before

    def _judge(
        self,
        command: Any,
        ctx: Context,
        before: State,
        result: Any,
        refusal: RaftkvError | None,
    ) -> None:
        # What a refusal has written is undone.
        after = self._state = before if refusal is not None else state_of(ctx)
        step = Step(
            index=ctx.index,
            serial=ctx.serial,
            now=ctx.now,
            command=command,
            origin=None if ctx.origin is None else (ctx.origin.name, ctx.origin.incarnation),
            lives={each.name: each.incarnation for each in ctx.members.values() if each.up},
            roles={name: each.role for name, each in ctx.members.items()},
            settings=ctx.settings,
            before=before,
            after=after,
            result=result,
            refusal="" if refusal is None else type(refusal).__name__,
        )
        self._violated("the log decides rightly", check_step(step))
        found = check_effect(step, self._effectful, self.ledger)
        self._violated("effects come with the cursor", found)
        self.ledger.note(step)
        self._decided(step)


def state_of(tables: Any) -> State:
    """The plugin's tables as they are now: of a `Context` or a `View`."""
    table, meta = tables.table, tables.table("meta")
    return State(
        last=meta.get("last", 0),
        granted=meta.get("granted", 0),
        reset=meta.get("reset", 0),
        records=dict(table("records").scan()),
        cursors=dict(table("cursors").scan()),
        queue=dict(table("queue").scan()),
        due={ticket: deadline for (deadline, ticket), _ in table("due").scan()},
        left=dict(table("left").scan()),
        lost=dict(table("lost").scan()),
    )


def _tried(apply: Apply, command: Any, ctx: Context) -> tuple[Any, RaftkvError | None]:
    try:
        return apply(command, ctx), None
    except RaftkvError as refusal:
        return None, refusal
