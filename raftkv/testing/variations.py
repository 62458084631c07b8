"""What a simulated cluster may have beside its faults."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Variations"]


class Variations(NamedTuple):
    """`charged`: work takes processor time (charges.py). `differing`: limits and time-outs differ
    between nodes and change (varied.py). `upgraded`: all nodes begin with the former software
    (upgrade.py). `rolled_back`: one core's disk is put back to what it held (rollback.py).
    `disagreeing`: the files name different cores at first; `namesake`: a second node runs under the
    name of the first replicant (identities.py); `copied`: one core's directory is copied and run
    beside it (copied.py).
    """

    charged: bool = False
    differing: bool = False
    upgraded: bool = False
    rolled_back: bool = False
    disagreeing: bool = False
    namesake: bool = False
    copied: bool = False

    def __str__(self) -> str:
        texts = (
            *("work takes time", "limits differ", "an upgrade", "a disk is rolled back"),
            *("files disagree at first", "two nodes under one name"),
            "a directory is copied",
        )
        return "".join(f", {text}" for text, happens in zip(texts, self, strict=True) if happens)
