"""What commands cost: counted while they are applied, estimated before."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from raftkv.errors import ConfigError, Refused
from raftkv.plugin import Context, Plugin, TableSpec, View
from raftkv.state import Envelope, NodeUp, StateMachine, encode_batch
from raftkv.state.costs import ROW_BYTES


class No(Refused):
    code = "no"


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    Result: ClassVar[Any] = int
    text: bytes


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    Result: ClassVar[Any] = None
    rows: int
    refuse: bool = False


class Counting(Plugin[None]):
    name = "counting"
    commands = (Note, Look)
    tables = (TableSpec("notes", int, bytes),)
    refusals = (No,)
    costly = (Look,)

    def apply(self, command: Any, ctx: Context) -> Any:
        if isinstance(command, Note):
            number = len(ctx.table("notes"))
            ctx.table("notes").put(number, command.text)
            return number
        ctx.charge(command.rows)
        if command.refuse:
            raise No("no")
        return None

    def cost(self, command: Any, view: View) -> int:
        if command.rows < 0:
            raise LookupError("a mistake of the plugin")
        return min(command.rows, len(view.table("notes")))


class User(Plugin[None]):
    name = "user"
    commands = (Note,)
    uses = ("counting",)

    def apply(self, command: Any, ctx: Context) -> Any:
        ctx.charge(5)
        ctx.call("counting", Look(7))
        return 0


class Log:
    def __init__(self) -> None:
        self.machine = StateMachine([Counting(), User()])
        announced = (("counting", 1), ("user", 1))
        up = NodeUp(1, "n", "core", "r", "h:1", None, announced)
        self.session = self._apply(Envelope(0, 1, 1, "core", msgspec.msgpack.encode(up))).session
        self.seq = 0

    def _apply(self, envelope: Envelope) -> Any:
        body = encode_batch(1, [envelope])
        return self.machine.apply(self.machine.index + 1, body)[0][2]

    def envelope(self, command: msgspec.Struct, plugin: str = "counting") -> Envelope:
        self.seq += 1
        data = msgspec.msgpack.encode(command)
        return Envelope(self.session, self.seq, self.seq, plugin, data)

    def apply(self, command: msgspec.Struct, plugin: str = "counting") -> Any:
        return self._apply(self.envelope(command, plugin))

    def estimate(self, command: msgspec.Struct, plugin: str = "counting") -> int:
        return self.machine.estimate(msgspec.msgpack.encode(self.envelope(command, plugin)))


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_command_costs_its_size_and_what_it_is_charged_with(log: Log) -> None:
    log.apply(Note(b"x"))
    assert log.machine.cost_applied == 1
    log.apply(Note(b"x" * 3 * ROW_BYTES))
    assert log.machine.cost_applied == 4
    log.apply(Look(20))
    assert log.machine.cost_applied == 21
    # What is refused was done all the same.
    assert isinstance(log.apply(Look(20, refuse=True)), No)
    assert log.machine.cost_applied == 21
    log.apply(Note(b"x"))
    assert log.machine.cost_applied == 1


def test_what_a_called_plugin_does_is_the_callers_cost(log: Log) -> None:
    log.apply(Note(b""), "user")
    assert log.machine.cost_applied == 1 + 5 + 7


def test_an_estimate_follows_the_state(log: Log) -> None:
    assert log.estimate(Note(b"x")) == 1
    assert log.estimate(Note(b"x" * 3 * ROW_BYTES)) == 4
    assert log.estimate(Look(20)) == 1
    log.apply(Note(b"a"))
    log.apply(Note(b"b"))
    assert log.estimate(Look(20)) == 3
    # Another way to write the same array.
    data = msgspec.msgpack.encode(Look(20))
    assert data[0] == 0x93
    longer = Envelope(1, 1, 1, "counting", b"\xdc\x00\x03" + data[1:])
    assert log.machine.estimate(msgspec.msgpack.encode(longer)) == 3


def test_what_cannot_be_estimated_costs_its_size(log: Log) -> None:
    bad = [b"", b"\xc1", b"\x93\xa4look", b"\x93\xa4look\xa1x\xc2"]
    for data in bad:
        for plugin in ("counting", "elsewhere"):
            envelope = Envelope(1, 1, 1, plugin, data)
            assert log.machine.estimate(msgspec.msgpack.encode(envelope)) == 1
    assert log.machine.estimate(b"nonsense" * ROW_BYTES) == 9
    assert log.estimate(Look(-1)) == 1  # the plugin fails


def test_only_commands_are_costly() -> None:
    class Wrong(Counting):
        costly = (Look, NodeUp)

    with pytest.raises(ConfigError, match="NodeUp stands in costly"):
        StateMachine([Wrong()])


class LongName(Counting):
    name = "n" * 300


@pytest.mark.parametrize("plugin", [Counting, LongName])
def test_a_costly_command_has_its_mark_within_reach(plugin: type[Counting]) -> None:
    machine = StateMachine([plugin()])
    up = NodeUp(1, "n", "core", "r", "h:1", None, ((plugin.name, 1),))
    machine.apply(1, encode_batch(1, [Envelope(0, 1, 0, "core", msgspec.msgpack.encode(up))]))
    marks, reach = machine.costly_marks
    largest = 2**64 - 1
    for size in (2, 300, 70_000):  # the length before the command takes 1, 2 or 4 bytes
        command = msgspec.msgpack.encode(Look(largest)) + bytes(size)
        envelope = Envelope(largest, largest, largest, plugin.name, command)
        head = msgspec.msgpack.encode(envelope)[:reach]
        assert any(mark in head for mark in marks)
    assert reach < 60 + len(plugin.name), "every byte is searched, for each command"
