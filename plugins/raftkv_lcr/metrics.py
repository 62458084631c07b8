"""Counters of the registry on one node, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from raftkv.plugin import Metric

__all__ = ["CALLS", "KINDS", "Counters"]

#: The calls to the owner of a channel that can fail, and how they can.
CALLS: Final = ("begin", "end", "discard", "kick")
KINDS: Final = ("normal", "shutdown", "shutdown_reason", "timeout", "noproc")
_FAILED: Final = "takeover_failed"
_FAILED_DOC: Final = "Calls to the owner of a channel that failed, by call and kind of failure."

_DOC = {
    "registered": "Registrations written or repeated.",
    "took_over": "Registrations that took over a predecessor's session.",
    "restart": "Registrations answered with the real predecessor, to be tried again.",
    "ahead": "Registrations whose predecessor had left; nothing was written.",
    "outdated_early": "Connections refused by this node's own copy, without the log.",
    "outdated_late": "Connections refused in the log because a newer one is known.",
    "in_progress": "Connections refused because another takeover is under way.",
    "occupied": "Connections refused because an older one of the client is kept.",
    "retries_exhausted": "Connects that gave up after the bounded number of retries.",
    "mode_changed": "Openings that began anew because the mode was switched meanwhile.",
    "opened_present": "Sessions opened with the content of a predecessor.",
    "opened_new": "Sessions opened without any predecessor's content.",
    "handover_complete": "Takeovers that had the whole content of the predecessor.",
    "handover_lost": "Takeovers whose predecessor's content could not be had.",
    "takeover_begun": "Channels of this node frozen for a connection that takes over.",
    "takeover_ended": "Channels of this node handed over.",
    "takeover_aborted": "Begun takeovers that the one who began them gave up.",
    "takeover_resumed": "Frozen channels of this node that went on, because nobody ended them.",
    "discarded": "Channels of this node discarded for a connection that starts clean.",
    "kicked": "Channels of this node ended by a kick.",
    "unregistered": "Rows deleted by their exact name.",
    "unregistered_absent": "Deletions that found nothing (late, doubled or fenced).",
    "lost": "Channels of this node that were taken over, kicked or fenced.",
    "adopted": "Living channels entered after a switch of the mode, or for an old node.",
    "adopt_refused": "Living channels that could not be entered: another owns the client.",
    "many_channels": "Reads of the old registry that found more than one channel of a client.",
    "old_calls_answered": "Calls of old nodes, without versions, that this node answered.",
    "old_calls_made": "Calls that this node made to old nodes.",
    "cleanup_rows": "Rows of dead nodes that this node, as leader, had deleted.",
    "cleanup_runs": "Cleanups of dead nodes that this node, as leader, finished.",
    "sweep_runs": "Sweeps for rows without a channel that this node finished.",
    "sweep_scanned": "Rows that the sweeps looked at.",
    "sweep_deleted_local_dead": "Rows of this node deleted because no channel stood behind them.",
    "sweep_deleted_remote_orphan": "Rows of old nodes deleted because these disowned them.",
    "sweep_deleted_history": "Rows of the history that this node, as leader, had deleted.",
    "sweep_kept_in_doubt": "Rows of old nodes kept because these gave no clear answer.",
    "sweep_ms": "Milliseconds that the sweeps took, pauses included.",
}


class Counters:
    """Named counters; every name must be known, so that a typing error cannot hide a metric.

    The names are those of `_DOC` and takeover_failed_<call>_<kind>, for each of CALLS and KINDS.
    """

    def __init__(self) -> None:
        self._values = dict.fromkeys(_DOC, 0)
        self._failed = {(call, kind): 0 for call in CALLS for kind in KINDS}

    def add(self, name: str, count: int = 1, *, call: str = "begin") -> None:
        """Count. `takeover_failed_<kind>` is counted for `call`. KeyError: an unknown name."""
        if name in self._values:
            self._values[name] += count
        else:
            named, kind = _call_and_kind(name)
            self._failed[(named or call, kind)] += count

    def __getitem__(self, name: str) -> int:
        """One counter. `takeover_failed_<kind>` is the sum over all calls."""
        if name in self._values:
            return self._values[name]
        named, kind = _call_and_kind(name)
        return sum(self._failed[(call, kind)] for call in ((named,) if named else CALLS))

    def metrics(self) -> Iterator[Metric]:
        for name, value in self._values.items():
            yield Metric(f"{name}_total", "counter", value, _DOC[name])
        for (call, kind), value in self._failed.items():
            labels = {"call": call, "kind": kind}
            yield Metric(f"{_FAILED}_total", "counter", value, _FAILED_DOC, labels)

    def as_dict(self) -> dict[str, int]:
        """All of them; of the failures those that happened."""
        failed = {f"{_FAILED}_{c}_{k}": value for (c, k), value in self._failed.items() if value}
        return {**self._values, **failed}


def _call_and_kind(name: str) -> tuple[str, str]:
    """Of takeover_failed_<call>_<kind>; the call is "" where the name has none."""
    if not name.startswith(f"{_FAILED}_"):
        raise KeyError(name)
    rest = name.removeprefix(f"{_FAILED}_")
    call, _, kind = rest.partition("_")
    return (call, kind) if call in CALLS else ("", rest)
