"""Which of a cluster's histories a data directory belongs to (rule 18).

A cluster has one history until somebody recovers it by force from one surviving directory. What
the others had beyond that directory is given up, so their logs and votes must never meet the new
ones. Each forced recovery therefore begins a new *epoch*: a number one higher, and a token minted
with it, because two operators may recover two directories of the same cluster, and then both are
epoch 1 and neither is the other's.

Rules of this file: pure. An epoch is part of the identity and of every greeting; only equals talk.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import msgspec

__all__ = ["FOUNDED", "Epoch", "Standing", "standing"]


# Far more recoveries than any cluster goes through, and room for any token.
NUMBER_MAX: Final = 2**31 - 1
TOKEN_CHARS_MAX: Final = 64


class Epoch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`number` counts the forced recoveries; `token` is minted by the last one."""

    number: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0
    token: Annotated[str, msgspec.Meta(max_length=TOKEN_CHARS_MAX)] = ""

    def __str__(self) -> str:
        return f"{self.number}-{self.token}" if self.number else "0"


#: The epoch of a cluster that was never recovered by force.
FOUNDED = Epoch()


class Standing(Enum):
    """How another node's epoch stands to the own one."""

    SAME = 1
    #: The other's data are from before a recovery that this node has been through.
    OUTDATED = 2
    #: This node's data are the outdated ones.
    NEWER = 3
    #: Recovered from another directory: one of the two must be given up, and nobody knows which.
    RIVAL = 4


def standing(mine: Epoch, theirs: Epoch) -> Standing:
    """Compare the own epoch with that of a node of the same cluster id."""
    if theirs == mine:
        return Standing.SAME
    if theirs.number == mine.number:
        return Standing.RIVAL
    return Standing.OUTDATED if theirs.number < mine.number else Standing.NEWER
