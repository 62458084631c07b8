"""The commands that end the incarnation of a node that was found dead.

A verdict is worth something only under the leadership that reached it: another leader may hear the
node well. `DeclareDead` therefore names the term, and takes effect only in an entry of that very
term. `NodeDown` is the command of core format 1, which names none; there the leader alone guards
it, before the append.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

__all__ = ["DeclareDead", "NodeDown", "NodeDownResult"]


class _Command(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    pass


class NodeDownResult(_Command, frozen=True):
    """`incarnation` is the one that was raised: what the dead node owned carries a lower one."""

    incarnation: int


class NodeDown(_Command, frozen=True, tag="node_down"):
    """The cluster declares one incarnation of a node dead. Core format 1 only."""

    Result: ClassVar[Any] = NodeDownResult
    name: str
    incarnation: int


class DeclareDead(_Command, frozen=True, tag="declare_dead"):
    """The leader of `term` declares one incarnation of a node dead.

    Passed over, with None as its result, in an entry of another term. From core format 2 on.
    """

    Result: ClassVar[Any] = NodeDownResult | None
    name: str
    incarnation: int
    term: int
