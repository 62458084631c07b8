"""Which flow acts under which mode: the one place that knows them all."""

from __future__ import annotations

from .linear_flow import LinearFlow
from .manager import Adopter, ChannelManager, Flow
from .mixed import Adoption, LockedFlow, MixedFlow
from .modes import ModeRow

__all__ = ["ModeFlows"]


class ModeFlows:
    """The flow of each mode on one node, and what enters its channels after a switch."""

    def __init__(self, manager: ChannelManager) -> None:
        self.adopter: Adopter = Adoption(manager)
        # "disabled": the old registry with its lock. "dual" and "migration": both registries.
        self._locked: Flow = LockedFlow(manager)
        self._mixed: Flow = MixedFlow(manager)
        self._linear: Flow = LinearFlow(manager)

    def for_mode(self, row: ModeRow) -> Flow:
        """What acts under this (effective) mode."""
        if row.mode == "enabled":
            return self._linear
        return self._locked if row.mode == "disabled" else self._mixed
