"""Tools for testing programs on raftkv: ours and our users'.

`LocalCluster` is a real cluster inside one process. `SimulatedCluster` runs whole nodes on a
virtual clock from one seed, in a `World` with faults. `check_plugin` tells an author of a plugin
whether it keeps the contract.
"""

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
