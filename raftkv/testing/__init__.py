"""Tools for testing programs on raftkv: ours and our users'.

`LocalCluster` is a real cluster inside one process. `SimulatedCluster` runs whole nodes on a
virtual clock from one seed, in a `World` with faults. `check_plugin` tells an author of a plugin
whether it keeps the contract.

The names are imported when they are first used: the processes of `check_plugin` need no node.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conformance import Checked, ContractBroken, check_log, check_plugin
    from .local_cluster import LocalCluster
    from .simulated import SafetyViolation, SimulatedCluster
    from .world import World

__all__ = [
    "Checked",
    "ContractBroken",
    "LocalCluster",
    "SafetyViolation",
    "SimulatedCluster",
    "World",
    "check_log",
    "check_plugin",
]

_HOMES = {
    "Checked": "conformance",
    "ContractBroken": "conformance",
    "LocalCluster": "local_cluster",
    "SafetyViolation": "simulated",
    "SimulatedCluster": "simulated",
    "World": "world",
    "check_log": "conformance",
    "check_plugin": "conformance",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{home}"), name)
