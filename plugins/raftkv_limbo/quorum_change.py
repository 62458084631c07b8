"""A change of the quorum as the settings that are to be set, and in which order.

The quorum has four settings, and each is an entry of the log of its own: between two of them, what
waits is judged by a mixture of the old and the new quorum. So the order matters, and no mixture may
be weaker than both. First zones and validators get whatever either side asks for; then the number
and who counts, the harder one first, or with a number between that is enough for both; then zones
and validators are let go.

If it ends in the middle, the settings that were set stand, and what stands is not too weak: ask
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from raftkv.errors import InvalidSetting
from raftkv.plugin import Host, View

from .quorum import needs
from .quorum_expression import N_MAX
from .settings import SETTINGS

__all__ = ["QuorumChange", "change_steps", "refused_part", "set_quorum"]


class QuorumChange(msgspec.Struct, frozen=True):
    """What a quorum shall be. None: that part stays."""

    quorum: str | None = None
    over: str | None = None
    zones: dict[str, int] | None = None
    validators: dict[str, int] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The parts that are given, by the setting's key."""
        parts = {
            "quorum": self.quorum,
            "quorum_over": self.over,
            "quorum_zones": self.zones,
            "quorum_validators": self.validators,
        }
        return {key: value for key, value in parts.items() if value is not None}


def refused_part(change: QuorumChange) -> str | None:
    """Why the cluster would refuse a part; None: it would not. So nothing is done by halves."""
    checks = {setting.key: setting.check for setting in SETTINGS}
    for key, value in change.settings.items():
        check = checks[key]
        reason = None if check is None else check(value)
        if reason is not None:
            return f"{key} {value!r}: {reason}"
    return None


def change_steps(
    settings: Mapping[str, Any], change: QuorumChange, needed: Callable[[Mapping[str, Any]], int]
) -> tuple[tuple[str, Any], ...]:
    """The (key, value) to set, in order.

    `settings` are as they are; `needed` tells how many nodes a quorum needs with others.
    """
    wanted = {**settings, **change.settings}
    steps: list[tuple[str, Any]] = []
    let_go: list[tuple[str, Any]] = []
    for key in ("quorum_zones", "quorum_validators"):
        both = _both(settings[key], wanted[key])
        if both != settings[key]:
            steps.append((key, both))
        if both != wanted[key]:
            let_go.append((key, wanted[key]))
    steps += _number_steps(settings, wanted, needed)
    return (*steps, *let_go)


async def set_quorum(host: Host, change: QuorumChange) -> None:
    """Set the parts that are given, in an order in which nothing gets by.

    Raises InvalidSetting, with nothing done, and what `Host.propose` raises: then some of it may be
    set.
    """
    reason = refused_part(change)
    if reason is not None:
        raise InvalidSetting(reason)
    await host.barrier("linearizable")
    view = host.view()

    def needed(settings: Mapping[str, Any]) -> int:
        return needs(cast(View, _Assumed(view, settings))).quorum

    for key, value in change_steps(view.settings, change, needed):
        await host.set_setting(key, value)


class _Assumed:
    """A view with other settings: what would be."""

    def __init__(self, view: View, settings: Mapping[str, Any]) -> None:
        self._view = view
        self.settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def _number_steps(
    settings: Mapping[str, Any],
    wanted: Mapping[str, Any],
    needed: Callable[[Mapping[str, Any]], int],
) -> list[tuple[str, Any]]:
    """Each state between the two is at least as hard as the one that it shares "over" with."""
    number = ("quorum", wanted["quorum"])
    over = ("quorum_over", wanted["quorum_over"])
    if settings["quorum_over"] == over[1]:
        return [] if settings["quorum"] == number[1] else [number]
    if settings["quorum"] == number[1]:
        return [over]
    before, after = needed(settings), needed(wanted)
    if needed({**settings, "quorum": number[1]}) >= before:
        return [number, over]
    if needed({**settings, "quorum_over": over[1]}) >= after:
        return [over, number]
    # Neither will do in the other's place, so a number that is enough for both goes between.
    bridge = ("quorum", str(min(max(before, after), N_MAX)))
    return [bridge, over, number]


def _both(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int]:
    return {name: max(old.get(name, 0), new.get(name, 0)) for name in sorted({*old, *new})}
