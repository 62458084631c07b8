"""Cluster calls as a program sees them on one node: `calls = node.plugin(Calls)`.

    @calls.function("conf.set", version=1)              # on every node, before or after it starts
    async def set_value(args: SetValue, call: Call) -> str: ...

    done = await calls.call("conf.set", SetValue("log.level", "debug"))
    done.outcome                                        # "ok", "init_failure", "peers_lagging", ...

Every node executes every call, in the order of their ids, each at least once (and exactly once
where the function has no effect but a change of the keyspace). The initiator runs it first: what
fails there is run by nobody else.

This file only joins the parts and gives them their public names. `functions.py` keeps what is
registered, `calling.py` makes calls, `worker.py` executes them, `forwarding.py` takes them to a
core, `states.py` and `joining.py` copy what calls have made of a node, `operating.py` mends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from raftkv.plugin import Host, PluginSettings
from raftkv.validation import checked

from .alarms import Alarm, AlarmBook
from .calling import Calling, CallResult
from .forwarding import Forwarding
from .functions import Functions, Handler
from .joining import Joining
from .metrics import Counters
from .operating import Operator
from .options import options_of
from .proposing import Proposer
from .reports import CallStatus, ClusterStatus, FixReport, FunctionInfo, Operated, SkipReport
from .states import NodeState, States
from .transfer import Transfer
from .waiting import Initiations, Waiting
from .worker import Worker

__all__ = ["CallsApi"]

CALL_TIMEOUT_S = 120.0
OPERATE_TIMEOUT_S = 120.0


@checked
class CallsApi:
    """The calls on one node. All methods belong to the node's event loop."""

    def __init__(self, host: Host) -> None:
        self.host = host
        #: The replicated settings of the calls.
        self.settings = PluginSettings(host)
        self.options = options_of(host)
        self.counters = Counters()
        self.registry = Functions()
        self.states = States(host)
        self.proposer = Proposer(host, self.counters)
        self.initiations = Initiations(host)
        self.waiting = Waiting(host)
        self.worker = Worker(
            host, self.registry, self.states, self.proposer, self.initiations, self.counters
        )
        self.calling = Calling(
            host,
            self.registry,
            self.proposer,
            self.worker,
            self.initiations,
            self.waiting,
            self.counters,
        )
        self.forwarding = Forwarding(host, self.calling, self.counters)
        self.alarm_book = AlarmBook(host, self.initiations, self.counters)
        self.transfer = Transfer(host, self.states)
        self.joining = Joining(host, self)
        self.alarm_book.trouble = lambda: self.joining.trouble
        self.operator = Operator(host, self.worker, self.transfer)

    # --- functions and states ---

    def function(
        self, name: str, *, version: int = 1, effect: bool = False, type: Any = None
    ) -> Callable[[Handler], Handler]:
        """Register a function under a name and a version: a decorator, the same on every node.

        The function gets the arguments, decoded as the annotated type of its first parameter (or
        `type`, where that cannot be resolved), and a `Call`. It may be async, or plain if it is
        quick. To return is success, to raise is failure. On a replica (`call.kind` "replicate") it
        must be idempotent, and not refuse what the initiator has accepted: the call is committed.

        With `effect` it returns a command of the keyspace (Put, PutWith, DeleteRange, Txn) or None,
        and does nothing else: the command and the node's progress are one entry of the log, so that
        each node's effect is made exactly once, whatever crashes.

        Raises ValueError for a name and version that are taken, TypeError where the type of the
        arguments is not known.
        """

        def register(handler: Handler) -> Handler:
            self.registry.add(name, version, handler, effect=effect, type_=type)
            # What failed as unknown so far need not wait for its next attempt.
            self.worker.retry_now()
            return handler

        return register

    def state(self, provider: NodeState) -> None:
        """Register what calls have made of this node, to be copied to joiners and compared by fix.

        Before or right after the node starts, on all nodes alike.
        """
        self.states.add(provider)

    def functions(self) -> tuple[FunctionInfo, ...]:
        """What is registered on this node, by name and version."""
        return self.registry.infos()

    # --- calling ---

    async def call(
        self,
        function: str,
        args: Any = None,
        *,
        version: int | None = None,
        required: Literal["all"] | int | Sequence[str] = "all",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> CallResult:
        """Run the function here, then on all other nodes; wait for those that are `required`.

        `args` is anything that msgspec encodes as the function's type expects it. `version` is the
        newest one that is registered, unless given. `required` are all nodes that take part when
        the call is committed, or as many of them, or these. After `timeout_s` whatever has not run
        is withdrawn; what was committed goes on on its own.

        The outcomes: "ok"; "init_failure" (see `error`; it was committed nowhere); "peers_lagging"
        (committed, `nodes` had not executed it in time); "stopped_nodes" (committed, and all that
        is missing are `nodes` that are down).

        Raises `StaleView` (this node does not get on with earlier calls), `DeadlinePassed` (the
        time was over before it was its turn), `QueueFull`, `ArgsTooLarge`, `NotTakingPart`,
        `UnknownNode` and `TooManyRequired` (bad `required`), other `NotApplied` kinds: nothing ran
        anywhere. `OutcomeUnknown` kinds: it ran on the initiator, and what became of it is not
        known. A cancelled caller takes back what has not begun to run; what runs is finished.
        """
        if self.forwarding.needed:
            return await self.forwarding.call(function, args, version, required, timeout_s)
        return await self.calling.call(function, args, version, required, timeout_s)

    # --- alarms ---

    def alarms(self) -> tuple[Alarm, ...]:
        """What is wrong in the whole cluster now, as this node's copy has it; oldest first."""
        return self.alarm_book.current()

    def on_alarm(self, callback: Callable[[Alarm, bool], None]) -> None:
        """Call back on this node when an alarm of the cluster is raised (True) or cleared (False).

        The callback must be quick. What is raised already is told at once.
        """
        self.alarm_book.subscribe(callback)

    # --- operating; see `operating.py` ---

    def status(self, *, every: bool = False, limit: int = 20, below: int = 0) -> ClusterStatus:
        """Where the log, every node and the newest calls stand; with `every`, aborted ones too."""
        return self.operator.status(every=every, limit=limit, below=below)

    def query(self, id: int) -> CallStatus:
        """One call. Raises `UnknownCall` if it is trimmed or was never made."""
        return self.operator.query(id)

    async def skip(
        self, node: str | None = None, *, timeout_s: float = OPERATE_TIMEOUT_S
    ) -> SkipReport:
        """Let a node (this one) run its next call once more, then pass it whatever comes out."""
        return await self.operator.skip(node, timeout_s=timeout_s)

    async def fast_forward(
        self, node: str | None, id: int, *, timeout_s: float = OPERATE_TIMEOUT_S
    ) -> SkipReport:
        """Skip up to this id, at most to the last; nothing happens if the node is there already."""
        return await self.operator.fast_forward(node, id, timeout_s=timeout_s)

    async def fix(self, *, timeout_s: float = OPERATE_TIMEOUT_S) -> FixReport:
        """Make all nodes equal to the most advanced one, if nothing moves meanwhile."""
        return await self.operator.fix(timeout_s=timeout_s)

    async def reset(self, *, timeout_s: float | None = None) -> Operated:
        """Forget all records; every node follows from the last id on."""
        return await self.operator.reset(timeout_s=timeout_s)

    async def leave(self, node: str | None = None) -> Operated:
        """Take a node (this one) out of the calls until it rejoins."""
        return await self.operator.leave(node)

    async def rejoin(self, node: str | None = None) -> Operated:
        """Take part again, with a fresh copy of the state."""
        return await self.operator.rejoin(node)

    async def force_leave(self, node: str) -> Operated:
        """Take a node that is down out of the calls; it joins anew when it comes back."""
        return await self.operator.force_leave(node)

    async def acknowledge(self, id: int, node: str | None = None) -> Operated:
        """Take notice of a call that this node may have run although it was aborted."""
        return await self.operator.acknowledge(id, node)
