"""A state machine with a small plugin, driven by batches as the log would drive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import (
    Context,
    MemberChange,
    Plugin,
    Setting,
    SettingChange,
    TableSpec,
    View,
)
from raftkv.state import Envelope, NodeUp, StateMachine, encode_batch


class Overdrawn(Refused):
    code = "overdrawn"


class Undeclared(Refused):
    code = "undeclared"


class Balance(msgspec.Struct, frozen=True, array_like=True, tag="balance"):
    account: str
    amount: int


class Missing(msgspec.Struct, frozen=True, array_like=True, tag="missing"):
    account: str


class Deposit(msgspec.Struct, frozen=True, array_like=True, tag="deposit"):
    Result: ClassVar[Any] = Balance
    account: str
    amount: int


class Transfer(msgspec.Struct, frozen=True, array_like=True, tag="transfer"):
    """Takes before it looks whether it may: what it took must be undone."""

    Result: ClassVar[Any] = Balance
    source: str
    target: str
    amount: int


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    Result: ClassVar[Any] = bool
    account: str


class Break(msgspec.Struct, frozen=True, array_like=True, tag="break"):
    """Writes, then fails in the way that `how` names."""

    Result: ClassVar[Any] = int
    how: str


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """Gives what the context shows."""

    Result: ClassVar[Any] = tuple[int, int, int, int, int, str, int, tuple[str, ...]]


class Bank(Plugin[None]):
    name: ClassVar[str] = "bank"
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Deposit, Transfer, Close, Break, Look)
    tables: ClassVar[tuple[TableSpec, ...]] = (
        TableSpec("accounts", str, int),
        TableSpec("nodes", tuple[str, int], int),
    )
    refusals: ClassVar[tuple[type[Refused], ...]] = (Overdrawn,)
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting(
            "overdraft",
            int,
            0,
            lambda value: "it must not be negative" if value < 0 else None,
            "How far below 0 an account may go.",
        ),
        Setting("names", dict[str, int], {}, None, "Anything."),
    )

    def apply(self, command: Any, ctx: Context) -> Any:
        accounts = ctx.table("accounts")
        if isinstance(command, Deposit):
            accounts.put(command.account, accounts.get(command.account, 0) + command.amount)
            return Balance(command.account, accounts[command.account])
        if isinstance(command, Transfer):
            accounts.put(command.target, accounts.get(command.target, 0) + command.amount)
            accounts.put(command.source, accounts.get(command.source, 0) - command.amount)
            if accounts[command.source] < -ctx.settings["overdraft"]:
                raise Overdrawn(command.source, accounts[command.source])
            return Balance(command.source, accounts[command.source])
        if isinstance(command, Close):
            return accounts.delete(command.account)
        if isinstance(command, Look):
            origin = "" if ctx.origin is None else ctx.origin.name
            return (
                ctx.now,
                ctx.index,
                ctx.serial,
                ctx.session,
                ctx.version,
                origin,
                ctx.settings["overdraft"],
                tuple(ctx.members),
            )
        accounts.put("broken", 1)
        return self._break(command.how)

    @staticmethod
    def _break(how: str) -> Any:
        if how == "result":
            return "not an int"
        if how == "undeclared":
            raise Undeclared("no")
        if how == "arguments":
            raise Overdrawn(object())
        errors = {"key": KeyError, "memory": MemoryError, "disk": OSError, "deep": RecursionError}
        raise errors[how](how)

    def on_members(self, change: MemberChange, ctx: Context) -> None:
        assert ctx.session == 0
        assert ctx.origin is None
        if change.ended is not None:
            assert change.old is not None
            ctx.table("nodes").put((change.old.name, change.ended), ctx.index)
        if change.new is not None and change.new.name == "unlucky":
            raise ValueError("a bug")

    def on_setting(self, change: SettingChange, ctx: Context) -> None:
        if change.key == "overdraft":
            ctx.table("accounts").put("overdraft", change.old * 1000 + change.new)

    def invariants(self, view: View) -> Sequence[str]:
        return [f"{name} is 666" for name, cash in view.table("accounts").scan() if cash == 666]


class Order(msgspec.Struct, frozen=True, array_like=True, tag="order"):
    """Transfers, and says how that ended; `fail` refuses after the transfer."""

    Result: ClassVar[Any] = Balance | Missing
    customer: str
    amount: int
    fail: bool = False


class Shop(Plugin[None]):
    """Uses the bank."""

    name: ClassVar[str] = "shop"
    version: ClassVar[int] = 2
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Order,)
    tables: ClassVar[tuple[TableSpec, ...]] = (TableSpec("orders", int, str),)
    uses: ClassVar[tuple[str, ...]] = ("bank",)

    def apply(self, command: Any, ctx: Context) -> Any:
        ctx.table("orders").put(ctx.serial, command.customer)
        try:
            result = ctx.call("bank", Transfer(command.customer, "shop", command.amount))
        except Overdrawn:
            return Missing(command.customer)
        if command.fail:
            raise Refused("out of stock")
        return result


class Driver:
    """Plays the log: numbers commands, keeps every body so that it can be applied elsewhere."""

    def __init__(self, machine: StateMachine | None = None) -> None:
        self.machine = StateMachine([Bank(), Shop()]) if machine is None else machine
        self.bodies: list[bytes | None] = []
        self.now = 1_000_000
        # Of the entries to come.
        self.term = 0
        self.nonce = 0
        self.seq = 0
        self.session = 0

    def start(self, name: str = "n1", **changes: Any) -> Any:
        """A node starts; its session becomes the driver's."""
        self.nonce += 1
        command = node_up(self.nonce, name, self.machine, **changes)
        outcome = self.batch([Envelope(0, self.nonce, 0, "core", encode(command))])[0]
        if not isinstance(outcome, Refused):
            self.session, self.seq = outcome.session, 0
        return outcome

    def envelope(
        self, command: msgspec.Struct, plugin: str = "bank", seq: int | None = None, floor: int = 0
    ) -> Envelope:
        if seq is None:
            self.seq += 1
            seq = self.seq
        return Envelope(self.session, seq, floor, plugin, encode(command))

    def send(self, command: msgspec.Struct, plugin: str = "bank", **changes: Any) -> Any:
        """The outcome of one command in an entry of its own."""
        return self.batch([self.envelope(command, plugin, **changes)])[0]

    def batch(self, envelopes: Sequence[Envelope]) -> list[Any]:
        self.now += 10
        body = encode_batch(self.now, envelopes)
        self.bodies.append(body)
        answers = self.machine.apply(self.machine.index + 1, body, self.term)
        assert [(e.session, e.seq) for e in envelopes] == [(a[0], a[1]) for a in answers]
        return [answer[2] for answer in answers]

    def skip(self) -> None:
        self.bodies.append(None)
        self.machine.skip(self.machine.index + 1)

    def table(self, name: str, plugin: str = "bank") -> dict[Any, Any]:
        return dict(self.machine.view(plugin).table(name).scan())


def node_up(nonce: int, name: str, machine: StateMachine, **changes: Any) -> NodeUp:
    command = NodeUp(
        nonce, name, "core", "r-" + name, "h:1", None, tuple(machine.plugin_versions.items())
    )
    return msgspec.structs.replace(command, **changes)


def encode(command: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(command)


def replay(bodies: Sequence[bytes | None], machine: StateMachine) -> StateMachine:
    """Apply what another driver has applied."""
    for body in bodies:
        if body is None:
            machine.skip(machine.index + 1)
        else:
            machine.apply(machine.index + 1, body)
    return machine


def copy_of(machine: StateMachine, plugins: Sequence[Any] | None = None) -> StateMachine:
    """Another machine, restored from a snapshot of this one."""
    other = StateMachine([Bank(), Shop()] if plugins is None else plugins)
    other.restore(list(machine.freeze().slices(3)), machine.index)
    return other
