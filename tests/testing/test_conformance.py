"""`check_plugin` finds every kind of mistake, shows it shortly, and finds none where none is."""

from __future__ import annotations

import gc
import os
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from raftkv.errors import ConfigError
from raftkv.plugin import Plugin, View
from raftkv.state import Envelope, OpenSession, StateMachine, encode_batch
from raftkv.testing import ContractBroken, check_log, check_plugin
from tests.state.harness import Bank, Break, Close, Deposit, Look, Shop, Transfer, node_up
from tests.testing import conformance_toys as toys
from tests.testing.conformance_toys import Acquire, Held, Library, Locks, Release


def broken(plugin: type[Plugin[Any]], **more: Any) -> ContractBroken:
    with pytest.raises(ContractBroken) as found:
        check_plugin(plugin, **more)
    return found.value


def test_a_plugin_that_keeps_the_contract() -> None:
    checked = check_plugin(Locks)
    assert (checked.logs, checked.entries > 3_000) == (30, True)
    assert checked.applied["Acquire"] > 500
    assert checked.applied["Release"] > 20
    assert checked.refused["Release"]["not_held"] > 500


def test_what_asks_nothing_of_the_world_may_be_used() -> None:
    check_plugin(toys.Cached, logs=5)


def test_the_same_seed_plays_the_same_logs() -> None:
    one, other = (check_plugin(Locks, logs=3, seed=7) for _ in range(2))
    assert one == other
    assert check_plugin(Locks, logs=3, seed=8) != one


@pytest.mark.parametrize(
    ("plugin", "rule", "what"),
    [
        (toys.Clocked, "A3, purity", r"time\.time, by .*conformance_toys\.Clocked\.acquire"),
        (toys.Chancy, "A3, purity", r"random\.getrandbits, by .*Chancy\.acquire"),
        (toys.Configured, "A3, purity", r"os\.environ, by .*Configured\.acquire"),
        (toys.Dated, "A3, purity", r"Today\.today, by .*Dated\.acquire"),
        (toys.Connecting, "A3, purity", r"socket.*, by .*Connecting\.acquire"),
        (toys.Logging, "A3, purity", r"time\.time, by .*Logging\.acquire"),
        (toys.Reading, "A3, purity", r"open, by .*Reading\.on_members"),
        (toys.Unordered, "A3, purity", "a process with other hashes"),
        (toys.Remembering, "A1", "got state: count"),
        (toys.RememberingInside, "A1", "a second machine with the same plugin object"),
        (toys.RememberingTheLog, "A3, purity", "a process that was restored from a snapshot"),
        (toys.Raising, "A3, undo", "(?s)Acquire has raised.*KeyError: 'b'"),
        (toys.RaisingHook, "A3, undo", "(?s)on_setting has raised.*ValueError: a bug"),
        (toys.Stopping, "A3, undo", "this stops a node: OSError"),
        (toys.RefusingUndeclared, "A3, undo", "(?s)Undeclared stands in no plugin's refusals"),
        (toys.WronglyTyped, "A2, rows", "cannot be read from its snapshot"),
        (toys.WrongResult, "A2, results", "cannot be read again"),
        (toys.Busy, "A3, bounded work", r"calls at one go; 50000 are allowed"),
        (toys.Writing, "A3, bounded work", r"1001 rows changed"),
        (toys.Inconsistent, "A2, invariants", "is odd"),
        (toys.Careful, "A3, undo", "(?s)RuntimeError: format 1 has no Acquire"),
        (toys.ClockedSetting, "A3, purity", r"time\.time, by .*ClockedSetting\.on_setting"),
        (toys.ClockedVoters, "A3, purity", r"time\.time, by .*ClockedVoters\.on_voters"),
        (toys.FirstWins, "A3, purity", "other hashes|restored from a snapshot"),
        (toys.Local, "A3, purity", "other hashes"),
        (toys.InPlace, "A3, undo", "a refused command has changed row"),
        (toys.Loose, "A2, results", "Expected `int`, got `float`"),
        (toys.Unwritable, "A2, rows", "a row cannot be written"),
        (toys.Hungry, "A3, undo", "this stops a node: MemoryError"),
        (toys.NoVoters, "A3, undo", "(?s)Acquire has raised.*IndexError"),
        (toys.BadInvariants, "A2, invariants", "they raise ZeroDivisionError"),
        (toys.Deaf, "nothing was shown", r"Release \(not_held \d+"),
    ],
)
def test_every_mistake_is_found(plugin: type[Plugin[Any]], rule: str, what: str) -> None:
    found = broken(plugin)
    assert found.rule == rule
    assert re.search(what, found.what), found.what


def test_a_broken_rule_is_shown_by_a_short_log() -> None:
    text = str(broken(toys.Raising, seed=3))
    story = text[text.index("seed=3, log ") :].splitlines()
    assert "made shorter" in story[0]
    steps = [line for line in story[1:] if line.lstrip()[:1].isdigit()]
    assert len(steps) == 1
    assert "Acquire(name='b')" in steps[0]


def test_what_needs_two_steps_is_shown_by_two() -> None:
    """A lock of a node that dies: the story has the lock and the death, and nothing else."""
    text = str(broken(ForgettingTheDead))
    steps = [line for line in text.splitlines() if line.lstrip()[:1].isdigit()]
    assert len(steps) == 2
    assert "Acquire(" in steps[0]
    assert "is declared dead" in steps[1] or "starts" in steps[1]


class ForgettingTheDead(Locks):
    def on_members(self, change: Any, ctx: Any) -> None:
        pass

    def invariants(self, view: View) -> Sequence[str]:
        return [
            f"{name} is held by the dead {lock.owner}"
            for name, lock in view.table("locks").scan()
            if lock.owner
            and not (
                view.members[lock.owner].up and view.members[lock.owner].started_ms <= lock.since_ms
            )
        ]


def test_a_plugin_beside_the_one_that_it_uses() -> None:
    assert check_plugin(Library, beside=[Locks], logs=5).applied["Borrow"] > 100
    found = broken(toys.HashedLibrary, beside=[Locks])
    assert "other hashes" in found.what
    with pytest.raises(ConfigError, match="'library' uses 'locks'"):
        check_plugin(Library)


def test_a_plugin_without_commands() -> None:
    assert check_plugin(toys.Lives, logs=3).entries > 300
    assert "time.monotonic, by " in broken(toys.ClockedLives).what


class Collected(Locks):
    """Makes more garbage than the collector lets pass."""

    def acquire(self, command: Any, ctx: Any) -> Any:
        for _ in range(2_000):
            cycle: list[Any] = []
            cycle.append(cycle)
        return super().acquire(command, ctx)


def test_what_the_collector_calls_is_no_fault_of_the_plugin() -> None:
    called: list[float] = []

    def collects(phase: str, info: Any) -> None:
        called.append(time.perf_counter())

    gc.callbacks.append(collects)
    try:
        check_plugin(Collected, logs=3)
    finally:
        gc.callbacks.remove(collects)
    assert called
    assert gc.isenabled()


def only_here() -> Locks:
    if os.environ.get("PYTHONHASHSEED") in ("1", "2", "3"):
        raise RuntimeError("not in another process")
    return Locks()


def test_a_plugin_that_the_other_process_fails_to_make(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(RuntimeError, match="has ended with exit code 1"):
        check_plugin(only_here, logs=1)
    assert "RuntimeError: not in another process" in capfd.readouterr().err


def known(rng: random.Random, view: View) -> msgspec.Struct | None:
    """Releases what is held, sometimes."""
    locks = list(view.table("locks").scan())
    if not locks or rng.random() < 0.5:
        return None
    name, lock = rng.choice(locks)
    return Release(name, lock.ticket)


def test_an_author_may_help() -> None:
    helped, alone = check_plugin(Locks, known, logs=5), check_plugin(Locks, logs=5)
    assert helped.applied["Release"] > 3 * alone.applied["Release"]


def test_an_author_sends_commands_of_the_plugin_alone() -> None:
    with pytest.raises(TypeError, match="Close.* is no command of the plugin 'locks'"):
        check_plugin(Locks, lambda rng, view: Close("a"))


def test_what_is_sent_by_hand_is_not_made_up() -> None:
    checked = check_plugin(Locks, known, by_hand=[Release], logs=3)
    # Refused are those that come second in an entry.
    assert checked.applied["Release"] > checked.refused["Release"]["not_held"]
    nothing = check_plugin(Locks, by_hand=[Acquire, Release], unreached=[Acquire, Release], logs=2)
    assert (nothing.applied, nothing.refused) == ({}, {})
    with pytest.raises(ValueError, match="'locks' does not declare Deposit"):
        check_plugin(Locks, by_hand=[Deposit])


def test_what_cannot_be_reached_has_to_be_named() -> None:
    assert "Release" not in check_plugin(toys.Deaf, unreached=[Release], logs=3).applied
    with pytest.raises(ValueError, match="'locks' does not declare Deposit"):
        check_plugin(Locks, unreached=[Deposit])
    with pytest.raises(ValueError, match="'locks' does not declare lease"):
        check_plugin(Locks, settings={"lease": [1]})


def test_settings_are_written_as_the_author_says() -> None:
    seen: set[int] = set()

    def look(rng: random.Random, view: View) -> None:
        seen.add(view.settings["lease_ms"])

    check_plugin(Locks, look, settings={"lease_ms": [1, 77]})
    assert seen == {1, 77, 10_000}


def test_a_plugin_that_another_process_cannot_make() -> None:
    class Inside(Locks):
        pass

    with pytest.raises(TypeError, match="cannot be made in another process: define the class"):
        check_plugin(Inside)
    with pytest.raises(TypeError, match="at the top of a module"):
        check_plugin(lambda: Locks())
    with pytest.raises(TypeError, match="must make a new plugin each time"):
        check_plugin(the_same)
    with pytest.raises(TypeError, match="must make a new plugin each time"):
        check_log(the_same, [])


_ONE = Locks()


def the_same() -> Locks:
    return _ONE


def test_a_command_that_is_none_is_refused_and_no_fault_of_the_plugin() -> None:
    log = Written()
    assert log.send(Close("a")).code == "unknown_command"
    assert check_log(Locks, log.entries).applied == {}


def no_break(rng: random.Random, view: View) -> msgspec.Struct:
    kind = rng.choice((Deposit, Transfer, Close, Look))
    if kind is Transfer:
        return Transfer(rng.choice("abc"), rng.choice("abc"), rng.randint(0, 9))
    if kind is Deposit:
        return Deposit(rng.choice("abc"), rng.randint(0, 9))
    return Look() if kind is Look else Close(rng.choice("abc"))


def test_what_the_machine_is_tested_with_is_found_out() -> None:
    """The bank of the machine's own tests breaks in all ways that it is asked to."""
    assert broken(Bank).rule == "A3, undo"
    settings = {"names": [{"a": 1}]}
    checked = check_plugin(Bank, no_break, settings=settings, unreached=[Break])
    assert checked.refused["Transfer"]["overdrawn"] > 100
    assert check_plugin(Shop, beside=[Bank], logs=5).applied["Order"] > 10


# Logs that were written elsewhere -----------------------------------------------------------------


class Written:
    """A log of a client, entry by entry."""

    def __init__(self, plugin: type[Plugin[Any]] = Locks) -> None:
        self.machine = StateMachine([plugin()])
        self.entries: list[bytes | None] = []
        self.seq = 0
        self.session = self._append(0, "core", OpenSession(1)).session
        # The plugin becomes active.
        self._append(0, "core", node_up(1, "n1", self.machine))

    def send(self, command: msgspec.Struct) -> Any:
        return self._append(self.session, "locks", command)

    def _append(self, session: int, plugin: str, command: msgspec.Struct) -> Any:
        self.seq += 1
        envelope = Envelope(session, self.seq, 0, plugin, msgspec.msgpack.encode(command))
        body = encode_batch(len(self.entries), [envelope])
        self.entries.append(body)
        [(_, _, outcome)] = self.machine.apply(self.machine.index + 1, body)
        return outcome

    def nothing(self) -> None:
        self.entries.append(None)
        self.machine.skip(self.machine.index + 1)


def test_a_log_of_a_test_is_judged() -> None:
    log = Written()
    for _ in range(20):
        held = log.send(Acquire("a"))
        log.nothing()
        assert isinstance(held, Held)
        assert log.send(Release("a", held.ticket)) is True
    check_log(Locks, log.entries)


def test_a_snapshot_that_cannot_be_read_is_the_plugins_fault_though_a_later_one_can() -> None:
    log = Written(toys.Healing)
    log.send(Acquire("a"))
    while len(log.entries) < 20:
        log.nothing()
    assert log.send(Release("a", 1)) is True
    with pytest.raises(ContractBroken, match="restored from a snapshot at entry 16 ends with"):
        check_log(toys.Healing, log.entries)


def test_a_log_of_a_test_is_judged_by_all_rules() -> None:
    log = Written(toys.Unordered)
    for letter in "abcdefgh":
        log.send(Acquire(letter))
    with pytest.raises(ContractBroken, match="a process with other hashes"):
        check_log(toys.Unordered, log.entries)
    log = Written(toys.Clocked)
    log.send(Acquire("a"))
    with pytest.raises(ContractBroken, match=r"asks the world: time\.time"):
        check_log(toys.Clocked, log.entries)
