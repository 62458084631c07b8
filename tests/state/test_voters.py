"""What the state knows of who votes: one row, taken only by whoever has seen the last one."""

from __future__ import annotations

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import Context
from raftkv.state import SetVoters, StateMachine

from .harness import Bank, Driver, Shop, copy_of, replay


class Hearing(Bank):
    """Writes down what it hears of voters."""

    def on_voters(self, old: tuple[str, ...], ctx: Context) -> None:
        ctx.table("accounts").put(f"{','.join(old)}->{','.join(ctx.voters)}", 1)


def started() -> Driver:
    driver = Driver(StateMachine([Hearing(), Shop()]))
    driver.start("n1")
    return driver


def test_nobody_is_announced_at_first() -> None:
    driver = started()
    assert driver.machine.voters == (0, ())
    assert driver.machine.view("bank").voters == ()


def test_the_last_version_is_what_has_to_be_known() -> None:
    driver = started()
    first = driver.send(SetVoters(("b", "a"), 0), plugin="core")
    assert (first.version, first.accepted) == (1, True)
    assert driver.machine.view("bank").voters == ("a", "b")
    late = driver.send(SetVoters(("a", "b", "c"), 0), plugin="core")
    assert (late.version, late.accepted) == (1, False)
    assert driver.machine.voters == (1, ("a", "b"))


def test_whoever_says_the_same_again_voids_what_is_on_its_way() -> None:
    """A core is struck off by a command of its own, although it was struck off before."""
    driver = started()
    driver.send(SetVoters(("a",), 0), plugin="core")
    again = driver.send(SetVoters(("a",), 1), plugin="core")
    assert (again.version, again.accepted) == (2, True)
    assert not driver.send(SetVoters(("a", "b"), 1), plugin="core").accepted


def test_plugins_hear_of_a_change_and_of_nothing_else() -> None:
    driver = started()
    driver.send(SetVoters(("a",), 0), plugin="core")
    driver.send(SetVoters(("a",), 1), plugin="core")
    driver.send(SetVoters(("a", "b"), 2), plugin="core")
    heard = [name for name in driver.table("accounts") if "->" in name]
    assert heard == ["->a", "a->a,b"]


def test_a_voter_that_is_named_twice_is_one_voter() -> None:
    driver = started()
    driver.send(SetVoters(("b", "a", "b"), 0), plugin="core")
    assert driver.machine.voters == (1, ("a", "b"))


def test_it_is_bounded() -> None:
    driver = started()
    for ids in (("x" * 256,), tuple(str(i) for i in range(256))):
        assert isinstance(driver.send(SetVoters(ids, 0), plugin="core"), Refused)
    assert driver.machine.voters == (0, ())


def test_snapshots_and_replays_hold_it() -> None:
    driver = started()
    driver.send(SetVoters(("a", "b"), 0), plugin="core")
    plugins = [Hearing(), Shop()]
    copy = copy_of(driver.machine, plugins)
    again = replay(driver.bodies, StateMachine([Hearing(), Shop()]))
    assert copy.voters == again.voters == driver.machine.voters
    assert copy.digest() == again.digest() == driver.machine.digest()


def test_the_command_is_what_goes_through_the_log() -> None:
    command = SetVoters(("a",), 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=SetVoters) == command
