"""Plugins on one node: their `Host`, their services' life and hooks, finding them."""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from .deadlines import ALARM_GRAIN_S
from .errors import ConfigError, NotPermitted, again
from .plugin import Change, Consistency, Member, Outcome, Plugin, Service, View
from .repeats import Repeats
from .rpc import PluginRpc
from .runtime import Runtime
from .state.core import SetSetting, SettleOutcome

if TYPE_CHECKING:
    from .node import Node

__all__ = ["Hosting", "NodeHost", "find_plugins"]

log = logging.getLogger("raftkv.plugins")

T = TypeVar("T")


def find_plugins(names: Sequence[str]) -> list[Plugin[Any]]:
    """The installed plugins of these names. Raises ConfigError for one that is not installed."""
    found = {point.name: point for point in entry_points(group="raftkv.plugins")}
    plugins: list[Plugin[Any]] = []
    for name in names:
        point = found.get(name)
        if point is None:
            raise ConfigError(
                f"plugins names {name!r}, which is not installed. Installed: "
                f"{', '.join(sorted(found)) or 'none'}"
            )
        plugins.append(point.load()())
    return plugins


def _options_of(plugin: Plugin[Any], configured: Mapping[str, Mapping[str, Any]]) -> Any:
    """The plugin's local options, checked. Raises ConfigError naming the key."""
    given = configured.get(plugin.name, {})
    if plugin.options is None:
        if given:
            raise ConfigError(f"options.{plugin.name}: the plugin has no options; remove them")
        return None
    try:
        return msgspec.convert(given, plugin.options)
    except msgspec.ValidationError as error:
        raise ConfigError(f"options.{plugin.name}: {error}") from None


class NodeHost:
    """What `plugin.Host` promises, for one plugin on one node."""

    def __init__(self, node: Node, plugin: Plugin[Any], rpc: PluginRpc) -> None:
        self._node = node
        self._plugin = plugin
        self._allowed = (plugin.name, *plugin.uses)
        self.rpc = rpc
        self.options = _options_of(plugin, node.config.options)
        self.log = logging.getLogger(f"raftkv.plugins.{plugin.name}")
        self._directory: str | None = None

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def role(self) -> Literal["core", "replicant"]:
        return self._node.role

    @property
    def incarnation(self) -> int:
        return self._node.incarnation

    @property
    def leader(self) -> str | None:
        return self._node.leader

    @property
    def is_leader(self) -> bool:
        return self._node.hosting.leads

    @property
    def runtime(self) -> Runtime:
        return self._node.runtime

    @property
    def directory(self) -> str:
        if self._directory is None:
            path = os.path.join(self._node.config.dir, "plugins", self._plugin.name)
            self._node.runtime.files.makedirs(path)
            # Only now: after an error the next look tries again.
            self._directory = path
        return self._directory

    @property
    def members(self) -> Mapping[str, Member]:
        return self.view().members

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.view().settings

    def propose(
        self, command: msgspec.Struct, *, timeout_s: float | None = None
    ) -> Coroutine[Any, Any, Any]:
        # The node's own coroutine: one around it costs each call and each answer a step more.
        return self._node.propose(self._plugin.name, command, timeout_s=_left(timeout_s))

    async def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        return await self._node.outcome(session, seq, timeout_s=_left(timeout_s))

    async def set_setting(self, key: str, value: Any, *, timeout_s: float | None = None) -> None:
        packed = None if value is None else msgspec.msgpack.encode(value)
        command = SetSetting(self._plugin.name, key, packed)
        await self._node.propose("core", command, timeout_s=_left(timeout_s))

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        await self._node.barrier(consistency, timeout_s=_left(timeout_s))

    async def stored(self, index: int) -> None:
        assert self._node._part is not None
        await self._node._part.stored(index)

    def listen(self, callback: Callable[[int, Sequence[Change]], None]) -> Callable[[], None]:
        hook = self._node.hosting.guarded(callback)
        return self._node.machine.subscribe(hook, (self._plugin.name,))

    def view(self, plugin: str | None = None) -> View:
        if self._node.withdrawn is not None:
            raise again(self._node.withdrawn)
        name = plugin or self._plugin.name
        if name not in self._allowed:
            raise LookupError(f"the plugin {self._plugin.name!r} does not name {name!r} in uses")
        return self._node.machine.view(name)

    def now_ms(self) -> int:
        return self._node.clock.now_ms()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._node.hosting.spawn(coroutine, f"{self._plugin.name}: {name}")

    def api(self, plugin: type[Plugin[T]]) -> T:
        if plugin.name not in self._allowed:
            raise LookupError(f"{self._plugin.name!r} does not name {plugin.name!r} in uses")
        return self._node.plugin(plugin)


class Hosting:
    """The node's plugins. Services start in the order of `uses` and stop in reverse."""

    def __init__(self, node: Node, plugins: Sequence[Plugin[Any]]) -> None:
        self._node = node
        self.plugins = {plugin.name: plugin for plugin in plugins}
        self.apis: dict[str, Any] = {}
        self.hosts: dict[str, NodeHost] = {}
        self.services: dict[str, Service] = {}
        self.leads = False
        self._stopped = False
        self.hook_faults = 0
        self._repeats = Repeats(node.runtime.monotonic)
        self._told_faults = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: list[Callable[[], None]] = []
        # Services that want to hear of progress; only once they have been started.
        self._progress_hooks: list[Callable[[int], None]] = []
        self._incarnation = 0

    def open(self) -> None:
        """Check the options, make every plugin's API and service; nothing runs yet."""
        for name in self._node.config.options:
            if name not in self.plugins:
                raise ConfigError(f"options.{name}: no plugin of this name runs on this node")
        for plugin in self._in_order():
            host = NodeHost(self._node, plugin, self._node.rpc.for_plugin(plugin.name))
            self.hosts[plugin.name] = host
            api = plugin.open(host)
            self.apis[plugin.name] = api
            service = plugin.service(host, api)
            if service is not None:
                self.services[plugin.name] = service

    def _in_order(self) -> list[Plugin[Any]]:
        ordered: dict[str, Plugin[Any]] = {}

        def place(plugin: Plugin[Any]) -> None:
            for used in plugin.uses:
                if used not in ordered and used in self.plugins:
                    place(self.plugins[used])
            ordered[plugin.name] = plugin

        for name in sorted(self.plugins):
            if name not in ordered:
                place(self.plugins[name])
        return list(ordered.values())

    async def start(self) -> None:
        for name, service in self.services.items():
            await service.start()
            if type(service).on_progress is not Service.on_progress:
                self._progress_hooks.append(service.on_progress)
            # Changes are only captured for those who listen: that is a cost on every write.
            if type(service).on_applied is not Service.on_applied:
                wanted = service.hears
                if wanted is None:
                    wanted = (name, *self.plugins[name].uses)
                self._unsubscribe.append(
                    self._node.machine.subscribe(self.guarded(service.on_applied), wanted)
                )
        self._unsubscribe.append(self._node.machine.subscribe(self._members_changed, ("core",)))

    async def stop(self) -> None:
        self.set_leads(False)
        self._end_news()
        for name in reversed(list(self.services)):
            try:
                await self.services[name].stop()
            except Exception:
                self.hook_faults += 1
                log.exception("stopping the service of %s failed", name)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def guarded(
        self, callback: Callable[[int, Sequence[Change]], None]
    ) -> Callable[[int, Sequence[Change]], None]:
        """What raises must not stop the node: it is counted and logged."""

        def listener(index: int, changes: Sequence[Change]) -> None:
            self._hook(lambda: callback(index, changes))

        return listener

    def _members_changed(self, index: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table != "members":
                continue
            old = change.old if isinstance(change.old, Member) else None
            new = change.new if isinstance(change.new, Member) else None
            for service in list(self.services.values()):
                if old is not None and old.up and not _same_life(old, new):
                    self._hook(lambda s=service, m=old: s.on_node_down(m))  # type: ignore[misc]
                if new is not None and new.up and not _same_life(new, old):
                    self._hook(lambda s=service, m=new: s.on_node_up(m))  # type: ignore[misc]

    def incarnation_changed(self, incarnation: int) -> None:
        if incarnation != self._incarnation and not self._stopped:
            self._incarnation = incarnation
            for service in self.services.values():
                self._hook(lambda s=service: s.on_incarnation(incarnation))  # type: ignore[misc]

    def life_ended(self) -> None:
        """The history that this life belongs to was given up: the next one is new to everybody.

        It may bear the same number, because it is counted from an earlier point.
        """
        self._incarnation = 0

    def progressed(self, index: int) -> None:
        if self._node.machine.fault_count != self._told_faults:
            self._tell_faults()
        for hook in self._progress_hooks:
            self._hook(lambda h=hook: h(index))  # type: ignore[misc]

    def restored(self, index: int) -> None:
        if self._stopped:
            return
        for service in self.services.values():
            self._hook(lambda s=service: s.on_restored(index))  # type: ignore[misc]

    def withdraw(self) -> None:
        """The state is corrupt: services end what users wait for, and get no more of it."""
        self.set_leads(False)
        self.faulted()
        self._end_news()

    def _end_news(self) -> None:
        self._stopped = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        self._progress_hooks.clear()

    def faulted(self) -> None:
        if self._stopped:
            return
        for service in self.services.values():
            self._hook(service.on_fault)

    def set_leads(self, leads: bool) -> None:
        """on_leader once all before its term is applied; on_follower as soon as it ended."""
        # The engine stops after the services: what it still applies must not start them again.
        if leads == self.leads or self._stopped:
            return
        self.leads = leads
        for service in self.services.values():
            self._hook(service.on_leader if leads else service.on_follower)

    def _hook(self, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception as error:
            self.hook_faults += 1
            left_out = self._repeats.left_out(_place_of(error), type(error).__name__)
            if left_out is not None:
                log.exception("a plugin's hook failed%s", _counted(left_out))

    def _tell_faults(self) -> None:
        """What plugins raised in commands and pure hooks, on every node alike: for the log."""
        machine = self._node.machine
        self._told_faults = machine.fault_count
        while machine.faults:
            fault = machine.faults.popleft()
            last_line = fault.detail.rstrip().rpartition("\n")[2]
            left_out = self._repeats.left_out((fault.plugin, fault.where), last_line)
            if left_out is not None:
                log.error(
                    "the plugin %s failed in %s at index %d%s:\n%s",
                    fault.plugin,
                    fault.where,
                    fault.index,
                    _counted(left_out),
                    fault.detail,
                )

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._node.runtime.spawn(coroutine, name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.hook_faults += 1
            error = task.exception()
            left_out = self._repeats.left_out((task.get_name(), _place_of(error)), repr(error))
            if left_out is not None:
                text = "the task %s failed%s"
                log.error(text, task.get_name(), _counted(left_out), exc_info=error)

    async def settle(self, session: int, seq: int, timeout_s: float | None) -> Outcome:
        """Ask the log what became of a number (a command itself: rule in the design, part 2)."""
        node = self._node
        owner = node.machine.session_owner(session)
        if node.role == "replicant" and owner not in (None, "", node.name):
            # Its upstream would leave the question out (permissions.py).
            raise NotPermitted(
                f"the session {session} is one of {owner}, and a replicant asks about its own and "
                f"about those of clients only: ask on {owner}, or on a core"
            )
        if session == node.outbox.session:
            kind = node.outbox.kind_of(seq)
        else:
            kind = node.costly.kind_of(session, seq)
        report = await node.propose("core", SettleOutcome(session, seq), timeout_s=timeout_s)
        result = node.machine.read_report(report, kind)
        return Outcome(report.verdict, result)


def _left(timeout_s: float | None) -> float | None:
    """The rest of a time that a plugin's API has checked; if it is over, the shortest there is."""
    return ALARM_GRAIN_S if timeout_s is not None and timeout_s < ALARM_GRAIN_S else timeout_s


def _same_life(member: Member, other: Member | None) -> bool:
    """Whether both rows are of one life of a node: it may have changed its role meanwhile."""
    return other is not None and other.up == member.up and other.incarnation == member.incarnation


def _place_of(error: BaseException | None) -> tuple[str, int]:
    """Where an error was raised: the same trouble comes from the same line."""
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def _counted(left_out: int) -> str:
    return f" ({left_out} times more since this was last said)" if left_out else ""
