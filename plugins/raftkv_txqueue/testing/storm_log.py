"""The log of a storm of transactional queues, observed from outside of the plugin in it.

Every command, and every change of members, is judged when it is first applied anywhere, with what
the queues show after it (`storm_check.py`). Whenever it is applied again, on another node or in the
next life of one, it must be answered the same, and the queues that it touched must show the same:
so what is judged once holds on every node at every index.

First applications come in the order of the log: who applies an entry has applied all before it, or
restored what somebody made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raftkv.plugin import Context, Host, MemberChange, Setting
from raftkv.testing.storm_worlds import Answers, tried
from raftkv_txqueue import TxQueue
from raftkv_txqueue.api import TxQueueApi
from raftkv_txqueue.commands import Sweep
from raftkv_txqueue.options import TxQueueOptions

from .storm_check import check_step
from .storm_ledger import Ledger, Step
from .storm_shown import shown_of

__all__ = ["Log", "StormTxQueue"]

Apply = Callable[[Any, Context], Any]
Judged = Callable[[Step], None]
SAME = "the same everywhere"


class StormTxQueue(TxQueue):
    """The plugin, with what it applies and the nodes that open it under observation."""

    def __init__(
        self,
        log: Log,
        opened: Callable[[Host, TxQueueApi], None],
        settings: tuple[Setting, ...],
        stage_operations: int,
    ) -> None:
        self._log = log
        self._opened = opened
        # In place of the class's: this run's.
        self.settings = settings  # type: ignore[misc]
        self.options = _with(stage_operations)  # type: ignore[misc]

    def open(self, host: Host) -> TxQueueApi:
        api = super().open(host)
        self._opened(host, api)
        return api

    def apply(self, command: Any, ctx: Context) -> Any:
        return self._log.apply(super().apply, command, ctx)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        self._log.change(super().on_members, change, ctx)


def _with(stage_operations: int) -> type[TxQueueOptions]:
    """The plugin's options, with so many operations gathered on a node at most."""
    made = msgspec.defstruct(
        "StormOptions",
        [("stage_operations", int, stage_operations), ("stage_bytes", int, 700)],
        bases=(TxQueueOptions,),
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )
    assert issubclass(made, TxQueueOptions)
    return made


class Log:
    """What the nodes apply. `judged` is told each step."""

    def __init__(
        self,
        violated: Callable[[str, Sequence[str]], None],
        judged: Judged,
        sweep_rows: int = 0,
    ) -> None:
        self._violated = violated
        self._judged = judged
        self._sweep_rows = sweep_rows
        self.ledger = Ledger()
        self._answers = Answers()
        # Where a step touched queues: which.
        self._touched: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self.index = 0
        self.now = 0

    def apply(self, apply: Apply, command: Any, ctx: Context) -> Any:
        """Let the plugin apply the command, and look at it."""
        place = (ctx.index, ctx.serial)
        if isinstance(command, Sweep) and 0 < self._sweep_rows < command.rows_max:
            # So that what takes one Sweep else takes several, with other commands in between.
            command = Sweep(self._sweep_rows)
        try:
            result, refusal = tried(apply, command, ctx)
        except Exception as error:
            text = f"index {ctx.index}, {command}: {type(error).__name__}: {error}"
            self._violated("commands are applied or refused", [text])
            raise
        self._look(place, command, ctx, result, refusal)
        if refusal is not None:
            raise refusal
        return result

    def change(
        self, hook: Callable[[Any, Context], None], change: MemberChange, ctx: Context
    ) -> None:
        """Let the plugin see a change, and look at what it does."""
        member = change.new or change.old
        assert member is not None
        place = (ctx.index, ctx.serial, member.name, member.incarnation, change.ended)
        hook(change, ctx)
        self._look(place, change, ctx, None, None)

    def _look(
        self,
        place: tuple[Any, ...],
        command: Any,
        ctx: Context,
        result: Any,
        refusal: Exception | None,
    ) -> None:
        again = self._answers.known(place)
        if not again:
            self._judge(command, ctx, result, refusal)
            touched = [self.ledger.by_id[each] for each in self.ledger.touched]
            if refusal is None:
                self._touched[place] = tuple(each.name for each in touched if not each.deleted)
        said = (result, refusal and (type(refusal), refusal.args), self._fingerprint(place, ctx))
        if again:
            found = self._answers.check(place, said, type(command).__name__)
            self._violated(SAME, found)
        else:
            self._answers.first(place, said)

    def _fingerprint(self, place: tuple[Any, ...], ctx: Context) -> int:
        """What the queues show that this step touched."""
        shown = [
            (name, seq, each.message, each.deliveries, each.state, each.holder)
            for name in self._touched.get(place, ())
            for seq, each in shown_of(ctx, name).items()
        ]
        return hash(tuple(shown))

    def _judge(self, command: Any, ctx: Context, result: Any, refusal: Exception | None) -> None:
        self.index, self.now = ctx.index, ctx.now
        step = Step(
            index=ctx.index,
            serial=ctx.serial,
            now=ctx.now,
            command=command,
            origin=None if ctx.origin is None else (ctx.origin.name, ctx.origin.incarnation),
            members=dict(ctx.members),
            settings=ctx.settings,
            tables=ctx,
            result=result,
            refusal=refusal,
        )
        for check, text in check_step(step, self.ledger):
            self._violated(check, [text])
        self._judged(step)
