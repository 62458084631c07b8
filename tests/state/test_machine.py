"""The machine: atomicity, faults, hooks, activation, the log's clock, change capture."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import (
    ConfigError,
    Diverged,
    InvalidSetting,
    MissingPlugin,
    PluginFault,
    Refused,
    StaleIncarnation,
    UnknownCommand,
    UnknownPlugin,
)
from raftkv.plugin import Change, Plugin, Setting, TableSpec
from raftkv.state import (
    ABSENT,
    Envelope,
    NodeDown,
    NodeRole,
    NodeUp,
    SetSetting,
    StateMachine,
    check_envelope,
    encode_batch,
)
from tests.state.harness import (
    Balance,
    Bank,
    Break,
    Close,
    Deposit,
    Driver,
    Look,
    Missing,
    Order,
    Overdrawn,
    Shop,
    Transfer,
    encode,
    node_up,
    replay,
)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.start()
    return driver


def test_a_refused_command_leaves_nothing_behind(driver: Driver) -> None:
    driver.send(Deposit("a", 5))
    outcome = driver.send(Transfer("a", "b", 6))
    assert isinstance(outcome, Overdrawn)
    assert driver.table("accounts") == {"a": 5}


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("key", "KeyError"),
        ("result", "TypeError"),
        ("undeclared", "Undeclared"),
        ("arguments", "Overdrawn"),
    ],
)
def test_an_unexpected_exception_becomes_an_undone_refusal(
    driver: Driver, how: str, kind: str
) -> None:
    outcome = driver.send(Break(how))
    assert isinstance(outcome, PluginFault)
    assert outcome.args == ("bank", kind)
    assert driver.table("accounts") == {}
    assert driver.machine.fault_count == 1
    assert driver.machine.faults[0].where == "Break"
    assert kind in driver.machine.faults[0].detail
    assert driver.send(Deposit("a", 1)) == Balance("a", 1)


@pytest.mark.parametrize(
    ("how", "kind"), [("memory", MemoryError), ("disk", OSError), ("deep", RecursionError)]
)
def test_what_depends_on_the_node_stops_it(
    driver: Driver, how: str, kind: type[BaseException]
) -> None:
    with pytest.raises(kind):
        driver.send(Break(how))


def test_commands_that_nobody_understands(driver: Driver) -> None:
    assert isinstance(driver.send(Deposit("a", 1), plugin="nobody"), UnknownPlugin)
    unknown = [b"", b"\xc1", b"\x93\xa7unknown\xa1a\x01", encode(Deposit("a", 1)) + b"\x00"]
    wrong = msgspec.msgpack.encode(["deposit", 1, "a"])
    invalid_text = b"\x93\xa7deposit\xa1\xff\x01"
    for seq, command in enumerate([*unknown, wrong, invalid_text], start=50):
        envelope = Envelope(driver.session, seq, 0, "bank", command)
        assert isinstance(driver.batch([envelope])[0], UnknownCommand), command


def test_deep_nesting_cannot_reach_a_recursive_decoder(driver: Driver) -> None:
    deep = b"\x91" * 100_000 + b"\x90"
    envelope = Envelope(driver.session, 9, 0, "bank", deep)
    assert isinstance(driver.batch([envelope])[0], UnknownCommand)


def test_what_is_no_batch_stops_the_node(driver: Driver) -> None:
    with pytest.raises(Diverged, match="entry 2 .* no batch"):
        driver.machine.apply(2, b"\x91\x01")


def test_envelopes_are_checked_before_they_are_joined(driver: Driver) -> None:
    good = encode(driver.envelope(Deposit("a", 1)))
    assert check_envelope(good)
    bad = [b"", b"\xc1", good[:-1], good + b"\0", b"\x91" * 5000 + b"\x90", encode(Deposit("a", 1))]
    assert not any(map(check_envelope, bad))


def test_entries_are_applied_in_order_only(driver: Driver) -> None:
    driver.skip()
    for index in (1, 2, 4):
        with pytest.raises(Diverged):
            driver.machine.apply(index, encode_batch(1, []))
        with pytest.raises(Diverged):
            driver.machine.skip(index)
    assert driver.machine.index == 2


def test_the_context(driver: Driver) -> None:
    driver.start("n2")
    look = driver.send(Look())
    machine = driver.machine
    assert look == (driver.now, 3, machine.serial, driver.session, 1, "n2", 0, ("n1", "n2"))
    first, second = driver.batch([driver.envelope(Look()), driver.envelope(Look())])
    assert (first[1], second[1]) == (4, 4)
    assert second[2] == first[2] + 1


def test_the_logs_clock_never_goes_back(driver: Driver) -> None:
    driver.now = 5000_000
    assert driver.send(Look())[0] == 5000_010
    driver.now = 7
    assert driver.send(Look())[0] == 5000_010
    assert driver.machine.now == 5000_010


# ctx.call


def test_a_call_shares_the_undo_scope(driver: Driver) -> None:
    driver.send(Deposit("ann", 5))
    assert driver.send(Order("ann", 3), plugin="shop") == Balance("ann", 2)
    assert driver.table("accounts") == {"ann": 2, "shop": 3}
    refused = driver.send(Order("ann", 1, fail=True), plugin="shop")
    assert type(refused) is Refused
    assert refused.args == ("out of stock",)
    assert driver.table("accounts") == {"ann": 2, "shop": 3}
    assert list(driver.table("orders", "shop").values()) == ["ann"]


def test_a_caught_refusal_undoes_the_callee_only(driver: Driver) -> None:
    assert driver.send(Order("bob", 3), plugin="shop") == Missing("bob")
    assert driver.table("accounts") == {}
    assert list(driver.table("orders", "shop").values()) == ["bob"]


class Caller(Plugin[None]):
    """Calls what it must not."""

    class Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
        Result: ClassVar[Any] = Balance
        plugin: str
        alien: bool

    name: ClassVar[str] = "caller"
    commands: ClassVar[tuple[type[msgspec.Struct], ...]] = (Call,)
    uses: ClassVar[tuple[str, ...]] = ("bank",)

    def apply(self, command: Any, ctx: Any) -> Any:
        return ctx.call(command.plugin, Order("a", 1) if command.alien else Deposit("a", 1))


def test_calls_to_strangers_and_with_strange_commands_fail() -> None:
    driver = Driver(StateMachine([Caller(), Bank()]))
    driver.start()
    assert driver.send(Caller.Call("bank", False), plugin="caller") == Balance("a", 1)
    alien = driver.send(Caller.Call("bank", True), plugin="caller")
    assert isinstance(alien, UnknownCommand)
    stranger = driver.send(Caller.Call("shop", False), plugin="caller")
    assert isinstance(stranger, PluginFault)
    assert stranger.args == ("caller", "LookupError")


def test_a_call_needs_an_active_callee() -> None:
    driver = Driver(StateMachine([Caller(), Bank()]))
    driver.start(plugins=(("caller", 1),))
    outcome = driver.send(Caller.Call("bank", False), plugin="caller")
    assert isinstance(outcome, UnknownPlugin)


# members, hooks, settings


def test_members_and_their_incarnations(driver: Driver) -> None:
    driver.start("n2", role="replicant", http_address="h:2")
    member = driver.machine.members["n2"]
    assert (member.role, member.incarnation, member.up) == ("replicant", 1, True)
    assert (member.http_address, member.started_ms) == ("h:2", driver.now)
    driver.send(NodeDown("n1", 1), plugin="core")
    member = driver.machine.members["n1"]
    assert (member.incarnation, member.up) == (2, False)
    assert driver.start("n1").incarnation == 3
    assert list(driver.machine.members) == ["n1", "n2"]
    assert len(driver.machine.members) == 2
    assert "n3" not in driver.machine.members
    assert driver.machine.members.get("n3") is None


def test_a_promoted_node_changes_its_role_and_nothing_else(driver: Driver) -> None:
    before = driver.start("n2", role="replicant")
    assert driver.send(NodeRole("n2", 1, "core"), plugin="core") is None
    member = driver.machine.members["n2"]
    assert (member.role, member.incarnation, member.up) == ("core", 1, True)
    assert driver.table("nodes") == {}, "no incarnation has ended"
    assert driver.machine.session_count == 2
    assert before.session
    for stale in (NodeRole("n2", 2, "replicant"), NodeRole("n9", 1, "core")):
        assert isinstance(driver.send(stale, plugin="core"), StaleIncarnation)
    assert driver.machine.members["n2"] == member


def test_a_machine_that_was_reset_is_as_new(driver: Driver) -> None:
    fresh = StateMachine([]).digest()
    machine = StateMachine([])
    assert machine.digest() == fresh
    machine.apply(1, encode_batch(5, [Envelope(0, 1, 0, "core", _node_up("n1"))]))
    assert machine.digest() != fresh
    machine.reset()
    assert (machine.digest(), machine.index, machine.now, machine.session_count) == (fresh, 0, 0, 0)
    machine.apply(1, encode_batch(5, [Envelope(0, 1, 0, "core", _node_up("n1"))]))
    assert machine.members["n1"].incarnation == 1


def _node_up(name: str) -> bytes:
    return msgspec.msgpack.encode(NodeUp(1, name, "core", f"{name}-1", "h:1", None))


def test_hooks_hear_which_incarnation_ended(driver: Driver) -> None:
    driver.start("n1")
    assert driver.table("nodes") == {("n1", 1): 2}
    driver.start("n2")
    driver.send(NodeDown("n1", 2), plugin="core")
    assert driver.table("nodes") == {("n1", 1): 2, ("n1", 2): 4}
    driver.start("n1")
    assert driver.table("nodes") == {("n1", 1): 2, ("n1", 2): 4}


def test_a_failing_hook_is_undone_alone(driver: Driver) -> None:
    driver.start("unlucky")
    outcome = driver.start("unlucky")
    assert outcome.incarnation == 2
    assert driver.machine.members["unlucky"].incarnation == 2
    assert driver.table("nodes") == {}
    assert driver.machine.fault_count == 2
    assert driver.machine.faults[0].where == "on_members"
    assert driver.send(Deposit("a", 1)) == Balance("a", 1)


@pytest.mark.parametrize("changes", [{"name": ""}, {"name": "n" * 256}, {"raft_id": "r" * 256}])
def test_a_node_with_a_silly_name_is_refused(changes: dict[str, str]) -> None:
    driver = Driver()
    assert type(driver.start(**changes)) is Refused
    assert driver.machine.session_count == 0
    assert len(driver.machine.members) == 0


def test_settings(driver: Driver) -> None:
    assert driver.send(SetSetting.of("bank", "overdraft", 5), plugin="core") is None
    assert driver.machine.view("bank").settings["overdraft"] == 5
    assert driver.table("accounts") == {"overdraft": 5}
    assert driver.send(Transfer("a", "b", 5)) == Balance("a", -5)
    assert driver.send(Look())[6] == 5
    assert driver.send(SetSetting("bank", "overdraft", None), plugin="core") is None
    assert driver.machine.view("bank").settings["overdraft"] == 0
    assert dict(driver.machine.view("bank").settings) == {"names": {}, "overdraft": 0}
    assert driver.table("accounts")["overdraft"] == 5000


@pytest.mark.parametrize(
    ("plugin", "key", "value"),
    [
        ("bank", "overdraft", -1),
        ("bank", "overdraft", "much"),
        ("bank", "nothing", 1),
        ("nobody", "overdraft", 1),
    ],
)
def test_bad_settings_are_refused(driver: Driver, plugin: str, key: str, value: Any) -> None:
    outcome = driver.send(SetSetting.of(plugin, key, value), plugin="core")
    assert isinstance(outcome, InvalidSetting)
    assert key in outcome.args[0]
    assert driver.table("settings", "core") == {}


def test_equal_settings_have_equal_bytes(driver: Driver) -> None:
    driver.send(SetSetting.of("bank", "names", {"b": 1, "a": 2}), plugin="core")
    before = driver.table("settings", "core")
    driver.send(SetSetting.of("bank", "names", {"a": 2, "b": 1}), plugin="core")
    assert driver.table("settings", "core") == before


# active plugins


def test_a_plugin_is_active_once_every_core_has_it() -> None:
    driver = Driver()
    driver.start("n1", plugins=(("bank", 1),))
    assert driver.machine.active_versions == {"bank": 1}
    assert isinstance(driver.send(Order("a", 1), plugin="shop"), UnknownPlugin)
    driver.start("n2", plugins=(("bank", 1), ("shop", 2)))
    assert driver.machine.active_versions == {"bank": 1}
    driver.start("r1", role="replicant", plugins=(("bank", 1), ("shop", 1)))
    driver.start("n1", plugins=(("bank", 1), ("shop", 2)))
    assert driver.machine.active_versions == {"bank": 1, "shop": 1}
    driver.start("r1", role="replicant", plugins=(("bank", 1), ("shop", 2)))
    assert driver.machine.active_versions == {"bank": 1, "shop": 2}
    driver.start("n2", plugins=(("bank", 1), ("shop", 1)))
    assert driver.machine.active_versions == {"bank": 1, "shop": 2}


def test_a_node_without_an_active_plugin_stops() -> None:
    driver = Driver()
    driver.start()
    with pytest.raises(MissingPlugin, match="'shop'"):
        replay(driver.bodies, StateMachine([Bank()]))


def test_a_node_with_an_older_plugin_stops() -> None:
    class OldShop(Shop):
        version: ClassVar[int] = 1

    driver = Driver()
    driver.start()
    with pytest.raises(MissingPlugin, match="version 2 of the plugin 'shop'"):
        replay(driver.bodies, StateMachine([Bank(), OldShop()]))


def test_a_plugin_that_the_cluster_does_not_run_changes_nothing() -> None:
    driver = Driver(StateMachine([Bank()]))
    driver.start()
    driver.send(Order("a", 1), plugin="shop")
    other = replay(driver.bodies, StateMachine([Shop(), Bank()]))
    assert other.digest() == driver.machine.digest()


# changes


def changes_of(driver: Driver, plugins: Any = None) -> list[tuple[int, list[Change]]]:
    heard: list[tuple[int, list[Change]]] = []
    driver.machine.subscribe(lambda index, changes: heard.append((index, list(changes))), plugins)
    return heard


def test_changes_are_told_once_per_entry_and_row_and_command(driver: Driver) -> None:
    heard = changes_of(driver, {"bank"})
    driver.batch([driver.envelope(Deposit("a", 5)), driver.envelope(Transfer("a", "b", 2))])
    driver.batch([driver.envelope(Transfer("a", "b", 100))])
    driver.send(Close("a"))
    assert heard == [
        (
            2,
            [
                Change("bank", "accounts", "a", ABSENT, 5),
                Change("bank", "accounts", "b", ABSENT, 2),
                Change("bank", "accounts", "a", 5, 3),
            ],
        ),
        (4, [Change("bank", "accounts", "a", 3, ABSENT)]),
    ]


def test_listeners_hear_the_plugins_they_asked_for(driver: Driver) -> None:
    bank, core, everything = changes_of(driver, {"bank"}), changes_of(driver, {"core"}), []
    stop = driver.machine.subscribe(lambda index, changes: everything.append(len(changes)))
    driver.send(Deposit("a", 1))
    driver.start("n2")
    assert [index for index, _ in bank] == [2]
    assert [index for index, _ in core] == [3]
    assert {change.table for change in core[0][1]} == {"members", "openings", "formats"}
    stop()
    stop()
    driver.send(Deposit("a", 1))
    assert len(everything) == 2


def test_what_hooks_write_is_told_too(driver: Driver) -> None:
    heard = changes_of(driver, {"bank"})
    driver.start("n1")
    assert heard == [(2, [Change("bank", "nodes", ("n1", 1), ABSENT, 2)])]


def test_a_row_that_ends_as_it_was_is_no_change(driver: Driver) -> None:
    driver.send(Deposit("shop", 0))
    driver.send(Deposit("ann", 0))
    heard = changes_of(driver, {"bank"})
    driver.send(Order("ann", 0), plugin="shop")
    assert heard == []


# declarations


def bad(**attributes: Any) -> type[Plugin[None]]:
    return type("Bad", (Plugin,), {"name": "bad", **attributes})


class Mutable(msgspec.Struct, array_like=True):
    rows: list[int]


class Untagged(msgspec.Struct, frozen=True, array_like=True):
    Result: ClassVar[Any] = int


class NoResult(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    pass


class Recursive(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    Result: ClassVar[Any] = int
    below: tuple[Recursive, ...] = ()


class Anything(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    Result: ClassVar[Any] = int
    value: Any = None


class MutableResult(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    Result: ClassVar[Any] = list[int]


class SameCode(Refused):
    code = "overdrawn"


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        (bad(name="Bad Name"), "must match"),
        (bad(version=0), "version"),
        (bad(tables=(TableSpec("T", int, int),)), "must match"),
        (bad(tables=(TableSpec("t", int, int), TableSpec("t", int, int))), "same name"),
        (bad(tables=(TableSpec("t", int, list[int]),)), "list"),
        (bad(tables=(TableSpec("t", int, Mutable),)), "frozen=True"),
        (bad(tables=(TableSpec("t", int, Any),)), "any"),
        (bad(tables=(TableSpec("t", int, frozenset[int]),)), "frozenset"),
        (bad(tables=(TableSpec("t", int, tuple[dict[str, int], ...]),)), "dict"),
        (bad(commands=(Untagged,)), "tag="),
        (bad(commands=(NoResult,)), "lacks Result"),
        (bad(commands=(Recursive,)), "contains itself"),
        (bad(commands=(Anything,)), "any"),
        (bad(commands=(MutableResult,)), "list"),
        (bad(settings=(Setting("s", float, 1.0),)), "int, bool, str"),
        (bad(settings=(Setting("s", int, 1), Setting("s", int, 1))), "same key"),
        (bad(settings=(Setting("s", int, 1, lambda value: "no"),)), "its own check"),
        (bad(refusals=(Overdrawn, SameCode)), "share the code"),
        (bad(refusals=(ValueError,)), "no subclass of Refused"),
        (bad(uses=("nobody",)), "which this node lacks"),
        (bad(uses=("bad",)), "circle"),
        (bad(uses=("core",)), "core"),
        (bad(name="core"), "core"),
    ],
)
def test_wrong_declarations_are_found_when_the_machine_is_made(
    plugin: type[Plugin[None]], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        StateMachine([plugin()])


def test_two_plugins_of_one_name() -> None:
    with pytest.raises(ConfigError, match="same name"):
        StateMachine([Bank(), Bank()])


def test_plugins_that_use_each_other() -> None:
    one, two = bad(name="one", uses=("two",)), bad(name="two", uses=("one",))
    with pytest.raises(ConfigError, match="one -> two -> one"):
        StateMachine([one(), two()])


# determinism

NAMES = st.sampled_from(["a", "b", "c", "shop"])
COMMANDS = st.one_of(
    st.builds(Deposit, NAMES, st.integers(-5, 50)),
    st.builds(Transfer, NAMES, NAMES, st.integers(0, 30)),
    st.builds(Close, NAMES),
    st.builds(Break, st.sampled_from(["key", "result", "undeclared"])),
    st.builds(Order, NAMES, st.integers(0, 9), st.booleans()),
    st.builds(SetSetting.of, st.just("bank"), st.just("overdraft"), st.integers(-1, 20)),
)
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(COMMANDS, st.integers(0, 8)), max_size=5),
        st.sampled_from(["skip", "n1", "n2", "unlucky"]),
    ),
    max_size=20,
)


def plugin_of(command: msgspec.Struct) -> str:
    if isinstance(command, SetSetting):
        return "core"
    return "shop" if isinstance(command, Order) else "bank"


def play(driver: Driver, steps: list[Any]) -> None:
    for step in steps:
        if step == "skip":
            driver.skip()
        elif isinstance(step, str):
            driver.start(step)
        else:
            driver.batch(
                [driver.envelope(command, plugin_of(command), seq=seq) for command, seq in step]
            )


@given(STEPS)
@settings(max_examples=100)
def test_the_same_log_gives_the_same_state_and_an_entry_refused_gives_none(steps: Any) -> None:
    driver = Driver()
    driver.start()
    play(driver, steps)
    heard: list[Any] = []
    other = StateMachine([Shop(), Bank()])
    other.subscribe(lambda index, changes: heard.extend(changes))
    replay(driver.bodies, other)
    assert other.digest() == driver.machine.digest()
    # What was told to listeners is just what there is.
    rows: dict[Any, Any] = {}
    for change in heard:
        key = (change.plugin, change.table, change.key)
        assert rows.get(key, ABSENT) == change.old
        rows[key] = change.new
    present = {key: value for key, value in rows.items() if value is not ABSENT}
    assert present == {
        (plugin, name, key): value
        for plugin in ("core", "bank", "shop")
        for name in other._all[plugin].tables
        for key, value in other.view(plugin).table(name).scan()
    }


SCRIPT = """
from tests.state.harness import *
driver = Driver()
driver.start()
for seq in range(60):
    name = "account" + str(seq * 7 % 13)
    driver.batch([driver.envelope(Deposit(name, seq)), driver.envelope(Close("account5"))])
    driver.send(Order(name, seq % 9), plugin="shop")
print(driver.machine.digest())
"""


@pytest.mark.slow
def test_hash_seeds_do_not_matter(pytestconfig: pytest.Config) -> None:
    digests = set()
    for seed in ("0", "1", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=pytestconfig.rootpath,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(pytestconfig.rootpath)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 32


def test_invariants_are_collected(driver: Driver) -> None:
    driver.send(Deposit("devil", 666))
    assert driver.machine.invariants() == ["bank: devil is 666"]


def test_views_show_the_applied_state(driver: Driver) -> None:
    view = driver.machine.view("bank")
    driver.send(Deposit("a", 1))
    assert (view.index, view.now) == (2, driver.now)
    assert view.table("accounts").get("a") == 1
    assert list(view.members) == ["n1"]
    with pytest.raises(LookupError):
        driver.machine.view("nobody")


def test_a_duplicate_node_up_in_one_batch(driver: Driver) -> None:
    up = Envelope(0, 77, 0, "core", encode(node_up(77, "n5", driver.machine)))
    first, second = driver.batch([up, up])
    assert first == second
    assert driver.machine.members["n5"].incarnation == 1
