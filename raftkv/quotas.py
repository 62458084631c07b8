"""The quotas of a cluster as one node sees them: `node.quotas`.

    for usage in node.quotas.usage(): ...   # what each plugin uses of its quota
    await node.quotas.disarm()              # end NOSPACE, once there is room

The rules: raftkv/state/quota.py. The limits are the replicated settings `<plugin>.quota_bytes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from .errors import FormatRefused, InvalidSetting, UnknownCommand
from .state.core import DisarmAlarm, SetSetting
from .state.quota import NOSPACE, QUOTA_FORMAT, QUOTA_KEY

if TYPE_CHECKING:
    from .state import StateMachine

__all__ = ["QuotaStatus", "Quotas"]


class QuotaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the user data of one plugin counts, in logical bytes, and how much is allowed.

    `nospace`: the alarm is on, and what adds data is refused until it is disarmed.
    """

    plugin: str
    logical_bytes: int
    quota_bytes: int
    nospace: bool


class Proposing(Protocol):
    """The part of a node that this needs."""

    @property
    def machine(self) -> StateMachine: ...

    async def propose(
        self, plugin: str, command: msgspec.Struct, *, timeout_s: float | None = None
    ) -> object: ...


class Quotas:
    """See the top of the file."""

    def __init__(self, node: Proposing) -> None:
        self._node = node

    def usage(self) -> list[QuotaStatus]:
        """Of each plugin with a quota, in the order of their names; none before core format 2."""
        machine = self._node.machine
        if machine.core_format < QUOTA_FORMAT:
            return []
        return [
            QuotaStatus(
                plugin=name,
                logical_bytes=usage.bytes,
                quota_bytes=usage.quota_bytes,
                nospace=usage.alarm,
            )
            for name, usage in machine.usages.items()
            if name in machine.active_versions
        ]

    @property
    def alarms(self) -> list[str]:
        """NOSPACE if it is on for a plugin: the alarms of the replicated state by their kinds."""
        return sorted({kind for kind, _ in self._node.machine.alarms})

    async def set_quota(
        self, plugin: str, quota_bytes: int | None, *, timeout_s: float | None = None
    ) -> None:
        """Set how many logical bytes a plugin may keep, on all nodes; None: its default.

        It does not end NOSPACE. Raises InvalidSetting for a plugin without a quota, for a number
        out of bounds, and at core format 1; and what `propose` raises.
        """
        packed = None if quota_bytes is None else msgspec.msgpack.encode(quota_bytes)
        command = SetSetting(plugin, QUOTA_KEY, packed)
        try:
            await self._node.propose("core", command, timeout_s=timeout_s)
        except InvalidSetting as error:
            known = [each.plugin for each in self.usage()]
            if plugin in known:
                raise
            remedy = (
                f"name one of {', '.join(known)}"
                if known
                else "the cluster runs core format 1, which has no quotas: upgrade all nodes, then "
                "raise it with `raftkv format raise`"
            )
            raise InvalidSetting(f"{error}: {remedy}") from None

    async def disarm(self, plugin: str = "", *, timeout_s: float | None = None) -> tuple[str, ...]:
        """End NOSPACE of one plugin, or of all; the plugins whose alarm was on.

        A plugin that is still beyond its quota raises it again with its next write. Raises
        FormatRefused at core format 1, and what `propose` raises.
        """
        command = DisarmAlarm(NOSPACE, plugin)
        try:
            ended = await self._node.propose("core", command, timeout_s=timeout_s)
        except UnknownCommand:
            raise FormatRefused(
                "the cluster runs core format 1, which has no quotas: upgrade all nodes, then "
                "raftkv format raise"
            ) from None
        assert isinstance(ended, tuple)
        return ended
