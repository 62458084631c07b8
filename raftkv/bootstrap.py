"""Before a cluster exists: do the configuration files agree about its cores?

The core whose name sorts first in its own file bootstraps the cluster, with all that it names.
Files that disagree have two first names, and would make two clusters out of one set of nodes. So
two nodes of which neither belongs to a cluster yet compare digests of the core names in them
(`wire.About.bootstrap`), and do not talk if these differ. Addresses are not compared. Once a node
belongs to a cluster, the log has the members, and the files may differ: a core that is added later
names other cores than the first ones did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .raft import wire
from .raft.membership import name_of

__all__ = ["OTHER_CORES", "judge"]

# The code of a refusal between two nodes whose files name different cores. It stops no node.
OTHER_CORES: Final = "other_cores"


def judge(
    hello: wire.Hello, about: wire.About | None, cluster_id: str, cores: Iterable[str]
) -> wire.Refusal | None:
    """Whether the sender may bootstrap a cluster with this node, which knows `about` itself.

    A digest that is not known (a node of raftkv 0.1.0 sends none) is no difference.
    """
    if cluster_id or hello.cluster_id or hello.purpose != "raft":
        return None
    theirs = "" if hello.about is None else hello.about.bootstrap
    mine = "" if about is None else about.bootstrap
    if "" in (mine, theirs) or mine == theirs:
        return None
    return wire.Refusal(
        OTHER_CORES,
        f"the configuration files disagree: here [cores] names {', '.join(sorted(cores))}, and "
        f"that of {name_of(hello.raft_id)!r} names other cores. Until the cluster exists, all "
        f"files must name the same",
    )
