"""Rules 13, 14 and 20 of consensus: what the replicated state machine owes to them.

The machine's own tests go into every corner; here each clause of a rule stands once, by its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from raftkv.errors import (
    MissingPlugin,
    OutcomeExpired,
    PluginFault,
    SequenceTooFar,
    SessionExpired,
)
from raftkv.state import Envelope, SettleOutcome, StateMachine
from raftkv.state.sessions import Sessions
from tests.state.harness import (
    Balance,
    Bank,
    Break,
    Close,
    Deposit,
    Driver,
    Overdrawn,
    Shop,
    Transfer,
    copy_of,
    encode,
    node_up,
    replay,
)


def started(machine: StateMachine | None = None) -> Driver:
    driver = Driver(machine)
    driver.start()
    return driver


class TestRule13SessionsAreOpenedThroughTheLog:
    def test_the_same_nonce_is_the_same_session(self) -> None:
        driver = Driver()
        up = Envelope(0, 1, 0, "core", encode(node_up(1, "n1", driver.machine)))
        first, again = driver.batch([up, up])
        assert first == again
        assert driver.batch([up]) == [first]
        assert driver.machine.session_count == 1

    def test_a_restarted_origins_numbers_never_meet_old_results(self) -> None:
        driver = started()
        assert driver.send(Deposit("a", 1), seq=1) == Balance("a", 1)
        former = driver.session
        driver.start()
        assert driver.send(Deposit("a", 1), seq=1) == Balance("a", 2)
        driver.session = former
        assert isinstance(driver.send(Deposit("a", 1), seq=1), SessionExpired)

    @pytest.mark.parametrize("session", [0, 77])
    def test_an_unknown_session_is_refused_and_never_created(self, session: int) -> None:
        driver = started()
        driver.session = session
        assert isinstance(driver.send(Deposit("a", 1)), SessionExpired)
        assert driver.machine.session_count == 1
        assert driver.table("accounts") == {}


class TestRule14TheExactlyOnceTable:
    def test_it_keeps_refusals_too(self) -> None:
        driver = started()
        assert isinstance(driver.send(Transfer("a", "b", 5), seq=1), Overdrawn)
        driver.send(Deposit("a", 100), seq=2)
        assert isinstance(driver.send(Transfer("a", "b", 5), seq=1), Overdrawn)
        assert driver.table("accounts") == {"a": 100}

    def test_numbers_may_arrive_in_any_order(self) -> None:
        driver = started()
        for seq in (3, 1, 3, 2, 1):
            driver.send(Deposit("a", seq), seq=seq)
        assert driver.table("accounts") == {"a": 6}

    def test_what_is_below_the_floor_or_beyond_the_window_is_refused(self) -> None:
        driver = started(StateMachine([Bank(), Shop()], sessions=Sessions(4, 3, 1000)))
        driver.send(Deposit("a", 1), seq=5, floor=5)
        assert isinstance(driver.send(Deposit("a", 1), seq=4), OutcomeExpired)
        assert isinstance(driver.send(Deposit("a", 1), seq=9), SequenceTooFar)
        assert driver.table("accounts") == {"a": 1}

    def test_a_number_settled_as_not_applied_never_applies(self) -> None:
        driver = started()
        assert driver.send(SettleOutcome(driver.session, 7), plugin="core").verdict == "not_applied"
        assert isinstance(driver.send(Deposit("a", 1), seq=7), OutcomeExpired)
        assert driver.table("accounts") == {}

    def test_an_answer_that_is_gone_is_called_expired(self) -> None:
        driver = started()
        driver.send(Deposit("a", 1), seq=1)
        driver.send(Deposit("a", 1), seq=2, floor=2)
        report = driver.send(SettleOutcome(driver.session, 1), plugin="core", seq=50)
        assert report.verdict == "expired"

    def test_it_survives_a_snapshot(self) -> None:
        driver = started()
        driver.send(Deposit("a", 1), seq=1)
        driver.send(Transfer("b", "a", 5), seq=2)
        restored = copy_of(driver.machine)
        before = len(driver.bodies)
        driver.send(Deposit("a", 1), seq=1)
        driver.send(Transfer("b", "a", 5), seq=2)
        assert replay(driver.bodies[before:], restored).digest() == driver.machine.digest()
        assert driver.table("accounts") == {"a": 1}


PROGRAM = """
from tests.state.harness import *
driver = Driver()
driver.start()
for seq in range(30):
    driver.send(Deposit("account" + str(seq * 7 % 13), seq))
print(driver.machine.digest())
"""


class TestRule20Determinism:
    def test_tables_are_walked_in_the_order_of_their_keys(self) -> None:
        names = [f"account{number * 7 % 13}" for number in range(13)]
        one, other = started(), started()
        for name in names:
            one.send(Deposit(name, 1))
        for name in reversed(names):
            other.send(Deposit(name, 1))
        assert list(one.table("accounts")) == list(other.table("accounts")) == sorted(names)

    def test_the_digest_does_not_depend_on_the_processs_hashes(
        self, pytestconfig: pytest.Config
    ) -> None:
        root = str(pytestconfig.rootpath)
        digests = {
            subprocess.run(
                [sys.executable, "-c", PROGRAM],
                cwd=root,
                env={
                    **os.environ,
                    "PYTHONHASHSEED": seed,
                    "PYTHONPATH": root,
                },
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("0", "12345")
        }
        assert len(digests) == 1
        assert digests.pop().strip()

    @pytest.mark.parametrize(
        ("how", "kind"), [("memory", MemoryError), ("disk", OSError), ("deep", RecursionError)]
    )
    def test_what_depends_on_this_node_stops_it(self, how: str, kind: type[BaseException]) -> None:
        with pytest.raises(kind):
            started().send(Break(how))

    @pytest.mark.parametrize("how", ["key", "result", "undeclared", "arguments"])
    def test_any_other_exception_is_an_undone_refusal_on_every_node(self, how: str) -> None:
        driver = started()
        assert isinstance(driver.send(Break(how)), PluginFault)
        driver.send(Close("nobody"))
        assert driver.table("accounts") == {}
        other = replay(driver.bodies, StateMachine([Bank(), Shop()]))
        assert other.digest() == driver.machine.digest()

    def test_a_node_that_lacks_an_active_plugin_refuses_to_run(self) -> None:
        class OldShop(Shop):
            version: ClassVar[int] = 1

        driver = started()
        lacking: list[list[Any]] = [[Bank()], [Bank(), OldShop()]]
        for plugins in lacking:
            with pytest.raises(MissingPlugin, match="shop"):
                replay(driver.bodies, StateMachine(plugins))
