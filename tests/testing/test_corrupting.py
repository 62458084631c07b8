"""The damage that the simulated world does to one core is none that a client could see."""

from __future__ import annotations

import random

import pytest

from raftkv.state import StateMachine
from raftkv.state.sessions import Sessions
from raftkv.testing import corrupting
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.window_check import WORLD_WINDOW
from tests.state.harness import Bank, Deposit, Driver, Shop, replay


def world_machine() -> StateMachine:
    return StateMachine([Bank(), Shop()], sessions=Sessions(window=WORLD_WINDOW))


def test_no_command_meets_the_damage_however_busy_its_session_is() -> None:
    driver = Driver(world_machine())
    driver.start("a")
    healthy = replay(driver.bodies, world_machine())
    sessions = sorted(driver.machine._sessions.by_id)
    corrupting._undecided_outcome(driver.machine, random.Random(1), sessions)
    before = len(driver.bodies)
    for seq in range(1, 4 * WORLD_WINDOW):
        driver.send(Deposit("a", 1), floor=max(0, seq - 10))
    replay(driver.bodies[before:], healthy)
    accounts = [
        dict(each.view("bank").table("accounts").scan()) for each in (driver.machine, healthy)
    ]
    assert accounts[0] == accounts[1]
    assert driver.machine.digest() != healthy.digest()


def test_the_damage_lies_in_a_session_of_a_node_that_runs() -> None:
    """Another one may end before the core notices, and its state is right again."""
    driver = Driver(world_machine())
    driver.start("a")
    running = driver.start("b").session
    for seed in range(8):
        machine = replay(driver.bodies, world_machine())
        corrupting._undecided_outcome(machine, random.Random(seed), [running])
        damaged = [each.node for each in machine._sessions.by_id.values() if each.done]
        assert damaged == ["b"]


def test_no_state_is_damaged_while_a_core_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would copy the damaged state if that is the leader's, and stop as corrupt as well."""
    behind: list[int] = []
    with SimulatedCluster(1, 3, rate_per_s=100.0, deliveries=False, members=True) as cluster:
        cluster.run(1.0)
        cluster.world.stall_disk("core2", 6.0)
        cluster.run(2.0)
        stray_row = corrupting._stray_row

        def damage(machine: StateMachine, rng: random.Random, sessions: list[int]) -> None:
            indexes = [cluster.nodes[name].machine.index for name in cluster.names]
            behind.append(max(indexes) - min(indexes))
            stray_row(machine, rng, sessions)

        monkeypatch.setattr(corrupting, "_stray_row", damage)
        monkeypatch.setattr(corrupting, "_undecided_outcome", damage)
        corrupting.corrupt_one(cluster, random.Random(1))
        cluster.settle()
    assert len(behind) == 1
    assert behind[0] < 20
