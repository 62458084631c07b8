"""The log of each region of a storm, observed from outside of the plugin in it.

Every command is judged when it is applied first anywhere in its region, with what the tables say
then (`storm_check.py`). When it is applied again, on another node or in the next life of one, it
must be answered the same; that the tables are the same too is what the clusters' digests say.

First applications come in the order of the log: who applies an entry has applied all before it, or
restored what somebody made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raftkv.plugin import Context, Host, Service, Setting
from raftkv.testing.storm_worlds import Answers, tried
from raftkv_subscriptions import Subscriptions
from raftkv_subscriptions.api import SubscriptionsApi
from raftkv_subscriptions.commands import SnapshotAnswered, Sweep
from raftkv_subscriptions.links.transport import TransportFactory
from raftkv_subscriptions.service import SubscriptionsService

from .storm_check import check_step
from .storm_ledger import Ledger, Step
from .storm_rules import SNAPSHOTS

__all__ = ["Log", "StormSubscriptions"]

Apply = Callable[[Any, Context], Any]
SAME = "the same everywhere"


class StormSubscriptions(Subscriptions):
    """The plugin of one region, with what it applies and the nodes that open it observed."""

    def __init__(
        self,
        log: Log,
        served: Callable[[Host, SubscriptionsApi, SubscriptionsService], None],
        settings: tuple[Setting, ...],
        transports: TransportFactory,
    ) -> None:
        super().__init__(transports)
        self._log = log
        self._served = served
        # In place of the class's: this run's.
        self.settings = settings  # type: ignore[misc]

    def apply(self, command: Any, ctx: Context) -> Any:
        return self._log.apply(super().apply, command, ctx)

    def service(self, host: Host, api: SubscriptionsApi) -> Service:
        made = super().service(host, api)
        assert isinstance(made, SubscriptionsService)
        self._served(host, api, made)
        return made


class Log:
    """What the nodes of one region apply. `judged` is told each step, all of them one ledger."""

    def __init__(
        self,
        region: str,
        ledger: Ledger,
        violated: Callable[[str, Sequence[str]], None],
        judged: Callable[[Step], None],
        sweep_rows: int = 0,
    ) -> None:
        self.region = region
        self._ledger = ledger
        self._violated = violated
        self._judged = judged
        self._sweep_rows = sweep_rows
        self._answers = Answers()

    def apply(self, apply: Apply, command: Any, ctx: Context) -> Any:
        """Let the plugin apply the command, and look at it."""
        place = (ctx.index, ctx.serial)
        if isinstance(command, Sweep) and 0 < self._sweep_rows < command.rows_max:
            # So that what takes one Sweep else takes several, with other commands in between.
            command = Sweep(command.topics, self._sweep_rows)
        try:
            result, refusal = tried(apply, command, ctx)
        except Exception as error:
            text = f"{self.region} index {ctx.index}, {command}: {type(error).__name__}: {error}"
            self._violated("commands are applied or refused", [text])
            raise
        said = (result, refusal and (type(refusal), str(refusal)))
        if self._answers.known(place):
            found = self._answers.check(place, said, type(command).__name__)
            self._violated(SAME, found)
        else:
            self._answers.first(place, said)
            self._judge(command, ctx, result, refusal)
            if isinstance(command, SnapshotAnswered) and refusal is None:
                self._repeat(apply, command, ctx)
        if refusal is not None:
            raise refusal
        return result

    def _judge(self, command: Any, ctx: Context, result: Any, refusal: Exception | None) -> None:
        step = Step(
            region=self.region,
            index=ctx.index,
            now=ctx.now,
            command=command,
            origin=None if ctx.origin is None else (ctx.origin.name, ctx.origin.incarnation),
            members=dict(ctx.members),
            settings=ctx.settings,
            tables=ctx,
            result=result,
            refusal=refusal,
        )
        for check, text in check_step(step, self._ledger):
            self._violated(check, [text])
        self._judged(step)

    def _repeat(self, apply: Apply, command: SnapshotAnswered, ctx: Context) -> None:
        """A proposal of a link without a verdict is repeated, so the same answer may be in the log
        twice. The second one is not counted and writes nothing, so the state stays as it is."""
        result, refusal = tried(apply, command, ctx)
        if refusal is not None or result.counted:
            text = f"{self.region} index {ctx.index}, {command} arrives again: {refusal or result}"
            self._violated(SNAPSHOTS, [text])
