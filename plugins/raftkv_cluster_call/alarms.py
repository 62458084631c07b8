"""What is wrong, so that somebody looks: raised once, cleared once.

Alarms follow from replicated rows, so every node knows those of the whole cluster:

    call_failed     a node fails to execute a committed call, and stands before it
    gap             a node needs a full copy: the calls it has to execute are trimmed, or its data
                    is gone
    joining_stuck   a node has been joining for a while, or says itself that it cannot
    effect_lost     a call was aborted although its initiator may have run it; until acknowledged

What a row does not say is known on the node itself: why it cannot join. `since_ms` is when this
node saw it first, on the log's clock, so after a restart it is later than the beginning.

Each alarm is logged on the node that it concerns (WARNING, and INFO when it is cleared), and given
to the callbacks of every node. It names the call's id, the class of the error and its place; the
arguments are nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

from raftkv.plugin import Host, Metric

from .causes import without_place
from .commands import Cursor
from .metrics import Counters
from .options import options_of
from .views import last_id, lost_effects
from .waiting import Initiations

__all__ = ["ALARMS", "Alarm", "AlarmBook", "AlarmName"]

AlarmName = Literal["call_failed", "gap", "joining_stuck", "effect_lost"]
ALARMS: Final[tuple[AlarmName, ...]] = ("call_failed", "gap", "joining_stuck", "effect_lost")
# Tries to join after which the node itself says that it is stuck.
JOINING_TRIES: Final = 5

# What tells an alarm from another: the cause may change while it lasts.
_Key = tuple[AlarmName, str, int]


class Alarm(msgspec.Struct, frozen=True):
    """One alarm: its name, whose it is, the call's id, since when, the class and place."""

    name: AlarmName
    node: str
    id: int
    since_ms: int
    cause: str = ""


class Trouble(Protocol):
    """What `joining.Joining` says of this node."""

    @property
    def since_ms(self) -> int: ...

    @property
    def attempts(self) -> int: ...

    @property
    def cause(self) -> str: ...


class AlarmBook:
    """The alarms of the cluster, as this node sees them."""

    def __init__(self, host: Host, initiations: Initiations, counters: Counters) -> None:
        self._host = host
        self._initiations = initiations
        self._counters = counters
        self._patience_s = options_of(host).joining_stuck_s
        self._raised: dict[_Key, Alarm] = {}
        # When each node was first seen joining, by the runtime's clock.
        self._joining: dict[str, float] = {}
        self._callbacks: list[Callable[[Alarm, bool], None]] = []
        #: What keeps this node from taking part; set with the joiner.
        self.trouble: Callable[[], Trouble | None] = lambda: None

    def current(self) -> tuple[Alarm, ...]:
        """All of them, the oldest first."""
        self.look()
        return tuple(sorted(self._raised.values(), key=lambda alarm: alarm.since_ms))

    def subscribe(self, callback: Callable[[Alarm, bool], None]) -> None:
        self._callbacks.append(callback)
        for alarm in self._raised.values():
            self._tell(callback, alarm, True)

    def metrics(self) -> Sequence[Metric]:
        counted = dict.fromkeys(ALARMS, 0)
        for alarm in self.current():
            counted[alarm.name] += 1
        doc = "Alarms of the whole cluster, as this node sees them."
        return [
            Metric("alarms", "gauge", count, doc, {"alarm": name})
            for name, count in counted.items()
        ]

    def look(self) -> None:
        """Raise and clear what has changed. Cheap while all is well."""
        found = {(alarm.name, alarm.node, alarm.id): alarm for alarm in self._found()}
        for key, alarm in found.items():
            known = self._raised.get(key)
            if known is None:
                self._raised[key] = alarm
                self._change(alarm, True)
            elif known.cause != alarm.cause:
                self._raised[key] = replace(known, cause=alarm.cause)
        for key in [key for key in self._raised if key not in found]:
            self._change(self._raised.pop(key), False)

    # --- inside ---

    def _found(self) -> Iterator[Alarm]:
        view, now_ms = self._host.view(), self._host.now_ms()
        joining: dict[str, float] = {}
        for node, row in view.table("cursors").scan():
            if row.failing:
                yield Alarm("call_failed", node, row.failing, now_ms, without_place(row.cause))
            if row.state == "gap":
                yield Alarm("gap", node, row.id, now_ms, self._gap_cause(node, row))
            elif row.state == "joining":
                joining[node] = self._joining.get(node, self._host.runtime.monotonic())
        fresh = [node for node in joining if node not in self._joining]
        self._joining = joining
        for _ in fresh:
            # Nothing in the log says that time has passed.
            self._host.runtime.call_later(self._patience_s + 0.001, self.look)
        yield from self._stuck(last_id(view), now_ms)
        for node, id, lost in lost_effects(view):
            if node != self._host.name or not self._initiations.ran_not(id):
                cause = f"{lost.function} version {lost.version}: {without_place(lost.cause)}"
                yield Alarm("effect_lost", node, id, now_ms, cause)

    def _stuck(self, last: int, now_ms: int) -> Iterator[Alarm]:
        now, trouble = self._host.runtime.monotonic(), self.trouble()
        in_gap = (row := self._own()) is not None and row.state == "gap"
        mine = trouble is not None and trouble.attempts >= JOINING_TRIES and not in_gap
        if mine and trouble is not None:
            id = 0 if row is None else row.id
            yield Alarm("joining_stuck", self._host.name, id, now_ms, trouble.cause)
        for node, since in self._joining.items():
            if now - since >= self._patience_s and not (mine and node == self._host.name):
                yield Alarm("joining_stuck", node, 0, now_ms, f"the calls stand at {last}")

    def _own(self) -> Cursor | None:
        row: Cursor | None = self._host.view().table("cursors").get(self._host.name)
        return row

    def _gap_cause(self, node: str, row: Cursor) -> str:
        trouble = self.trouble() if node == self._host.name else None
        needed = f"needs a copy as of call {row.as_of} or later"
        return needed if trouble is None else f"{needed}; {trouble.cause}"

    def _change(self, alarm: Alarm, raised: bool) -> None:
        if alarm.node == self._host.name:
            self._log(alarm, raised)
        for callback in self._callbacks:
            self._tell(callback, alarm, raised)

    def _log(self, alarm: Alarm, raised: bool) -> None:
        if not raised:
            text = "calls: alarm %s of %s at call %d is cleared"
            self._host.log.info(text, alarm.name, alarm.node, alarm.id)
            return
        self._counters.add("alarms_raised")
        self._host.log.warning(
            "calls: alarm %s of %s at call %d: %s", alarm.name, alarm.node, alarm.id, alarm.cause
        )

    def _tell(self, callback: Callable[[Alarm, bool], None], alarm: Alarm, raised: bool) -> None:
        try:
            callback(alarm, raised)
        except Exception as error:
            self._host.log.error("calls: a callback for alarms failed: %s", type(error).__name__)
