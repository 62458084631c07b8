"""What an operator is told: status, what a skip did, what `fix` found. And the two calls behind it.

Rules of this file: plain data. Of a call it has the function's name, never its arguments, nor its
result; of a failure the class and the function. Of the state that `fix` compares it has the keys,
never the values: they may be secrets, and an answer of the door ends up in scrollback and tickets.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from raftkv.errors import PeerUnreachable, RaftkvError

__all__ = [
    "KEYS_SHOWN_MAX",
    "Attempt",
    "CallStatus",
    "ClusterStatus",
    "Differing",
    "Failed",
    "FixReport",
    "FunctionInfo",
    "LostRow",
    "NodeIsDown",
    "NodeStatus",
    "NotFollowing",
    "Operated",
    "OperationFailed",
    "Reachability",
    "SkipReport",
    "StepAsked",
    "Stepped",
    "UnknownCall",
    "UnknownNode",
    "Verb",
    "VerbAsked",
    "VerbDone",
]

# Differing keys of one node that a report names; how many more there are is a number. A page of
# text: whoever has more to look at compares the node's own listing.
KEYS_SHOWN_MAX = 100

StateOfNode = Literal["following", "joining", "gap", "left", "left_forced", "apart"]


class UnknownCall(RaftkvError):
    """There is no record of this id: not taken yet, or trimmed from the history."""

    code: ClassVar[str] = "calls_unknown_id"


class UnknownNode(RaftkvError):
    """The cluster has no member of this name."""

    code: ClassVar[str] = "calls_unknown_node"


class NotFollowing(RaftkvError):
    """The node has no cursor that could be moved like this; the text says what to do instead."""

    code: ClassVar[str] = "calls_not_following"


class NodeIsDown(PeerUnreachable):
    """The node that has to do it itself is down; nothing was done. The text says what helps."""

    code = "calls_node_is_down"


class OperationFailed(RaftkvError):
    """Another node refused what it was asked. `remote_code` is the code of its error."""

    code: ClassVar[str] = "calls_operation_failed"

    def __init__(self, message: str, *, remote_code: str) -> None:
        super().__init__(message)
        self.remote_code = remote_code


# --- status ---------------------------------------------------------------------------------------


class NodeStatus(msgspec.Struct, frozen=True):
    """One member. `cursor` and `lag` (ids behind the last one) are None where it has no cursor.

    `state`: "following"; "joining" (it is copying the others' state), "gap" (calls that it still
    needed are trimmed: it needs a full copy); "left" (on its own wish, or "left_forced");
    "apart" (it takes no part: a replicant, or a node that has not come up yet). `as_of`: of a
    joining node or one in a gap, the lowest id that its copy must be as of.
    `failing` is the id that it fails to execute (0: none), `attempts` how often it had tried when
    it last said so, `cause` the class of the failure and the function that raised it. `skipped`:
    the last ids that were skipped there.
    """

    name: str
    role: str
    up: bool
    state: StateOfNode
    cursor: int | None
    lag: int | None
    as_of: int = 0
    failing: int = 0
    attempts: int = 0
    cause: str = ""
    skipped: tuple[int, ...] = ()


class CallStatus(msgspec.Struct, frozen=True):
    """One call. `pending_nodes` have yet to execute it; of an aborted one there are none.

    `kind` "force" marks the id that a `fix` took to make the cursors equal: nothing is executed.
    Times are of the log's clock, in ms since 1970.
    """

    id: int
    function: str
    version: int
    initiator: str
    created_ms: int
    decided_ms: int
    state: Literal["reserved", "committed", "aborted"]
    kind: Literal["call", "force"]
    cause: str = ""
    pending_nodes: tuple[str, ...] = ()


class LostRow(msgspec.Struct, frozen=True):
    """A call that was aborted although its initiator may have run it, until it is acknowledged."""

    node: str
    id: int
    function: str
    version: int
    cause: str
    created_ms: int


class ClusterStatus(msgspec.Struct, frozen=True):
    """The log and everybody's place in it, as of one index of this node's copy.

    `last` is the highest id, `oldest` the lowest that is kept, `granted` the id that is running at
    its initiator (0: none), `queue` how many reservations wait behind it. `calls` are the newest
    first: committed and running ones, or with `every` the aborted ones too.
    """

    index: int
    last: int
    oldest: int
    granted: int
    queue: int
    nodes: tuple[NodeStatus, ...]
    calls: tuple[CallStatus, ...]
    lost: tuple[LostRow, ...] = ()


class FunctionInfo(msgspec.Struct, frozen=True):
    """A registered function of this node. `argument` names the type of its arguments."""

    name: str
    version: int
    effect: bool
    argument: str
    doc: str = ""


# --- doing ----------------------------------------------------------------------------------------


class Attempt(msgspec.Struct, frozen=True):
    """One call that was run once more and passed, whatever came out.

    `ok`: it succeeded after all, and was not skipped but executed. Otherwise `error` is the class
    and `place` the function that raised it ("in work").
    """

    id: int
    function: str
    ok: bool
    error: str = ""
    place: str = ""


class SkipReport(msgspec.Struct, frozen=True):
    """Where the node's cursor stands now, and what became of the calls that were passed."""

    node: str
    cursor: int
    last: int
    attempts: tuple[Attempt, ...] = ()


class Operated(msgspec.Struct, frozen=True):
    """What a reset, leave, rejoin, force-leave or acknowledge did: `done` False: nothing to do."""

    verb: str
    node: str
    done: bool
    last: int


# --- fix ------------------------------------------------------------------------------------------


class Differing(msgspec.Struct, frozen=True):
    """Keys of one node whose values are not the lead's, as "state:key"; `more` are not named."""

    node: str
    keys: tuple[str, ...]
    more: int = 0


class Reachability(msgspec.Struct, frozen=True):
    """A node that could not be compared, and why."""

    node: str
    reason: str


class Skipped(msgspec.Struct, frozen=True):
    """Calls that `fix` has taken a node past although it never executed them."""

    node: str
    ids: tuple[int, ...]


class FixReport(msgspec.Struct, frozen=True):
    """What `fix` found and did.

    `verdict`:
    - "consistent": all nodes that are up have the lead's cursor and its values: nothing was done;
    - "fixed": `forwarded` nodes had the lead's values and got its cursor, `synced` nodes are taking
      a copy of the lead's state. `id` is the new, higher id that all cursors stand at then;
    - "differs": nodes with the lead's cursor have other values. They are in `differing`, and were
      not changed: what differs under one cursor comes from outside the calls. What could be fixed
      beside them was, as above;
    - "moved": a call was made or executed meanwhile. Nothing was changed: fix again;
    - "unreachable": a node that must be asked did not answer, or no core has what would have to be
      copied. Nothing was changed.

    `lead` is the most advanced node. `absent` were not compared (down, or still copying, and why).
    `passed_over` are ids that were committed and that not even the lead had executed: a fix that
    forwards goes past them. `skipped`: what forwarded nodes never executed and the lead did; its
    effect outside of the states is missing there, and `reason` warns. `copied`: the same of synced
    nodes, whose copy has the effect on the states and on nothing else. `copying`: of `synced`, who
    had not finished when the time was up.
    """

    verdict: Literal["consistent", "fixed", "differs", "moved", "unreachable"]
    lead: str
    id: int
    forwarded: tuple[str, ...] = ()
    synced: tuple[str, ...] = ()
    differing: tuple[Differing, ...] = ()
    absent: tuple[Reachability, ...] = ()
    passed_over: tuple[int, ...] = ()
    copying: tuple[str, ...] = ()
    reason: str = ""
    skipped: tuple[Skipped, ...] = ()
    copied: tuple[Skipped, ...] = ()


# --- between nodes --------------------------------------------------------------------------------


Verb = Literal["leave", "rejoin"]


class StepAsked(msgspec.Struct, frozen=True, array_like=True):
    """RPC "operate.step": pass the next call behind `after`, if its id is at most `upto`.

    `after` makes it safe to send twice: a node whose cursor has moved since does nothing. A node
    in a gap has no next call; it is taken to `upto` at once if `jump` says so.
    """

    after: int
    upto: int
    jump: bool


class VerbAsked(msgspec.Struct, frozen=True, array_like=True):
    """RPC "operate.verb": what only the node itself may propose."""

    verb: Verb


class Stepped(msgspec.Struct, frozen=True, array_like=True, tag="stepped"):
    """The cursor now, the log's last id, and the attempt, if there was one."""

    cursor: int
    last: int
    attempt: Attempt | None


class VerbDone(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """What came of it."""

    operated: Operated


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The node could not: the code and the text of its error, and whether a retry is safe."""

    kind: Literal["not_applied", "outcome_unknown", "refused"]
    code: str
    text: str
