"""Alarms of the registry: work of this node that takes longer than it should.

    rebuild_slow    this node enters its channels again, after a switch of the mode or in a new
                    incarnation, and clients elsewhere do not find them meanwhile
    cleanup_slow    this node, as the leader, deletes the rows of dead nodes
    sweep_slow      this node looks for rows behind which no channel stands

Each is known to the node that does the work, and nowhere else. It is logged once when it is raised
(WARNING) and once when the work has ended (INFO).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from raftkv.plugin import Host, Metric

__all__ = ["ALARMS", "Alarm", "AlarmName", "LongRuns"]

AlarmName = Literal["rebuild_slow", "cleanup_slow", "sweep_slow"]
ALARMS: Final[tuple[AlarmName, ...]] = ("rebuild_slow", "cleanup_slow", "sweep_slow")

_ADVICE: Final = {
    "rebuild_slow": "is the log slow, or does the broker list channels that it does not hold?",
    "cleanup_slow": "is the log slow? The setting cleanup_rows_max is the work of one entry",
    "sweep_slow": "raise the setting sweep_rows_per_s, or sweep_interval_s",
}


class Alarm(msgspec.Struct, frozen=True):
    """Work that has been going on since `since_ms` (log clock), longer than `limit_s`."""

    name: AlarmName
    since_ms: int
    limit_s: float


class LongRuns:
    """What this node is doing, and which of it has taken too long."""

    def __init__(self, host: Host) -> None:
        self._host = host
        # By a number for each block, since two of one name may overlap.
        self._raised: dict[int, Alarm] = {}
        self._number = 0

    @contextlib.contextmanager
    def watched(self, name: AlarmName, limit_s: float) -> Iterator[None]:
        """Raise the alarm if the block takes longer than `limit_s` seconds, until it ends."""
        self._number += 1
        number, alarm = self._number, Alarm(name, self._host.now_ms(), limit_s)
        timer = self._host.runtime.call_later(limit_s, self._raise, number, alarm)
        try:
            yield
        finally:
            timer.cancel()
            if self._raised.pop(number, None) is not None:
                self._host.log.info("lcr: alarm %s is over", name)

    def current(self) -> Sequence[Alarm]:
        """Those that are raised, the oldest first."""
        return list(self._raised.values())

    def metrics(self) -> list[Metric]:
        doc = "1 while this work of the node takes longer than it should."
        raised = {alarm.name for alarm in self._raised.values()}
        return [
            Metric("alarms", "gauge", int(name in raised), doc, {"alarm": name}) for name in ALARMS
        ]

    def _raise(self, number: int, alarm: Alarm) -> None:
        self._raised[number] = alarm
        self._host.log.warning(
            "lcr: alarm %s: under way for %g s; %s", alarm.name, alarm.limit_s, _ADVICE[alarm.name]
        )
