"""Tools for testing programs on raftkv: ours and our users'.

`LocalCluster` is a real cluster inside one process. `SimulatedCluster` runs whole nodes on a
virtual clock from one seed, in a `World` with faults.
"""

from .local_cluster import LocalCluster
from .simulated import SafetyViolation, SimulatedCluster
from .world import World

__all__ = ["LocalCluster", "SafetyViolation", "SimulatedCluster", "World"]
