"""The verdicts on cluster calls that write nothing. What must be remembered is a result instead."""

from __future__ import annotations

from raftkv.errors import Refused

__all__ = [
    "REFUSALS",
    "ArgsTooLarge",
    "BadCursor",
    "HasLeft",
    "Moved",
    "NodeIsUp",
    "NotAMember",
    "NotCaughtUp",
    "NotReserved",
    "NotTakingPart",
    "NotYourNode",
    "QueueFull",
    "TooOld",
]


class NotAMember(Refused):
    """Calls are made by nodes, and this command was sent by none."""

    code = "calls_not_a_member"
    has_text = True


class NotTakingPart(Refused):
    """The node does not follow: it has left, is joining, is in a gap, or is a mere replicant."""

    code = "calls_not_taking_part"
    has_text = True


class QueueFull(Refused):
    """`queue_max` calls wait already: try again later. Nothing ran."""

    code = "calls_queue_full"
    has_text = True


class ArgsTooLarge(Refused):
    """The encoded arguments exceed `args_bytes_max`: pass a reference. Nothing ran."""

    code = "calls_args_too_large"
    has_text = True


class NotReserved(Refused):
    """The id is not reserved by this node any more: it was aborted meanwhile. Do not run it."""

    code = "calls_not_reserved"
    has_text = True


class NotCaughtUp(Refused):
    """The initiator has not executed all ids before its own."""

    code = "calls_not_caught_up"
    has_text = True


class BadCursor(Refused):
    """It is not that id's turn on this node. Arguments: text, the node's cursor."""

    code = "calls_bad_cursor"
    has_text = True


class TooOld(Refused):
    """The data is older than what was trimmed, or than this node was. Arguments: text, lowest."""

    code = "calls_too_old"
    has_text = True


class NodeIsUp(Refused):
    """A node that is up leaves by itself (`leave`); by force leaves only one that is down."""

    code = "calls_node_is_up"
    has_text = True


class NotYourNode(Refused):
    """A node may leave by itself only; another one, that is down, is made to leave by force."""

    code = "calls_not_your_node"
    has_text = True


class HasLeft(Refused):
    """The node has left on its own wish: `rejoin` first."""

    code = "calls_has_left"
    has_text = True


class Moved(Refused):
    """The log of calls moved since it was looked at: look, and try, again."""

    code = "calls_moved"
    has_text = True


REFUSALS: tuple[type[Refused], ...] = (
    NotAMember,
    NotTakingPart,
    QueueFull,
    ArgsTooLarge,
    NotReserved,
    NotCaughtUp,
    BadCursor,
    TooOld,
    NodeIsUp,
    NotYourNode,
    HasLeft,
    Moved,
)
