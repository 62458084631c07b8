"""The log of a connect storm, observed from outside of the plugin that decides in it.

Every command is judged when it is first applied anywhere: with the rows as they were before it and
are after it (`storm_check.py`). Whenever it is applied again, on another node or in the next life
of one, it must be answered the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftkv.errors import RaftkvError
from raftkv.plugin import Context, Host, Setting
from raftkv_lcr.api import LcrApi
from raftkv_lcr.commands import Channel
from raftkv_lcr.modes import mode_of
from raftkv_lcr.options import LcrOptions
from raftkv_lcr.order import first_ticket
from raftkv_lcr.plugin import LCR

from .storm_check import Decision, Registry, check_decision, named_clients
from .storm_order import TimeAndTicket, check_further_attempts

__all__ = ["Log", "StormLCR"]

Apply = Callable[[Any, Context], Any]


class StormLCR(LCR):
    """The plugin, with what it applies and the nodes that open it under observation."""

    def __init__(
        self,
        log: Log,
        opened: Callable[[Host, LcrApi], None],
        settings: tuple[Setting, ...],
        options: type[LcrOptions],
    ) -> None:
        self._log = log
        self._opened = opened
        # In place of the class's: this run's.
        self.settings = settings  # type: ignore[misc]
        self.options = options  # type: ignore[misc]

    def open(self, host: Host) -> LcrApi:
        api = super().open(host)
        self._opened(host, api)
        return api

    def apply(self, command: Any, ctx: Context) -> Any:
        return self._log.apply(super().apply, command, ctx)


class Log:
    """What the nodes apply. `decided` is told each decision, and the owner it deleted by name."""

    def __init__(
        self,
        violated: Callable[[str, Sequence[str]], None],
        decided: Callable[[Decision, Channel | None], None],
    ) -> None:
        self._violated = violated
        self._decided = decided
        self.registry = Registry()
        # By (client, channel): the places of connections that have to try again.
        self._places: dict[tuple[str, str], TimeAndTicket] = {}
        # (index, serial) -> what was answered: a result, or the type of the refusal.
        self._said: dict[tuple[int, int], Any] = {}

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
            result, refusal = self._first(apply, command, ctx)
        if refusal is not None:
            raise refusal
        return result

    def _first(self, apply: Apply, command: Any, ctx: Context) -> tuple[Any, RaftkvError | None]:
        clients, ids, mode = ctx.table("clients"), named_clients(command), mode_of(ctx)
        before = {client: clients.get(client) for client in ids}
        lives = {each.name: each.incarnation for each in ctx.members.values() if each.up}
        result, refusal = _tried(apply, command, ctx)
        self._said[(ctx.index, ctx.serial)] = result if refusal is None else type(refusal)
        decision = Decision(
            index=ctx.index,
            serial=ctx.serial,
            command=command,
            origin=None if ctx.origin is None else (ctx.origin.name, ctx.origin.incarnation),
            lives=lives,
            epoch=mode.epoch,
            before=before,
            # What a refusal has written is undone.
            after={client: clients.get(client) for client in ids} if refusal is None else before,
            result=result,
            refusal="" if refusal is None else type(refusal).__name__,
            mode=mode.mode,
            now=ctx.now,
            age_max_ms=ctx.settings["connect_age_max_ms"],
            first=first_ticket(ctx),
        )
        self._violated("the log decides rightly", check_decision(decision))
        self._violated(
            "no connection becomes newer", check_further_attempts(self._places, decision)
        )
        self._decided(decision, self.registry.note(decision))
        return result, refusal


def _tried(apply: Apply, command: Any, ctx: Context) -> tuple[Any, RaftkvError | None]:
    try:
        return apply(command, ctx), None
    except RaftkvError as refusal:
        return None, refusal
