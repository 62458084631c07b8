"""The contract a plugin fulfils; docs/plugin-contract.md explains it.

A plugin has a pure half (tables, commands, `apply`, hooks, invariants), which runs on every node
once per log entry, and a node's half (a typed API and a `Service`), which runs on the event loop
and changes state by proposing commands only. One plugin object may serve several nodes of one
process, so it holds no state: what belongs to the cluster stands in tables, what belongs to a node
in its API object and its service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from .errors import Refused, UnknownCommand
from .plugin_door import (
    BadRequest,
    Handler,
    Request,
    Response,
    Route,
    Under,
    answered,
    body_of,
    error_response,
    fresh,
    handle_of,
    number_of,
    only_query,
    query_flag,
    query_number,
    query_seconds,
    query_word,
    read_handle,
    value_of,
)
from .plugin_proposing import AGAIN, RETRY_FIRST_S, RETRY_MAX_S, Lost, Proposer
from .plugin_settings import PluginSettings, settings_routes
from .state import (
    ABSENT,
    Absent,
    Change,
    Context,
    Member,
    MemberChange,
    Quota,
    Setting,
    SettingChange,
    Steps,
    Table,
    TableSpec,
    TableView,
    View,
    at_once,
)

if TYPE_CHECKING:
    import typer

    from .runtime import Runtime

__all__ = [
    "ABSENT",
    "AGAIN",
    "RETRY_FIRST_S",
    "RETRY_MAX_S",
    "Absent",
    "BadRequest",
    "Change",
    "Consistency",
    "Context",
    "Counters",
    "Handler",
    "Host",
    "Lost",
    "Member",
    "MemberChange",
    "Metric",
    "Outcome",
    "Plugin",
    "PluginSettings",
    "Proposer",
    "Quota",
    "Request",
    "Response",
    "Route",
    "Rpc",
    "Service",
    "Setting",
    "SettingChange",
    "Steps",
    "Table",
    "TableSpec",
    "TableView",
    "Under",
    "View",
    "answered",
    "at_once",
    "body_of",
    "error_response",
    "fresh",
    "handle_of",
    "number_of",
    "only_query",
    "query_flag",
    "query_number",
    "query_seconds",
    "query_word",
    "read_handle",
    "require_format",
    "settings_routes",
    "value_of",
]

ApiT = TypeVar("ApiT")
T = TypeVar("T")

#: How fresh a read must be; "local" reads this node's copy at once, which may be stale. "lease" is
#: as fresh as "linearizable" while clocks keep to their drift bound, and free on a leader that
#: holds a lease (config: raft.lease_ms); elsewhere it is confirmed by a majority.
Consistency = Literal["linearizable", "lease", "local"]


class Outcome(msgspec.Struct, frozen=True):
    """What became of a command whose caller did not hear.

    `result` is the result of an applied one, the `Refused` of a refused one. "not_applied": it
    never will be. "expired": the answer is no longer kept.
    """

    verdict: Literal["applied", "refused", "not_applied", "expired"]
    result: Any = None


class Rpc(Protocol):
    """Calls between nodes. Method names are scoped to the plugin; a call decides nothing."""

    def register(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        """Answer calls of `method`: the handler gets the caller's name and the payload."""

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        """Call a node by member name, at most once.

        Raises PeerUnreachable (never delivered), Timeout (unknown) or RemoteFailed (the handler
        raised).
        """


class Metric(msgspec.Struct, frozen=True):
    """One figure of this node. Its name is prefixed with raftkv_<plugin>_.

    A counter's name ends in _total (it is added where it is missing). Figures of one name have the
    same kind and the same labels' names.
    """

    name: str
    kind: Literal["counter", "gauge"]
    value: int | float
    doc: str
    labels: Mapping[str, str] = {}


class Counters:
    """Named counters of one node's half, from 0; `docs`: name -> what it counts.

    Every name must be known, so that a typing error cannot hide a metric.
    """

    def __init__(self, docs: Mapping[str, str]) -> None:
        self._docs = docs
        self._values = dict.fromkeys(docs, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Count. KeyError: an unknown name."""
        self._values[name] += count

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def metrics(self) -> Iterator[Metric]:
        for name, value in self._values.items():
            yield Metric(f"{name}_total", "counter", value, self._docs[name])

    def as_dict(self) -> dict[str, int]:
        return dict(self._values)


class Host(Protocol):
    """A node as a plugin's API and service see it."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Literal["core", "replicant"]: ...

    @property
    def incarnation(self) -> int:
        """Of the running session; 0 until the first NodeUp is applied."""

    @property
    def leader(self) -> str | None:
        """As far as this node knows."""

    @property
    def is_leader(self) -> bool:
        """True between `on_leader` and `on_follower`."""

    @property
    def options(self) -> Any:
        """An instance of `Plugin.options`, or None."""

    @property
    def runtime(self) -> Runtime:
        """Clock, chance, files: never `time` or `random` directly."""

    @property
    def directory(self) -> str:
        """The plugin's own directory on this node, made by the first look. Raises OSError.

        Its files are reached through `runtime.files` alone. It may be gone, empty or old after any
        restart, so what is kept in it says what it is as of (docs/plugin-contract.md, A5).
        """

    @property
    def rpc(self) -> Rpc: ...

    @property
    def log(self) -> logging.Logger: ...

    @property
    def members(self) -> Mapping[str, Member]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        """Send a command of this plugin through the log; its result, once applied on this node.

        Raises the Refused that `apply` raised, a NotApplied (nothing happened), or Timeout with
        `session` and `seq` (unknown: ask `outcome`).
        """

    async def outcome(
        self, session: int, seq: int, *, timeout_s: float | None = None
    ) -> Outcome: ...

    async def set_setting(self, key: str, value: Any, *, timeout_s: float | None = None) -> None:
        """Change one of this plugin's replicated settings, on all nodes; None: its default.

        Raises InvalidSetting with the reason if the setting's own check refuses the value, and what
        `propose` raises.
        """

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        """Return when a read of the view is as fresh as asked. Raises ReadTimeout."""

    async def stored(self, index: int) -> None:
        """Return when what was applied up to `index` is as safe as this node can hold it.

        On a core: on its disk. Entries are applied once a majority has them, which need not be
        this node. On a replicant, which has no disk of its own: at once. A node that has stopped
        itself over its disk never returns.
        """

    def listen(self, callback: Callable[[int, Sequence[Change]], None]) -> Callable[[], None]:
        """Tell `callback` of own rows that each entry changes, until the result is called.

        As `Service.on_applied`, for who needs it at times only: while anybody listens, every write
        to these tables is dearer.
        """

    def view(self, plugin: str | None = None) -> View:
        """The applied state: this plugin's, or that of one in `uses`. Not kept over an await."""

    def now_ms(self) -> int:
        """The log's clock, estimated forward by the monotonic clock."""

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that is cancelled when the node stops; its exceptions are logged."""

    def api(self, plugin: type[Plugin[T]]) -> T:
        """The API of a plugin in `uses`."""


class Service:
    """A plugin's work on one node. Every method has an empty default.

    Hooks are plain and short functions on the event loop; what takes time is spawned. A hook that
    raises is logged and counted and does not stop the node.

    `hears` names the plugins whose changed rows `on_applied` is told of, among this one and those
    of `uses`; None: all of these. Each costs something on every write to its tables.
    """

    hears: ClassVar[tuple[str, ...] | None] = None

    async def start(self) -> None:
        """After recovery; tables are readable; register RPC methods here."""

    async def stop(self) -> None:
        """The node stops."""

    def on_leader(self) -> None:
        """This node leads, and has applied everything from before its term."""

    def on_follower(self) -> None:
        """It does no longer; also called before `stop`."""

    def on_node_up(self, member: Member) -> None: ...

    def on_node_down(self, member: Member) -> None:
        """`member` is as it was, with the incarnation that has ended."""

    def on_incarnation(self, incarnation: int) -> None:
        """This node has a new incarnation: what it owned under the old one is fenced."""

    def on_applied(self, index: int, changes: Sequence[Change]) -> None:
        """Rows of own tables, or of those of `uses`, were changed by the entry `index`.

        Called once for an entry, or several times for one that takes long: for some of its commands
        each time, which are applied whole by then, and no others.

        A service that defines this makes every write to these tables dearer.
        """

    def on_progress(self, index: int) -> None:
        """Entries up to `index` are applied, any number of them since the last call.

        It says nothing about what they changed, and costs nothing per entry: for a service that
        finds in its own tables what is new.
        """

    def on_restored(self, index: int) -> None:
        """A snapshot replaced the state: read everything anew."""

    def on_fault(self) -> None:
        """The node has stopped itself: nothing comes any more, so end what users wait for.

        `stop` follows when the program stops the node.
        """

    def routes(self) -> Sequence[Route]:
        return ()

    def metrics(self) -> Sequence[Metric]:
        """This node's figures, asked at every scrape. Labels only for what is bounded."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """Shown under the plugin's name in the node's status."""
        return {}


def require_format(
    plugin: str, command: Any, ctx: Context, since: Mapping[type[msgspec.Struct], int]
) -> None:
    """Refuse a command that is newer than the active format of its plugin. For `Plugin.apply`.

    `since` has the format that introduced a command, for those that are newer than format 1. Raises
    UnknownCommand in the words of a member that cannot decode it: all keep the same answer.
    """
    if ctx.version < since.get(type(command), 1):
        raise UnknownCommand(f"the plugin {plugin!r} cannot decode the command")


class Plugin(Generic[ApiT]):
    """Base class of plugins.

    `version` is the highest command format that this code understands. `commands` are tagged,
    array-like, frozen Structs, each with `Result`: the type, or union of types, that `apply` gives
    for it. `refusals` lists the `Refused` subclasses that `apply` may raise. `uses` names the
    plugins whose commands may be called and whose views may be read. `options` is the Struct of
    the local configuration `[options.<name>]`, if there is one. `costly` lists the commands that
    may cost more than their size: `cost` foresees how much. `quota`: what the plugin's user data
    counts in bytes; the setting `quota_bytes` is then added to its settings.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = ()
    tables: ClassVar[tuple[TableSpec, ...]] = ()
    settings: ClassVar[tuple[Setting, ...]] = ()
    refusals: ClassVar[tuple[type[Refused], ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()
    costly: ClassVar[tuple[type[msgspec.Struct], ...]] = ()
    options: ClassVar[type[msgspec.Struct] | None] = None
    quota: ClassVar[Quota | None] = None

    def apply(self, command: Any, ctx: Context) -> Any:
        """Apply one command. Pure; raising a Refused undoes everything it did.

        A command of long work may return a generator (`Steps`) instead of its result, which the
        generator returns: at each `yield` the node does something else, while readers see the state
        before the command. Tables that are runs are written behind the last `yield`.
        """
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def cost(self, command: Any, view: View) -> int:
        """The rows that a command in `costly` may look at beyond its size, as the state is now.

        An estimate, and short work itself: counts of tables and rows found by their key. It
        decides nothing but how a leader mixes commands into entries.
        """
        return 0

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        """Pure hook in the entry that changed the members table; bounded work."""

    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        """Pure hook in the entry that changed one of this plugin's settings."""

    def on_voters(self, old: tuple[str, ...], ctx: Context) -> None:
        """Pure hook in the entry that changed `ctx.voters`, which were `old` before."""

    def invariants(self, view: View) -> Sequence[str]:
        """What is wrong with the state, in words; empty if all is well."""
        return ()

    def open(self, host: Host) -> ApiT:
        """The typed API on one node: what `node.plugin(Class)` returns."""
        raise NotImplementedError(f"{type(self).__name__}.open")

    def service(self, host: Host, api: ApiT) -> Service | None:
        """The service half on one node, if there is one."""
        return None

    def cli(self) -> typer.Typer | Mapping[str, typer.Typer] | None:
        """The command group `raftkv <name> ...`, or several by their own names, or none."""
        return None
