"""One log, judged: what is looked at while it is applied, and what is compared afterwards.

While a log is applied, whatever `apply` and the hooks ask of the world is found (purity.py), and so
is what they raise, how much they do, and what the invariants say. Then the same entries are applied
again, by everybody who must come to the same answers and the same state:

    a second machine            with the same plugin object: one that remembers anything outside of
                                its tables gives itself away
    other processes             with other hashes of strings (elsewhere.py), from the beginning and
                                behind a snapshot in mid-log

What is ugly. The limits of work are counted in calls and rows, not in time, so a command whose
calls are each slow (the sort of a huge list) is not found. The entries are never cut otherwise into
batches: `ctx.index` is something that a plugin may see, and answers with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Union

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import ABSENT, Change, Plugin
from raftkv.state import Envelope, StateMachine
from raftkv.state.batch import decode_batch
from raftkv.state.machine import Outcomes

from .elsewhere import Applied, Elsewhere, Made, apply_all, fingerprints
from .purity import CALLS_MAX, Watch

__all__ = ["ROWS_MAX", "Checked", "ContractBroken", "Judge", "Run", "Tally"]

#: Rows that one command may change (A3).
ROWS_MAX: Final = 1_000
# A snapshot is taken at every so many entries; the last one is restored.
SNAPSHOT_EVERY: Final = 16
# Few, so that chunks are cut inside of tables.
_CHUNK_ROWS: Final = 3
_PURE: Final = ("apply", "on_members", "on_setting", "on_voters")
# What stops a node instead of becoming an answer.
_STOPPING: Final = (MemoryError, OSError, RecursionError)
_UNREADABLE: Final = (msgspec.MsgspecError, TypeError, OverflowError, ValueError)


class ContractBroken(AssertionError):
    """A plugin does not keep the contract. `rule` says which part of it, `what` how."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


class Checked(msgspec.Struct, frozen=True):
    """What was judged. `refused`: by the command's name, and by the code of the refusal."""

    logs: int
    entries: int
    applied: Mapping[str, int]
    refused: Mapping[str, Mapping[str, int]]


class Tally:
    """Counts for `Checked`, of commands as they came first."""

    def __init__(self) -> None:
        self.logs = 0
        self.entries = 0
        self.applied: Counter[str] = Counter()
        self.refused: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, command: msgspec.Struct, outcome: Any) -> None:
        name = type(command).__name__
        if isinstance(outcome, Refused):
            self.refused[name][outcome.code] += 1
        else:
            self.applied[name] += 1

    def checked(self) -> Checked:
        refused = {name: dict(codes) for name, codes in self.refused.items()}
        return Checked(self.logs, self.entries, dict(self.applied), refused)


class Judge:
    """Of one plugin: makes runs, each from the beginning of a log.

    Raises ConfigError for a plugin that no node would load, TypeError if there is only one of it.
    """

    def __init__(self, plugin: Made, beside: Sequence[Made], elsewhere: Elsewhere) -> None:
        one = plugin()
        if plugin() is one:  # each run watches its own
            raise TypeError(f"{plugin!r} must make a new plugin each time")
        self.make = plugin
        self.name = one.name
        self.elsewhere = elsewhere
        self._beside = beside
        self.machine(one)

    def machine(self, plugin: Plugin[Any]) -> StateMachine:
        return StateMachine([*(make() for make in self._beside), plugin])

    def run(self, tally: Tally | None = None) -> Run:
        """A run whose commands are counted in `tally`."""
        return Run(self, Tally() if tally is None else tally)


class Run:
    """A machine whose plugin is watched. `apply` the entries, then `end`: see the module's text."""

    def __init__(self, judge: Judge, tally: Tally) -> None:
        self._judge = judge
        self._tally = tally
        self._watch = Watch()
        self._plugin = judge.make()
        for method in _PURE:
            watched = self._watch.watched(getattr(self._plugin, method))
            object.__setattr__(self._plugin, method, watched)
        self._attributes = dict(vars(self._plugin))
        self.machine = judge.machine(self._plugin)
        self.machine.subscribe(self._changed, [judge.name, *self._plugin.uses])
        self._changes = 0
        commands = self._plugin.commands
        union: Any = Union[commands] if commands else None  # noqa: UP007
        self._decode = msgspec.msgpack.Decoder(union).decode
        self._bodies: list[bytes | None] = []
        self._outcomes: list[Outcomes] = []
        # Of the plugin, as they came first.
        self._sent: dict[tuple[int, int], msgspec.Struct] = {}
        # For whoever comes later: index and state in mid-log.
        self._snapshot: tuple[int, list[bytes]] | None = None

    # --- while it is applied

    def apply(self, body: bytes | None) -> Outcomes:
        """The next entry; None: one without commands. Raises ContractBroken."""
        envelopes = [] if body is None else decode_batch(body).commands
        commands = [self._command(envelope) for envelope in envelopes]
        alone = len(commands) == 1 and commands[0] is not None
        before = self._contents() if alone else {}
        outcomes = self._applied(body)
        self._bodies.append(body)
        self._outcomes.append(outcomes)
        self._check_watch()
        self._check_work(len(envelopes))
        for envelope, command, (_, _, outcome) in zip(envelopes, commands, outcomes, strict=True):
            number = (envelope.session, envelope.seq)
            if command is not None and number not in self._sent:
                self._sent[number] = command
                self._tally.add(command, outcome)
                if not isinstance(outcome, Refused):
                    self._check_result(command, outcome)
        if alone and isinstance(outcomes[0][2], Refused):
            changed = _difference(before, self._contents())
            if changed:
                raise ContractBroken("A3, undo", f"a refused command has changed {changed}")
        self._check_invariants()
        if len(self._bodies) % SNAPSHOT_EVERY == 0:
            self._snapshot = (self.machine.index, self._frozen())
        return outcomes

    def _check_invariants(self) -> None:
        try:
            wrong = self.machine.invariants()
        except Exception as error:
            raise ContractBroken("A2, invariants", f"they raise {error!r}") from error
        if wrong:
            raise ContractBroken("A2, invariants", "; ".join(wrong))

    def _frozen(self) -> list[bytes]:
        try:
            return list(self.machine.freeze().slices(_CHUNK_ROWS))
        except _UNREADABLE as error:
            raise ContractBroken("A2, rows", f"a row cannot be written: {error}") from None

    def _applied(self, body: bytes | None) -> Outcomes:
        index = self.machine.index + 1
        if body is None:
            self.machine.skip(index)
            return []
        try:
            return self.machine.apply(index, body)
        except _STOPPING as error:
            raise ContractBroken("A3, undo", f"this stops a node: {error!r}") from error

    def _command(self, envelope: Envelope) -> msgspec.Struct | None:
        """The command, if it is one of the plugin under test. What is none is refused anyway."""
        if envelope.plugin != self._judge.name:
            return None
        try:
            command: msgspec.Struct = self._decode(envelope.command)
        except _UNREADABLE:
            return None
        again = self._decode(msgspec.msgpack.encode(command))
        if _bytes(again) != _bytes(command):
            raise ContractBroken("A2, commands", f"{command} is read again as {again}")
        return command

    def _check_watch(self) -> None:
        watch = self._watch
        if watch.found:
            raise ContractBroken("A3, purity", f"the pure half asks the world: {watch.found[0]}")
        if self.machine.faults:
            fault = self.machine.faults[0]
            raise ContractBroken("A3, undo", f"{fault.where} has raised\n{fault.detail.rstrip()}")
        changed = [
            name
            for name, value in vars(self._plugin).items()
            if self._attributes.get(name, ABSENT) is not value
        ]
        if changed:
            raise ContractBroken("A1", f"the plugin object has got state: {', '.join(changed)}")

    def _check_work(self, commands: int) -> None:
        changes, self._changes = self._changes, 0
        if changes > ROWS_MAX * max(1, commands):
            raise ContractBroken(
                "A3, bounded work", f"{changes} rows changed at one go; {ROWS_MAX} are allowed"
            )
        calls = self._watch.calls
        if calls > CALLS_MAX:
            raise ContractBroken(
                "A3, bounded work", f"{calls} calls at one go; {CALLS_MAX} are allowed"
            )
        self._watch.clear()

    def _changed(self, index: int, changes: Sequence[Change]) -> None:
        self._changes += len(changes)

    @staticmethod
    def _check_result(command: msgspec.Struct, result: Any) -> None:
        declared = type(command).Result  # type: ignore[attr-defined]
        try:
            again = msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=declared)
        except _UNREADABLE as error:
            raise ContractBroken(
                "A2, results", f"{result!r} cannot be read again: {error}"
            ) from None
        if type(again) is not type(result) or _bytes(again) != _bytes(result):
            raise ContractBroken("A2, results", f"{result!r} is read again as {again!r}")

    def _contents(self) -> dict[tuple[str, str], dict[Any, bytes]]:
        """All rows, encoded: one that was changed in its place is the same object as before."""
        try:
            return {
                (name, table): {
                    key: _bytes(row) for key, row in self.machine.view(name).table(table).scan()
                }
                for name, table in self.machine.row_counts()
                if name != "core"
            }
        except _UNREADABLE as error:
            raise ContractBroken("A2, rows", f"a row cannot be written: {error}") from None

    # --- afterwards

    def end(self) -> None:
        """Let all others apply it. Raises ContractBroken."""
        judge, bodies = self._judge, self._bodies
        chunks = self._frozen()
        mine = Applied([fingerprints(each) for each in self._outcomes], self.machine.digest())
        same_object = apply_all(judge.machine(self._plugin), bodies)
        self._compare("A1", "a second machine with the same plugin object", mine, same_object)
        last = self._restored(chunks, self.machine.index)
        if last.digest() != mine.digest:
            raise ContractBroken("A2, rows", "the state differs after a snapshot")
        self._recalls(last)
        for other in judge.elsewhere.apply(bodies):
            self._compare("A3, purity", "a process with other hashes", mine, other)
        if self._snapshot is not None:
            index, chunks = self._snapshot
            rest = Applied(mine.outcomes[index:], mine.digest)
            what = f"a process that was restored from a snapshot at entry {index}"
            for other in judge.elsewhere.apply(bodies[index:], index, chunks):
                self._compare("A3, purity", what, rest, other, index)
        self._tally.logs += 1
        self._tally.entries += len(bodies)

    def _restored(self, chunks: Sequence[bytes], index: int) -> StateMachine:
        machine = self._judge.machine(self._judge.make())
        try:
            machine.restore(chunks, index)
        except Exception as error:
            raise ContractBroken(
                "A2, rows", f"the state cannot be read from its snapshot: {error}"
            ) from None
        return machine

    def _recalls(self, restored: StateMachine) -> None:
        """After a restart a repeated command gets its first answer, field by field."""
        for (session, seq), command in self._sent.items():
            kept, again = (
                machine.recall(session, seq, type(command)) for machine in (self.machine, restored)
            )
            if type(kept) is not type(again) or _bytes(_parts(kept)) != _bytes(_parts(again)):
                raise ContractBroken(
                    "A2, results", f"{command} was answered {kept!r}, after a restart {again!r}"
                )

    def _compare(self, rule: str, who: str, mine: Applied, other: Applied, before: int = 0) -> None:
        """`before`: entries that neither has applied."""
        pairs = zip(mine.outcomes, other.outcomes, strict=False)
        for number, (one, another) in enumerate(pairs, before):
            for place, (expected, found) in enumerate(zip(one, another, strict=True)):
                if expected != found:
                    raise ContractBroken(
                        rule,
                        f"{who} answers {self._told(number, place)} with {_shown(found)}, not "
                        f"with {_shown(expected)}",
                    )
        if other.error:
            raise ContractBroken(rule, f"{who} ends with {other.error}")
        if mine.digest != other.digest:
            raise ContractBroken(rule, f"{who} comes to another state")

    def _told(self, number: int, place: int) -> str:
        """A command of the log."""
        body = self._bodies[number]
        assert body is not None
        envelope = decode_batch(body).commands[place]
        return str(self._sent.get((envelope.session, envelope.seq), envelope.plugin))


def _bytes(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def _parts(outcome: Any) -> Any:
    return outcome.args if isinstance(outcome, Refused) else outcome


def _shown(fingerprint: bytes) -> str:
    return repr(msgspec.msgpack.decode(fingerprint))


def _difference(
    before: Mapping[tuple[str, str], Mapping[Any, bytes]],
    after: Mapping[tuple[str, str], Mapping[Any, bytes]],
) -> str:
    """The first row that differs, in words; "" if none does."""
    for plugin, table in before:
        for key in _changed_keys(before[plugin, table], after[plugin, table]):
            return f"row {key!r} of table {table!r} of {plugin!r}"
    return ""


def _changed_keys(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Iterator[Any]:
    for key in [*before, *after]:
        if before.get(key, ABSENT) != after.get(key, ABSENT):
            yield key
