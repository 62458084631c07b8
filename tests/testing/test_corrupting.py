"""The damage that the simulated world does to one core is none that a client could see."""

from __future__ import annotations

import random

from raftkv.state import StateMachine
from raftkv.state.sessions import Sessions
from raftkv.testing import corrupting
from raftkv.testing.window_check import WORLD_WINDOW
from tests.state.harness import Bank, Deposit, Driver, Shop, replay


def world_machine() -> StateMachine:
    return StateMachine([Bank(), Shop()], sessions=Sessions(window=WORLD_WINDOW))


def test_no_command_meets_the_damage_however_busy_its_session_is() -> None:
    driver = Driver(world_machine())
    driver.start("a")
    healthy = replay(driver.bodies, world_machine())
    corrupting._undecided_outcome(driver.machine, random.Random(1))
    before = len(driver.bodies)
    for seq in range(1, 4 * WORLD_WINDOW):
        driver.send(Deposit("a", 1), floor=max(0, seq - 10))
    replay(driver.bodies[before:], healthy)
    accounts = [
        dict(each.view("bank").table("accounts").scan()) for each in (driver.machine, healthy)
    ]
    assert accounts[0] == accounts[1]
    assert driver.machine.digest() != healthy.digest()
