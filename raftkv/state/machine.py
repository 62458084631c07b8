"""The replicated state machine: a batch in, outcomes out.

Rules of this file
1. Pure: what comes out depends on the entries applied before and on this one. No clock (batches are
   stamped), no chance, no I/O, no local configuration.
2. A command takes effect wholly or not at all. The undo log is shared by all tables and empty
   between commands; what a command does outside of tables (sessions, hooks, active plugins) is
   queued, and done once the command has succeeded.
3. Whatever a plugin raises has the same effect on every node. `Refused` is its verdict; any other
   exception is a fault of the plugin, becomes the refusal `PluginFault`, and is undone. Only what
   depends on this very node (memory, disk, depth of the Python stack, an interrupt) propagates and
   stops the node, for another node may have got through.
4. The first outcome of a number is the outcome. sessions.py has the theory.
5. The log's clock never goes back: `now` = max(what it was, the batch's stamp).
6. Nothing but a command takes time in proportion to the size of the state: freezing, reading a
   snapshot (chunk by chunk, beside the state), adopting it. What is no longer needed goes into
   `waste`, for whoever drives the machine to sweep.

The speed of a cluster is the speed of `apply`: see bench/test_state_bench.py before changing it.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Annotated, Any, Final, TypeVar

import msgspec

from raftkv.errors import (
    ConfigError,
    Diverged,
    PluginFault,
    Refused,
    UnknownCommand,
    UnknownPlugin,
)
from raftkv.validation import require_decodable

from . import activation
from .batch import Envelope, decode_batch
from .capture import Capture, Listener
from .contract import (
    Context,
    Member,
    MemberChange,
    PurePlugin,
    Setting,
    SettingChange,
    View,
)
from .core import (
    CORE,
    SESSIONS_KEPT_SINCE,
    Core,
    NodeUp,
    OpenSession,
    OpenSessionResult,
    OutcomeReport,
    Voters,
)
from .costs import Work, of_size
from .estimating import costly_marks, estimated, foreseen
from .hiding import Hidden
from .quota import NOSPACE, QUOTA_FORMAT, CountedTable, Gate, Usage
from .refusals import Refusals, fresh
from .routing import Routed, in_use_order
from .rows import SMALL_ROWS_MAX
from .sessions import (
    CLIENT_KEPT_MS,
    OUTCOME_BYTES_MAX,
    Clients,
    RestoredResult,
    Session,
    Sessions,
    unknown_session,
)
from .slicing import FEW_ROWS, SLICE_COMMANDS, SLICE_ROWS, Running, Steps
from .snapshot import (
    FORMAT,
    KIND_REFUSAL,
    NO_TEXTS_SINCE,
    Frozen,
    Header,
    Image,
    Reader,
    decode_outcome,
    outcome_size,
    require_plugin,
)
from .tables import TableView, UndoLog, undo_to
from .views import StateView

__all__ = ["Fault", "Outcomes", "StateMachine"]

# Faults kept for the node to log; more than that within one batch are counted only.
FAULTS_KEPT: Final = 100


class Fault(msgspec.Struct, frozen=True):
    """A plugin raised something it must not. For the node's log; no part of the state."""

    index: int
    plugin: str
    where: str
    detail: str


C = TypeVar("C")
_decode_format = msgspec.msgpack.Decoder(Annotated[int, msgspec.Meta(ge=1, lt=2**31)]).decode
Outcomes = list[tuple[int, int, Any]]


class StateMachine:
    """All replicated state of one node.

    `index` is the last applied entry, `now` the log's clock in ms, `serial` the number of commands
    ever applied. Raises ConfigError when the plugins' declarations are wrong. `sessions` exists for
    tests with smaller bounds; the bounds must be the same on all nodes. `core_format_max` is the
    newest core format that this machine takes, less than the code knows in tests of upgrades.
    """

    def __init__(
        self,
        plugins: Sequence[PurePlugin],
        *,
        sessions: Sessions | None = None,
        core_format_max: int = Core.version,
    ) -> None:
        # `_entry` is the entry begun last: `index`, or the next one while that is under way.
        self.index = self._entry = 0
        self.now = 0
        self.serial = 0
        #: How often this state was given up for that of another history (`reset`).
        self.discards = 0
        self.faults: deque[Fault] = deque(maxlen=FAULTS_KEPT)
        self.fault_count = 0
        self.core_format_max = core_format_max
        self._work = Work()
        self._last = Envelope(0, 0, 0, CORE, b"")
        self._undo: UndoLog = []
        self._after: list[Callable[[], None]] = []
        # A command that has given its slices instead of a result.
        self._unfinished: tuple[Routed, Any, Steps[Any]] | None = None
        # Plugins that the command which is being applied has taken beyond their quotas.
        self._overrun: list[str] = []
        self._sessions = Sessions() if sessions is None else sessions
        #: What is no longer needed and may be large.
        self.waste = self._sessions.waste
        self._refusals = Refusals()
        self._settings: dict[str, dict[str, Setting]] = {}
        self._all = self._route(plugins)
        self._tables = [table for r in self._all.values() for table in r.tables.values()]
        self._gates = [r.gate for r in self._all.values() if r.gate is not None]
        tables = {name: r.tables.values() for name, r in self._all.items()}
        self._capture = Capture(tables, self._undo)
        self._active: dict[str, Routed] = {}
        self._views = {name: StateView(self, routed) for name, routed in self._all.items()}
        self.members: Mapping[str, Member] = self._all[CORE].members
        self._voters = self._all[CORE].tables["voters"].view
        self._removed = self._all[CORE].tables["removed"].view
        self._refresh_active()

    def _route(self, plugins: Sequence[PurePlugin]) -> dict[str, Routed]:
        if any(CORE in (plugin.name, *plugin.uses) for plugin in plugins):
            raise ConfigError(f"no plugin may be named or use {CORE!r}, which is built in")
        ordered = in_use_order(plugins)
        builtin = Core(
            self._sessions,
            self._refusals,
            self._settings,
            self._after.append,
            self._members_changed,
            self._setting_changed,
            self._refresh_active,
            self._voters_changed,
        )
        self._core = builtin
        core = Routed(builtin, self._undo, self._sessions, None, None, self._work)
        found = {CORE: core}
        for plugin in ordered:
            routed = Routed(
                plugin, self._undo, self._sessions, core.members, core.tables, self._work
            )
            routed.ctx._callees = {name: found[name] for name in plugin.uses}
            found[plugin.name] = routed
            if routed.usage is not None:
                used = [found[name].usage for name in plugin.uses]
                counted = [usage for usage in used if usage is not None]
                routed.gate = Gate(plugin, routed.usage, counted, self._overrun, self._work)
            self._settings[plugin.name] = routed.settings
            try:
                self._refusals.add(plugin.name, plugin.refusals)
            except TypeError as error:
                raise ConfigError(f"the plugin cannot be used: {error}") from None
        return {name: found[name] for name in sorted(found)}

    @property
    def voters(self) -> tuple[int, tuple[str, ...]]:
        """The cores that vote, as the leader has announced them, and the version of that."""
        row: Voters | None = self._voters.get("now")
        return (0, ()) if row is None else (row.version, row.raft_ids)

    @property
    def removed_members(self) -> TableView[str, str]:
        """Of each member that was removed and has not come back, its raft id."""
        return self._removed

    # Applying

    def apply(self, index: int, body: bytes, term: int = 0) -> Outcomes:
        """Apply a batch entry. Returns (session, seq, outcome) for each of its commands, in order.

        `term` is the one in which the entry was appended, the same on every node; 0 where there are
        no terms.

        An outcome is the command's result or an instance of `Refused`. Raises Diverged when the
        entry is not the next one or no batch, MissingPlugin when the cluster has activated a
        plugin that this node lacks; resource errors propagate. After any exception the machine
        must not be used any more.
        """
        outcomes: Outcomes = []
        for some in self.slices(index, body, term):
            outcomes += some
        return outcomes

    def slices(self, index: int, body: bytes, term: int = 0) -> Iterator[Outcomes]:
        """Apply a batch entry as `apply` does, with a bounded amount of work in each step.

        A step gives the outcomes of the commands that have ended in it; the listeners know their
        changes by then. Between two steps readers see whole commands, but `index` is still that of
        the entry before: it moves in the last step. Until then the state cannot be frozen and no
        other entry applied; `adopt` and `reset` discard what the entry has done.
        """
        self._enter(index)
        try:
            batch = decode_batch(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Diverged(f"entry {index} of the log is no batch of commands: {error}") from None
        self._core.term = term
        if batch.stamp_ms > self.now:
            self.now = batch.stamp_ms
        sessions = self._sessions
        sessions.expire(self.now)
        open_session = sessions.by_id.get
        window = sessions.window
        walks = sessions.walks
        run, work = self._run, self._work
        work.entry_bytes, work.slice_rows, slice_ends = len(body), 0, SLICE_COMMANDS
        outcomes: Outcomes = []
        for number, envelope in enumerate(batch.commands):
            if number == slice_ends or work.slice_rows > SLICE_ROWS:
                self._publish(index)
                yield outcomes
                outcomes = []
                work.slice_rows, slice_ends = 0, number + SLICE_COMMANDS
            id = envelope.session
            seq = envelope.seq
            session = open_session(id)
            if session is None:
                outcomes.append((id, seq, self._without_session(envelope)))
                continue
            if walks:
                sessions.keep(session)
            if envelope.floor > session.floor:
                session.raise_floor(min(envelope.floor, seq))
                if not session.node:
                    sessions.count(session)
            done = session.done
            if seq in done or not 0 <= seq - session.floor < window:
                outcome = self._again(session, envelope)
            else:
                outcome = run(envelope)
                if self._unfinished is not None:
                    self._publish(index)
                    yield outcomes
                    outcomes = []
                    outcome = yield from self._finish_in_slices(*self._unfinished)
                done[seq] = outcome
                if isinstance(outcome, Refused):
                    outcome = fresh(outcome)
                if not session.node:
                    sessions.touch(session, self.now, self.serial)
                    session.weigh(seq, outcome_size(outcome, self._refusals))
                    if self.core_format >= 2 and session.bytes > OUTCOME_BYTES_MAX:
                        session.drop_beyond(OUTCOME_BYTES_MAX, seq)
                    sessions.count(session)
                    self._bound_outcomes(session)
            outcomes.append((id, seq, outcome))
        for table in self._tables:
            if len(table._rows) > SMALL_ROWS_MAX and table.crowded:
                table.grow()
        self.index = index
        self._publish(index)
        yield outcomes

    @property
    def between_entries(self) -> bool:
        """Whether no entry is under way: only then does the state belong to `index`."""
        return self.index == self._entry

    @property
    def newest_index(self) -> int:
        """`index`, or the next one while that entry is under way and seen in part.

        Another node that has applied so far shows at least all that is seen here.
        """
        return self._entry

    def _publish(self, index: int) -> None:
        if self._capture.changes:
            self._capture.publish(index)

    def _give_up_entry(self) -> None:
        """Discard what an entry under way has left beside the tables, which are replaced next."""
        self._undo.clear()
        self._after.clear()
        self._overrun.clear()
        self._unfinished = None
        self._capture.drop()

    def require_decodable(self, plugin: str, command: msgspec.Struct) -> None:
        """Raise TypeError for a command that every node would fail to decode, before it is sent.

        Names the field of the wrong type. A plugin that is not routed here is not looked at.
        """
        routed = self._all.get(plugin)
        if routed is None:
            return
        require_decodable(plugin, command, routed.decode)

    def skip(self, index: int) -> None:
        """Pass an entry that holds no commands (no-op, configuration)."""
        self._advance(index)

    def raise_format(self, index: int, body: bytes) -> None:
        """Apply an entry that raises the core format to the number in `body`.

        Raises MissingPlugin when this code does not know that format, Diverged for another body.
        """
        self._advance(index)
        try:
            version = _decode_format(body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Diverged(f"entry {index} of the log holds no core format: {error}") from None
        ctx = self._all[CORE].ctx
        if self._core.raise_format(version, ctx):
            self._refresh_active()
            ctx.now, ctx.index = self.now, index
            if activation.refresh(ctx):
                self._refresh_active()
            if self.core_format >= 2:
                self._sessions.bound_each(OUTCOME_BYTES_MAX)
                self._bound_outcomes(None)
            if self._capture.touched:
                self._capture.collect()
            self._undo.clear()
            if self._capture.changes:
                self._capture.publish(index)

    def _bound_outcomes(self, current: Session | None) -> None:
        """Drop outcomes of clients beyond the bound of all; `current` is the session in use."""
        sessions = self._sessions
        if sessions.outcome_bytes > sessions.bytes_max and self.core_format >= 2:
            sessions.drop_beyond(sessions.bytes_max, current)

    def _advance(self, index: int) -> None:
        self._enter(index)
        self.index = index

    def _enter(self, index: int) -> None:
        """Begin with an entry. Commands and hooks see its index as theirs from here on."""
        if index != self._entry + 1 or not self.between_entries:
            raise Diverged(f"entry {index} was to be applied after entry {self._entry}")
        self._entry = index

    def _run(self, envelope: Envelope) -> Any:
        """Apply one command that was not seen before; returns its outcome as it is to be kept."""
        self.serial = serial = self.serial + 1
        work = self._work
        work.rows = 0
        self._last = envelope
        routed = self._active.get(envelope.plugin)
        if routed is None:
            return UnknownPlugin(f"the plugin {envelope.plugin!r} is not active in this cluster")
        try:
            command = routed.decode(envelope.command)
        except (msgspec.MsgspecError, ValueError):
            # Without the decoder's own words: they may differ from one version of it to another,
            # and what is answered is part of the state.
            return UnknownCommand(f"the plugin {envelope.plugin!r} cannot decode the command")
        ctx = routed.ctx
        ctx.now = self.now
        ctx.index = self._entry
        ctx.serial = serial
        ctx.session = envelope.session
        undo = self._undo
        try:
            kind, judge = type(command), routed.judge
            if judge is not None and judge.ample == self._entry and kind in judge.modest:
                result = routed.plugin.apply(command, ctx)  # rule 5 of quota.py
            else:
                result = routed.apply(command, ctx)
            if type(result) not in routed.results[kind]:
                if type(result) is GeneratorType:
                    self._unfinished = (routed, command, result)
                    return None
                routed.checked(command, result)
        except (MemoryError, OSError, RecursionError):
            raise
        except Exception as error:
            undo_to(undo, 0)
            return self._failed(routed, command, error)
        if self._after:
            self._finish()
        # Behind the hooks, whose calls may be beyond a quota, too.
        if self._overrun:
            self._raise_alarms()
        if undo:
            if self._capture.touched:
                self._capture.collect()
            if len(undo) > FEW_ROWS:
                work.slice_rows += len(undo)
            undo.clear()
        return result

    def _finish_in_slices(
        self, routed: Routed, command: Any, steps: Steps[Any]
    ) -> Generator[Outcomes, None, Any]:
        """Apply a command that gave its slices; its outcome. Readers see nothing of it before."""
        self._unfinished = None
        hidden = Hidden(self._undo, self.waste)
        try:
            for _ in (running := Running(steps)):
                hidden.take_up()
                yield []
            routed.checked(command, running.result)
        except (MemoryError, OSError, RecursionError):
            raise
        except Exception as error:
            while hidden.undo_some():
                yield []
            outcome = self._failed(routed, command, error)
            hidden.lift()
            return outcome
        if self._after:
            self._finish()
        if self._overrun:
            self._raise_alarms()
        if self._capture.touched:
            self._capture.collect()
        self._work.slice_rows += len(self._undo)
        self.waste.add(self._undo[:])
        self._undo.clear()
        hidden.lift()
        return running.result

    def _failed(self, routed: Routed, command: object, error: Exception) -> Refused:
        """The outcome of a command that raised, whose writes are undone."""
        self._after.clear()
        if self._overrun:
            self._raise_alarms()
            if self._capture.touched:
                self._capture.collect()
            self._undo.clear()
        return self._refusal(routed.name, command, error)

    def _refusal(self, plugin: str, command: object, error: Exception) -> Refused:
        """The outcome of a command that raised."""
        if isinstance(error, Refused):
            try:
                return self._refusals.kept(error, texts=self.core_format < NO_TEXTS_SINCE)
            except (MemoryError, RecursionError):
                raise
            except Exception as why:
                # Undeclared, or with arguments that cannot be kept: the plugin's fault.
                error.add_note(f"this refusal cannot be kept: {why}")
        self._note_fault(plugin, type(command).__name__, error)
        return PluginFault(plugin, type(error).__name__)

    def _note_fault(self, plugin: str, where: str, error: Exception) -> None:
        self.fault_count += 1
        detail = "".join(traceback.format_exception(error))
        self.faults.append(Fault(self._entry, plugin, where, detail))

    def _without_session(self, envelope: Envelope) -> Any:
        """Only what opens a session may come without one."""
        refusal = unknown_session(envelope.session)
        if envelope.session != 0 or envelope.plugin != CORE:
            return refusal
        try:
            command = self._all[CORE].decode(envelope.command)
        except (msgspec.MsgspecError, ValueError):
            return refusal
        if not isinstance(command, NodeUp | OpenSession):
            return refusal
        return self._run(envelope)

    def _again(self, session: Session, envelope: Envelope) -> Any:
        """The outcome of a number that was judged before, or that cannot be judged."""
        outcome = session.recall(envelope.seq, self._sessions.window)
        if not isinstance(outcome, RestoredResult):
            return fresh(outcome) if isinstance(outcome, Refused) else outcome
        try:
            routed = self._all[envelope.plugin]
            command = routed.decode(envelope.command)
            result = routed.result_decoders[type(command)](outcome.data)
        except (LookupError, msgspec.MsgspecError, ValueError):
            # The number was used for another command before. That is its sender's mistake; the
            # answer is still the first one's, and all nodes go on.
            return msgspec.msgpack.decode(outcome.data)
        session.done[envelope.seq] = result
        return result

    # What commands cost

    @property
    def cost_applied(self) -> int:
        """What the last command cost that was applied, in rows (costs.py)."""
        return of_size(len(self._last.command)) + self._work.rows

    @property
    def rows_charged(self) -> int:
        """Rows that all commands applied by this machine were charged with beyond their size."""
        return self._work.total

    def estimate(self, payload: bytes) -> int:
        """What an encoded `Envelope` may cost, in rows, as the state is now; decides nothing."""
        return estimated(payload, self._active, self._views)

    def foresee(self, plugin: str, command: msgspec.Struct) -> int:
        """What a command may look at beyond its size, in rows; 0 if its kind is never costly."""
        routed = self._active.get(plugin)
        if routed is None or type(command) not in routed.plugin.costly:
            return 0
        return foreseen(routed, command, self._views[plugin])

    # What follows a command of the built-in plugin

    def _raise_alarms(self) -> None:
        """Write down which plugins a command has taken beyond their quotas."""
        alarms = self._all[CORE].tables["alarms"]
        for plugin in self._overrun:
            alarms.put((NOSPACE, plugin), self.now)
        self._overrun.clear()
        self._forget_room()

    def _forget_room(self) -> None:
        """Alarms, settings or rows were changed by other means than a plugin's own commands."""
        for gate in self._gates:
            gate.forget()

    def _finish(self) -> None:
        self._forget_room()
        todo = self._after[:]
        self._after.clear()
        for step in todo:
            step()

    def _refresh_active(self) -> None:
        """Take over the replicated list of active plugins. Raises MissingPlugin."""
        versions = self._versions
        active = {CORE: self._all[CORE]}
        self._all[CORE].ctx.version = 1
        for name, version in self._all[CORE].tables["active"].scan():
            require_plugin(name, version, versions)
            active[name] = self._all[name]
            active[name].ctx.version = version
        for routed in self._all.values():
            routed.open_gate(gated=self.core_format >= QUOTA_FORMAT)
        self._forget_room()
        self._active = active
        #: The classes of commands that may look at more than their size.
        self.costly_kinds = frozenset(kind for r in active.values() for kind in r.plugin.costly)
        self.costly_marks = costly_marks(active.values())

    def _members_changed(self, change: MemberChange) -> None:
        for name in sorted(self._active):
            routed = self._active[name]
            self._hook(routed, "on_members", routed.plugin.on_members, change)

    def _voters_changed(self, old: tuple[str, ...]) -> None:
        for name in sorted(self._active):
            routed = self._active[name]
            self._hook(routed, "on_voters", routed.plugin.on_voters, old)

    def _setting_changed(self, plugin: str, change: SettingChange) -> None:
        routed = self._active.get(plugin)
        if routed is not None:
            self._hook(routed, "on_setting", routed.plugin.on_setting, change)

    def _hook(
        self, routed: Routed, where: str, hook: Callable[[C, Context], None], change: C
    ) -> None:
        """Run a hook. If it raises, only its own writes are undone: the change it heard of stands,
        or a plugin's mistake could keep a dead node alive."""
        ctx = routed.ctx
        ctx.now, ctx.index, ctx.serial, ctx.session = self.now, self._entry, self.serial, 0
        mark = len(self._undo)
        try:
            hook(change, ctx)
        except (MemoryError, OSError, RecursionError):
            raise
        except Exception as error:
            undo_to(self._undo, mark)
            self._note_fault(routed.name, where, error)

    # Reading

    @property
    def plugin_versions(self) -> dict[str, int]:
        """What this node could run: each plugin's name and highest version. For `NodeUp`."""
        return {name: r.plugin.version for name, r in self._all.items() if name != CORE}

    def formats_of(self, member: str) -> dict[str, int]:
        """The plugin formats that a member has announced through the log."""
        rows = self._all[CORE].tables["formats"].scan(prefix=(member,))
        return {plugin: version for (_, plugin), version in rows}

    @property
    def _versions(self) -> dict[str, int]:
        return {CORE: self.core_format_max, **self.plugin_versions}

    @property
    def core_format(self) -> int:
        """The core format of the cluster, at this index (raftkv/formats.py)."""
        return self._all[CORE].ctx.version

    @property
    def formats_active(self) -> dict[str, int]:
        """The core format and the formats of the active plugins, at this index."""
        return {name: routed.ctx.version for name, routed in self._active.items()}

    @property
    def active_versions(self) -> dict[str, int]:
        """What the cluster runs, at this index."""
        return {name: routed.ctx.version for name, routed in self._active.items() if name != CORE}

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    @property
    def outcome_count(self) -> int:
        """Outcomes that are kept so that a command which comes again finds its own."""
        return sum(len(session.done) for session in self._sessions.by_id.values())

    @property
    def outcome_bytes(self) -> int:
        """What the outcomes of clients' sessions count against OUTCOMES_BYTES_MAX."""
        return self._sessions.outcome_bytes

    @property
    def sessions_ended(self) -> tuple[int, int]:
        """Client sessions ended since this machine was made: for others' room, and idle ones."""
        return self._sessions.evicted, self._sessions.expired

    @property
    def clients(self) -> Clients:
        """The client sessions in figures."""
        kept_ms = CLIENT_KEPT_MS if self.core_format >= SESSIONS_KEPT_SINCE else 0
        return self._sessions.clients(kept_ms)

    def row_counts(self) -> dict[tuple[str, str], int]:
        """Rows by (plugin, table)."""
        return {
            (plugin, name): len(table)
            for plugin, routed in self._all.items()
            for name, table in routed.tables.items()
        }

    def client_nonce(self, session: int) -> int | None:
        """The nonce under which an open client session was opened; None for any other number."""
        found = self._sessions.by_id.get(session)
        return None if found is None or found.node else found.nonce

    def session_owner(self, session: int) -> str | None:
        """The node whose session this is, "" for a client's; None for one that is not open."""
        found = self._sessions.by_id.get(session)
        return None if found is None else found.node

    def client_session(self, nonce: int) -> OpenSessionResult | None:
        """What `OpenSession` under this nonce has answered, if it was applied and still is open."""
        id = self._sessions.client_of(nonce)
        return None if id is None else OpenSessionResult(id)

    def view(self, plugin: str) -> StateView:
        """The tables, members and settings that a plugin sees. Raises LookupError."""
        return self._views[plugin]

    def session_of(self, node: str, nonce: int) -> tuple[int, int] | None:
        """(session, incarnation) that a `NodeUp` under this nonce has opened, if it was applied."""
        openings = self._all[CORE].tables["openings"]
        for (_, incarnation), opening in openings.scan(prefix=(node,)):
            if opening.nonce == nonce:
                return opening.session, incarnation
        return None

    def recall(self, session: int, seq: int, command: type[msgspec.Struct] | None) -> Any:
        """What is kept about a number: its outcome, or ABSENT if it has not been applied.

        For resolving waiting callers after a snapshot was installed. `command` is the class of the
        command, for decoding a result from the snapshot; without it that is given as plain data,
        as is the result of another command that came first under this number.
        """
        outcome = self._sessions.recall(session, seq)
        if isinstance(outcome, RestoredResult):
            return self._decode_result(outcome.data, command)
        return fresh(outcome) if isinstance(outcome, Refused) else outcome

    def read_report(self, report: OutcomeReport, command: type[msgspec.Struct] | None) -> Any:
        """The result or refusal inside the answer to `SettleOutcome`; None if it has neither."""
        if report.verdict == "refused":
            return decode_outcome(KIND_REFUSAL, report.data, self._refusals)
        if report.verdict == "applied":
            return self._decode_result(report.data, command)
        return None

    def _decode_result(self, data: bytes, command: type[msgspec.Struct] | None) -> Any:
        for routed in self._all.values():
            if command in routed.result_decoders:
                try:
                    return routed.result_decoders[command](data)
                except (msgspec.MsgspecError, ValueError):
                    break  # the result of another command: see `_again`
        return msgspec.msgpack.decode(data)

    @property
    def usages(self) -> Mapping[str, Usage]:
        """By plugin, in the order of their names: what its user data uses of its quota."""
        return {name: each.usage for name, each in self._all.items() if each.usage is not None}

    @property
    def alarms(self) -> list[tuple[str, str]]:
        """The alarms that stand in the replicated state: (kind, plugin), sorted."""
        return [key for key, _ in self._all[CORE].tables["alarms"].scan()]

    def invariants(self) -> list[str]:
        """What the active plugins find wrong with the state, in words; empty if all is well."""
        found = [
            f"{name}: {usage.bytes} logical bytes are counted, the rows have {usage.recount()}"
            for name, usage in self.usages.items()
            if usage.bytes != usage.recount()
        ]
        for name in sorted(self._active):
            view: View = self._views[name]
            found += [f"{name}: {text}" for text in self._active[name].plugin.invariants(view)]
        return found

    # Changes

    def subscribe(
        self, callback: Listener, plugins: Collection[str] | None = None
    ) -> Callable[[], None]:
        """Hear of changed rows: `callback(index, changes)`, once per slice of an entry with any.

        Changes stand in the order of the commands; a row that one command wrote several times
        appears once. Only tables of `plugins`, or of all. Returns the way to end it. A restore is
        not told: read everything anew after it.
        """
        return self._capture.subscribe(callback, plugins)

    # Snapshots

    def freeze(self) -> Frozen:
        """The state as it is now, to be read in slices while further entries are applied.

        Only between entries: a state in the middle of one belongs to no index.
        """
        assert self.between_entries, (self.index, self._entry)
        # A node that does not know the core format refuses the snapshot at its header. Format 1
        # is left out, as raftkv 0.1.0 does.
        core = () if self.core_format == 1 else ((CORE, self.core_format),)
        plugins = (*core, *self.active_versions.items())
        header = Header(FORMAT, self.index, self.now, self.serial, plugins)
        tables = [
            (name, table_name, routed.tables[table_name].freeze())
            for name, routed in sorted(self._active.items())
            for table_name in sorted(routed.tables)
        ]
        return Frozen(header, tables, self._sessions.freeze(), self._refusals)

    def reader(self) -> Reader:
        """Takes a snapshot's chunks one by one, beside the state; hand its image to `adopt`.

        One that will not be used is to be discarded: `reader.discard(machine.waste)`.
        """
        decoders = {
            (name, table): decode
            for name, routed in self._all.items()
            for table, decode in routed.row_decoders.items()
        }
        runs = {
            (name, spec.name)
            for name, routed in self._all.items()
            for spec in routed.plugin.tables
            if spec.run
        }
        sizes = {
            (name, table): size
            for name, routed in self._all.items()
            if routed.plugin.quota is not None
            for table, size in routed.plugin.quota.sizes.items()
        }
        return Reader(decoders, self._versions, self._refusals, runs, sizes)

    def adopt(self, image: Image, index: int) -> None:
        """Replace the whole state by that of a snapshot taken at `index`.

        Raises Diverged when the image is of another index or older than this state, which then
        stays as it is. A `Frozen` that is being read goes on reading the former state. Short:
        the tables are swapped, the former ones become waste.
        """
        header = image.header
        if header.index != index or index < self.index:
            raise Diverged(
                f"a snapshot of index {header.index} was to be installed as {index} on a state of "
                f"index {self.index}"
            )
        self._give_up_entry()
        for name, routed in self._all.items():
            for table_name, table in routed.tables.items():
                table.replace_all(image.tables.get((name, table_name)))
                if isinstance(table, CountedTable):
                    table.bytes = image.counts.get((name, table_name), 0)
            routed.ctx.version = 0
        self.index = self._entry = header.index
        self.now, self.serial = header.now, header.serial
        self._sessions.replace_all(image.sessions)
        self._refresh_active()

    def reset(self) -> None:
        """Forget everything, as a new machine: what follows is the log from its beginning.

        For a replicant whose state belongs to a history of the cluster that was given up. The
        subscribers are not told: read everything anew after it.
        """
        self._give_up_entry()
        for routed in self._all.values():
            for table in routed.tables.values():
                table.replace_all(None)
            routed.ctx.version = 0
        self.index = self._entry = self.now = self.serial = 0
        self.discards += 1
        self._sessions.replace_all(())
        self._refresh_active()

    def restore(self, chunks: Iterable[bytes], index: int) -> None:
        """Read a snapshot and adopt it, or raise and leave the state as it was.

        Raises DamagedSnapshot, MissingPlugin or Diverged.
        """
        reader = self.reader()
        for chunk in chunks:
            reader.add(chunk)
        self.adopt(reader.finish(), index)

    def digest(self) -> str:
        """A fingerprint of the state: equal on all nodes that have applied the same entries.

        Walks everything at once: for tests. `Frozen.digest` gives the same in slices.
        """
        frozen = self.freeze()
        for _ in frozen.slices():
            pass
        return frozen.digest
