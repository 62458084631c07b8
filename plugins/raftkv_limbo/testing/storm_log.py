"""The log of a storm of the limbo, observed from outside of the plugin that decides in it.

Every command, and every change of members, voters and settings, is judged when it is first applied
anywhere, with the plugin's tables as they were before it and are after it (`storm_check.py`).
Whenever it is applied again, on another node or in the next life of one, it must be answered the
same, and leave the same verdicts behind.

First applications come in the order of the log: who applies an entry has applied all before it, or
restored what somebody made of them. So the state before a step must be the one after the step
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from raftkv.plugin import Context, Host, MemberChange, Setting, SettingChange
from raftkv.testing.current import running_host
from raftkv.testing.storm_worlds import Answers, tried
from raftkv_limbo import Limbo
from raftkv_limbo.api import LimboApi
from raftkv_limbo.commands import Ack
from raftkv_limbo.options import LimboOptions

from .storm_check import check_step
from .storm_ledger import Effect, Ledger, NewVoters, Seen, Step, seen_of

__all__ = ["Log", "StormLimbo"]

Apply = Callable[[Any, Context], Any]
Judged = Callable[[Step, Effect], None]


class StormLimbo(Limbo):
    """The plugin, with what it applies and the nodes that open it under observation."""

    def __init__(
        self,
        log: Log,
        opened: Callable[[Host, LimboApi], None],
        settings: tuple[Setting, ...],
        zone_of: Callable[[str], str],
    ) -> None:
        self._log = log
        self._opened = opened
        # In place of the class's: this run's.
        self.settings = settings  # type: ignore[misc]
        self.options = _with_zone(zone_of)  # type: ignore[misc]

    def open(self, host: Host) -> LimboApi:
        api = super().open(host)
        self._opened(host, api)
        return api

    def apply(self, command: Any, ctx: Context) -> Any:
        return self._log.apply(super().apply, command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        member = change.new or change.old
        assert member is not None
        what = (member.name, member.incarnation, change.ended, change.new is None)
        self._log.change(super().on_members, change, ctx, what)

    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        self._log.change(super().on_setting, change, ctx, (change.key,))

    def on_voters(self, old: tuple[str, ...], ctx: Context) -> None:
        def hook(change: NewVoters, ctx: Context) -> None:
            Limbo.on_voters(self, change.old, ctx)

        self._log.change(hook, NewVoters(old, ctx.voters), ctx, ("voters",))


def _with_zone(zone_of: Callable[[str], str]) -> type[LimboOptions]:
    """The plugin's options, whose zone is that of the machine on which they are read."""
    zone: str = msgspec.field(default_factory=lambda: zone_of(running_host()))
    made = msgspec.defstruct(
        "StormOptions",
        [("zone", str, zone)],
        bases=(LimboOptions,),
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, LimboOptions)
    return made


class Log:
    """What the nodes apply. `judged` is told each step and what it did."""

    def __init__(self, violated: Callable[[str, Sequence[str]], None], judged: Judged) -> None:
        self._violated = violated
        self._judged = judged
        self.ledger = Ledger()
        self._answers = Answers()
        self._seen = Seen()

    def apply(self, apply: Apply, command: Any, ctx: Context) -> Any:
        """Let the plugin apply the command, and look at it."""
        place = (ctx.index, ctx.serial)
        again = self._answers.known(place)
        before = self._seen if again else self._seen_before(ctx)
        try:
            result, refusal = tried(apply, command, ctx)
        except Exception as error:
            text = f"index {ctx.index}, {command}: {type(error).__name__}: {error}"
            self._violated("commands are applied or refused", [text])
            raise
        # What a refusal has written is undone, after this.
        state = None if refusal is not None else ctx.table("meta").get("state")
        said = (result, refusal and (type(refusal), refusal.args), state)
        if again:
            found = self._answers.check(place, said, type(command).__name__)
            self._violated("the same verdicts everywhere", found)
        else:
            self._answers.first(place, said)
            self._judge(command, ctx, before, result, refusal)
        if refusal is not None:
            raise refusal
        return result

    def change(
        self,
        hook: Callable[[Any, Context], None],
        change: MemberChange | SettingChange | NewVoters,
        ctx: Context,
        what: tuple[Any, ...],
    ) -> None:
        """Let the plugin see a change, and look at what it does."""
        place = (ctx.index, ctx.serial, *what)
        again = self._answers.known(place)
        before = self._seen if again else self._seen_before(ctx)
        hook(change, ctx)
        state = ctx.table("meta").get("state")
        if again:
            found = self._answers.check(place, state, type(change).__name__)
            self._violated("the same verdicts everywhere", found)
        else:
            self._answers.first(place, state)
            self._judge(change, ctx, before, None, None)

    def _seen_before(self, ctx: Context) -> Seen:
        """What the step before has left; the state tells whether anything came in between."""
        if ctx.table("meta").get("state", Seen().state) != self._seen.state:
            text = f"index {ctx.index}: the state is not as the step before left it"
            self._violated("nothing changes but by steps", [text])
        return self._seen

    def _judge(
        self,
        command: Any,
        ctx: Context,
        before: Seen,
        result: Any,
        refusal: Exception | None,
    ) -> None:
        after = before if refusal is not None else _seen_after(command, before, ctx)
        self._seen = after
        step = Step(
            index=ctx.index,
            serial=ctx.serial,
            now=ctx.now,
            command=command,
            origin=None if ctx.origin is None else (ctx.origin.name, ctx.origin.incarnation),
            members=dict(ctx.members),
            voters=ctx.voters,
            settings=ctx.settings,
            before=before,
            after=after,
            result=result,
            refusal=refusal,
            version=ctx.version,
        )
        effect, found = check_step(step, self.ledger)
        for check, text in found:
            self._violated(check, [text])
        self.ledger.note(step, effect)
        self._judged(step, effect)


def _seen_after(command: Any, before: Seen, ctx: Context) -> Seen:
    """Most steps are acknowledgements that decide nothing: then only nodes have changed.

    If anything else has, it is seen by the next step, which compares all rows with the ledger's.
    """
    if isinstance(command, Ack) and ctx.table("meta").get("state") is before.state:
        return replace(before, nodes=dict(ctx.table("nodes").scan()))
    return seen_of(ctx)
