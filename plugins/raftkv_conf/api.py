"""Cluster-wide configuration on one node: `conf = node.plugin(Conf)`.

    conf.handler("smtp.port", int, default=25, validate=port_ok, apply=reconnect, doc="...")
    await conf.set("smtp.port", 587)            # on one node: checked there, in effect on all
    conf.get("smtp.port")

A change is a cluster call: the node that is asked checks the value and brings it about, and if that
fails nothing has happened anywhere; then every other node brings it about, and tries until it
succeeds. A node that was away, or is new, gets all values before it takes part.

Rules of this file
1. A call is executed when its value is in effect and on the disk. A crash in between repeats it on
   a replica; both steps are idempotent.
2. The initiator writes to the disk first, with what was there before. When the cluster aborts its
   call after all, the change is undone: before anything else is done with the values, or as soon as
   the calls raise their alarm, which is acknowledged then.
3. Only the initiator refuses. On the others a value is committed: it has to be brought about.
4. A value is in no log line and in no metric, and of an error that a handler raised only the class
   and the place are told, for its text may quote one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from raftkv.errors import ConfigError, NotApplied, OutcomeUnknown, RaftkvError, RemoteFailed
from raftkv.plugin import Host, Metric
from raftkv.validation import checked
from raftkv_cluster_call import (
    Alarm,
    Call,
    CallResult,
    Calls,
    FixReport,
    UnknownCall,
    cause_of,
    logged_cause,
)

from .diff import HIDDEN, DiffReport, Listing, Told, compare, digest
from .effects import RETRY_MAX_S, RETRY_MIN_S, Effects, Entry, Listener
from .errors import ConfError, InvalidValue, NotSet, TooMuchConf, UnknownPath
from .handlers import Handler, Handlers, encoded
from .options import ConfOptions
from .store import Store, Undo

__all__ = ["CONF_BYTES_MAX", "ConfApi", "SetValue", "UnsetValue"]

#: All paths and values together. The file is written as a whole at every change: some milliseconds.
CONF_BYTES_MAX = 1024 * 1024
# A caller waits for all nodes; upstream's time for the same.
TIMEOUT_S = 120.0
# One node's answer to `diff`.
LIST_TIMEOUT_S = 10.0
LIST = "list"
SET = "conf.set"
UNSET = "conf.unset"


class SetValue(msgspec.Struct, frozen=True):
    """Arguments of "conf.set" version 1: the value is JSON."""

    path: str
    value: bytes


class UnsetValue(msgspec.Struct, frozen=True):
    """Arguments of "conf.unset" version 1."""

    path: str


@checked
class ConfApi:
    """The configuration as one node has it. All methods belong to the node's event loop."""

    #: The name of the state that joiners copy and `fix` compares.
    name = "conf"

    def __init__(self, host: Host) -> None:
        options = host.options if isinstance(host.options, ConfOptions) else ConfOptions()
        self._host = host
        self._handlers = Handlers()
        self._store = Store(host)
        self._effects = Effects(host, self._handlers, options.local)
        # Held while values are brought about and written.
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        # Lost effects of this node that are being acknowledged.
        self._acknowledged: set[int] = set()
        self._calls = host.api(Calls)
        self._calls.function(SET, version=1, type=SetValue)(self._on_set)
        self._calls.function(UNSET, version=1, type=UnsetValue)(self._on_unset)
        self._calls.state(self)

    # --- for programs ---

    def handler(
        self,
        path: str,
        type: Any = None,
        *,
        default: Any = None,
        validate: Callable[[Any], str | None] | None = None,
        apply: Callable[[Any], Awaitable[None] | None] | None = None,
        doc: str = "",
        secret: bool = False,
    ) -> None:
        """Register what a path means, on every node alike, when the program starts.

        `type` is any type that msgspec builds from JSON. `validate` gives the reason to refuse a
        value, or None; it is asked on the initiator only. `apply` brings a value about on this
        node: it gets the built value, or `default` when a value went away; it may be async, must be
        idempotent, and raises if it did not succeed (then it is tried again). Values of a `secret`
        are shown nowhere.

        Raises ValueError (the path), ConfigError (this node's local value is not of the type).
        """
        handler = Handler(
            path=path,
            type=Any if type is None else type,
            default=default,
            validate=validate,
            apply=apply,
            doc=doc,
            secret=secret,
        )
        local = self._effects.local.get(path)
        self._handlers.add(handler)
        if local is not None:
            try:
                handler.check(local)
            except InvalidValue as error:
                raise ConfigError(f"options.conf.local: {error}") from None
        self._woken.set()

    def on_change(self, callback: Listener) -> None:
        """Call back with (path, value) whenever another value has come into effect on this node."""
        self._effects.add_listener(callback)

    def get(self, path: str) -> Any:
        """The effective value on this node, of the path's type. Raises UnknownPath.

        Of a secret, too: this is for the program. What people are shown is `entry`.
        """
        return self._effects.value(self._handlers.need(path), self._store.values)

    # --- for people ---

    def entry(self, path: str) -> Entry:
        """One path as people may see it. Raises UnknownPath if it has no handler and no value."""
        values = self._store.values
        handler = self._handlers.get(path)
        if handler is None:
            if path not in values and path not in self._effects.local:
                self._handlers.need(path)
            handler = Handler(path=path, type=Any)
            known = False
        else:
            known = True
        value = self._effects.effective(path, values)
        plain = _plain(handler.default) if value is None else msgspec.json.decode(value)
        if handler.secret and (value is not None or handler.default is not None):
            plain = HIDDEN
        return Entry(
            path,
            plain,
            self._effects.source(path, values),
            handler.doc,
            handler.secret,
            known,
            self._effects.failing.get(path, ""),
        )

    def all(self) -> tuple[Entry, ...]:
        """Every path that has a handler, a value or a local value here, in the order of names."""
        paths = {*self._handlers, *self._store.values, *self._effects.local}
        return tuple(self.entry(path) for path in sorted(paths))

    async def set(
        self,
        path: str,
        value: Any,
        *,
        required: Literal["all"] | int | Sequence[str] = "all",
        timeout_s: float = TIMEOUT_S,
    ) -> CallResult:
        """Set a path on all nodes; wait for those that are `required`, see `CallsApi.call`.

        The outcome is "ok", "peers_lagging" or "stopped_nodes": in the last two the value is set,
        and the nodes named do not have it yet. Raises UnknownPath, InvalidValue, TooMuchConf,
        NotSet: nothing was changed anywhere. And all that `CallsApi.call` raises.
        """
        args = SetValue(path, encoded(value))
        return await self._call(SET, args, required, timeout_s)

    async def unset(
        self,
        path: str,
        *,
        required: Literal["all"] | int | Sequence[str] = "all",
        timeout_s: float = TIMEOUT_S,
    ) -> CallResult:
        """Let a path have its default again, on all nodes. Errors and outcomes as of `set`."""
        return await self._call(UNSET, UnsetValue(path), required, timeout_s)

    async def _call(
        self,
        function: str,
        args: Any,
        required: Literal["all"] | int | Sequence[str],
        wait_s: float,
    ) -> CallResult:
        result = await self._calls.call(
            function, args, version=1, required=required, timeout_s=wait_s
        )
        if result.outcome != "init_failure":
            return result
        kind = "" if result.error is None else result.error.kind
        reason = "" if result.error is None else result.error.reason
        for known in (UnknownPath, InvalidValue, TooMuchConf):
            if kind == known.__name__:
                raise known(reason)
        raise NotSet(f"nothing was changed: {reason if kind == 'NotSet' else f'{kind}: {reason}'}")

    async def sync(self, *, timeout_s: float = TIMEOUT_S) -> FixReport:
        """Mend the nodes whose values are not those of the most advanced one; `CallsApi.fix`."""
        return await self._calls.fix(timeout_s=timeout_s)

    async def diff(self) -> DiffReport:
        """What is not the same in effect on all members, or is kept to itself by one.

        Replicants that take no part in the calls are left out: they have no values.
        """
        salt = self._host.runtime.token(16)
        listings: dict[str, Listing] = {}
        unreachable: dict[str, str] = {}

        async def ask(node: str) -> None:
            try:
                reply = await self._host.rpc.call(node, LIST, salt, LIST_TIMEOUT_S)
                listings[node] = msgspec.msgpack.decode(reply, type=Listing)
            except (NotApplied, OutcomeUnknown, RemoteFailed) as error:
                unreachable[node] = str(error)
            except msgspec.DecodeError:
                unreachable[node] = "it answered in words that this node does not know"

        asked = []
        for node in self._calls.status(limit=1).nodes:
            if node.role != "core" and node.cursor is None:
                continue
            if node.up:
                asked.append(ask(node.name))
            else:
                unreachable[node.name] = "it is down"
        await asyncio.gather(*asked)
        return compare(listings, unreachable)

    # --- the two functions ---

    async def _on_set(self, args: SetValue, call: Call) -> None:
        async with self._lock:
            await self._settle()
            values = {**self._store.values, args.path: args.value}
            if call.kind == "initiate":
                self._handlers.need(args.path).check(args.value)
                _check_size(values)
            await self._change(args.path, values, call)

    async def _on_unset(self, args: UnsetValue, call: Call) -> None:
        async with self._lock:
            await self._settle()
            values = dict(self._store.values)
            if values.pop(args.path, None) is None and call.kind == "initiate":
                self._handlers.need(args.path)
            await self._change(args.path, values, call)

    async def _change(self, path: str, values: Mapping[str, bytes], call: Call) -> None:
        """Bring the value about and keep it; raises if either fails.

        The initiator keeps it first, with what was there: so whatever its handler has done can be
        taken back, also after a crash. On the others the call is run again until both succeed.
        """
        store = self._store
        try:
            if call.kind == "initiate":
                before = store.values
                await store.write(values, call.id, Undo.of(call.id, path, before))
                try:
                    await self._effects.bring(path, values)
                except BaseException as error:
                    await store.write(before, call.id)
                    if isinstance(error, ConfError) or not isinstance(error, Exception):
                        raise
                    # Its own words may quote the value: the class and the function are told.
                    told = NotSet(f"{path}: its handler failed: {cause_of(error)}")
                    raise told.with_traceback(error.__traceback__) from None
            else:
                await self._effects.bring(path, values)
                await store.write(values, call.id)
        except BaseException:
            # Whatever has happened: what is kept is to be in effect, soon.
            self._woken.set()
            raise

    async def _settle(self) -> None:
        """Undo this node's last change if its call was aborted after all. The lock is held."""
        await self._store.load()
        undo = self._store.undo
        if undo is not None:
            await self._settle_one(undo)
        for row in self._calls.status(limit=1).lost:
            mine = row.node == self._host.name and row.function in (SET, UNSET)
            open_still = self._store.undo is not None and self._store.undo.id == row.id
            if mine and not open_still and row.id not in self._acknowledged:
                # It was undone, or had not been kept yet, and so had changed nothing.
                self._acknowledged.add(row.id)
                self._host.spawn(self._acknowledge(row.id), "acknowledge")

    async def _settle_one(self, undo: Undo) -> None:
        try:
            state = self._calls.query(undo.id).state
        except UnknownCall:
            if undo.id > self._calls.status(limit=1).last:
                # The node has just started: its copy of the log has not come so far yet.
                return
            # Trimmed, so decided long ago: an aborted one was undone when the next call ran here,
            # unless somebody made all records go (`reset`). Then it is still told as lost.
            lost = any(
                row.node == self._host.name and row.id == undo.id
                for row in self._calls.status(limit=1).lost
            )
            state = "aborted" if lost else "committed"
        if state == "reserved":
            return
        values = dict(self._store.values)
        if state == "aborted":
            self._host.log.warning(
                "conf: call %d was aborted after %s had been changed here: it is changed back",
                undo.id,
                undo.path,
            )
            values = undo.undone(values)
            self._effects.doubt(undo.path)
        # What is kept comes first: bringing it about may fail, and is tried again.
        await self._store.write(values, self._store.as_of)
        self._woken.set()

    async def _acknowledge(self, id: int) -> None:
        """Nothing of that call is left here, so nobody need be told of it any more."""
        try:
            await self._calls.acknowledge(id)
        except RaftkvError as error:
            self._acknowledged.discard(id)
            self._host.log.info("conf: call %d could not be acknowledged: %s", id, error)

    # --- as a state of the node: see `NodeState` ---

    async def as_of(self) -> int | None:
        await self._store.load()
        return self._store.as_of

    async def dump(self) -> Mapping[str, bytes]:
        async with self._lock:
            await self._settle()
            values, undo = self._store.values, self._store.undo
            # A change of this node's that is not decided yet is not what a copy is as of.
            return dict(values) if undo is None else undo.undone(values)

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        async with self._lock:
            await self._store.load()
            await self._store.write(items, as_of)
            await self._effects.bring_all(items)

    async def passed(self, id: int) -> None:
        async with self._lock:
            await self._settle()
            await self._store.passed(id)

    # --- from the service ---

    async def begin(self) -> None:
        """Read what is kept, and go on bringing it about. Once, when the service starts."""
        self._host.rpc.register(LIST, self._on_list)
        await self._store.load()
        self._calls.on_alarm(self._on_alarm)
        self._woken.set()
        self._host.spawn(self._bring_about(), "bring about")

    def _on_alarm(self, alarm: Alarm, raised: bool) -> None:
        if raised and alarm.name == "effect_lost" and alarm.node == self._host.name:
            self._woken.set()

    async def _bring_about(self) -> None:
        """Bring about what no call waits for: at the start, for late handlers, after failures."""
        pause_s = RETRY_MIN_S
        while True:
            await self._woken.wait()
            self._woken.clear()
            async with self._lock:
                try:
                    await self._settle()
                    await self._effects.bring_all(self._store.values)
                except Exception as error:
                    self._host.log.warning(
                        "conf: not everything is in effect yet (%d values): %s",
                        len(self._effects.failing),
                        logged_cause(error),
                    )
                else:
                    pause_s = RETRY_MIN_S
                    continue
            await self._host.runtime.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            self._woken.set()

    async def _on_list(self, sender: str, salt: bytes) -> bytes:
        values, effects = self._store.values, self._effects
        told = []
        for path in sorted({*values, *effects.local}):
            handler = self._handlers.get(path)
            secret = handler is not None and handler.secret
            value = effects.effective(path, values)
            shown = b"" if secret or value is None else value
            told.append(
                Told(
                    path,
                    shown,
                    digest(value, salt),
                    digest(values.get(path), salt),
                    effects.source(path, values),
                    secret,
                )
            )
        return msgspec.msgpack.encode(Listing(self._store.as_of, tuple(told)))

    def metrics(self) -> Sequence[Metric]:
        values = self._store.values if self._store.loaded else {}
        size = sum(len(path) + len(value) for path, value in values.items())
        return (
            Metric("values", "gauge", len(values), "Paths that are set."),
            Metric("bytes", "gauge", size, "Bytes of paths and values; CONF_BYTES_MAX at most."),
            Metric("local_values", "gauge", len(self._effects.local), "Values of this node alone."),
            Metric(
                "failing",
                "gauge",
                len(self._effects.failing),
                "Values that are kept and could not be brought about on this node.",
            ),
        )

    def status(self) -> Mapping[str, Any]:
        values = self._store.values if self._store.loaded else {}
        return {
            "values": len(values),
            "local": sorted(self._effects.local),
            "failing": dict(self._effects.failing),
            "as_of": self._store.as_of if self._store.loaded else None,
        }


def _plain(value: Any) -> Any:
    """A default as JSON would have it; one without a JSON form is shown as nothing."""
    try:
        return msgspec.json.decode(encoded(value))
    except ConfError:
        return None


def _check_size(values: Mapping[str, bytes]) -> None:
    size = sum(len(path) + len(value) for path, value in values.items())
    if size > CONF_BYTES_MAX:
        raise TooMuchConf(
            f"all values together would have {size} bytes, more than {CONF_BYTES_MAX}: keep large "
            f"data in the keyspace, and its key here"
        )
