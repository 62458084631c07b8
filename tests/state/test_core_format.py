"""The core format inside the state machine: raised by an entry, and without effect before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raftkv.errors import Diverged, MissingPlugin, Refused, StaleIncarnation, UnknownCommand
from raftkv.state import StateMachine
from raftkv.state.core import AnnounceFormats

from .harness import Bank, Driver, Shop, copy_of


def raised(driver: Driver, version: int = 2) -> None:
    driver.machine.raise_format(driver.machine.index + 1, msgspec.msgpack.encode(version))


def test_a_new_state_has_core_format_1_and_an_entry_raises_it() -> None:
    driver = Driver()
    driver.start()
    assert driver.machine.core_format == 1
    index = driver.machine.index
    raised(driver)
    assert (driver.machine.core_format, driver.machine.index) == (2, index + 1)


def test_it_is_never_lowered() -> None:
    driver = Driver()
    raised(driver)
    raised(driver, 1)
    raised(driver, 2)
    assert driver.machine.core_format == 2


def test_a_machine_that_does_not_know_the_format_stops_at_the_entry() -> None:
    former = Driver(StateMachine([Bank(), Shop()], core_format_max=1))
    with pytest.raises(MissingPlugin, match=r"core format 2, this node knows 1 at most: upgrade"):
        raised(former)


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x00", b"\xa1x", b"\xcf" + b"\xff" * 8])
def test_an_entry_that_holds_no_format_stops_the_node(body: bytes) -> None:
    driver = Driver()
    with pytest.raises(Diverged, match="no core format"):
        driver.machine.raise_format(1, body)


def test_a_snapshot_keeps_it_and_a_former_machine_refuses_the_snapshot() -> None:
    driver = Driver()
    driver.start()
    chunks = list(driver.machine.freeze().slices(3))
    former = StateMachine([Bank(), Shop()], core_format_max=1)
    former.restore(chunks, driver.machine.index)  # format 1 is what it knows
    raised(driver)
    assert copy_of(driver.machine).core_format == 2
    again = StateMachine([Bank(), Shop()], core_format_max=1)
    with pytest.raises(MissingPlugin, match="core format 2"):
        again.restore(list(driver.machine.freeze().slices(3)), driver.machine.index)


def test_the_state_forgets_it_with_everything_else() -> None:
    driver = Driver()
    raised(driver)
    driver.machine.reset()
    assert driver.machine.core_format == 1


def test_at_format_1_a_newer_command_is_answered_as_one_that_cannot_be_decoded() -> None:
    """Outcome and digest are those of a machine that has no such command."""

    class Unheard(msgspec.Struct, frozen=True, array_like=True, tag="never_heard_of"):
        name: str
        incarnation: int
        plugins: tuple[tuple[str, int], ...]

    answers, digests = [], []
    for kind in (AnnounceFormats, Unheard):
        driver = Driver()
        driver.start("n1")
        command: Any = kind("n1", 1, (("bank", 1),))
        answers.append(driver.send(command, "core"))
        digests.append(driver.machine.digest())
    assert [type(answer) for answer in answers] == [UnknownCommand, UnknownCommand]
    assert answers[0].args == answers[1].args
    assert digests[0] == digests[1]


def test_a_node_announces_newer_plugin_formats_once_the_format_is_raised() -> None:
    driver = Driver()
    driver.start("n1", plugins=(("bank", 1), ("shop", 1)))
    assert driver.machine.active_versions["shop"] == 1
    raised(driver)
    answer = driver.send(AnnounceFormats("n1", 1, (("bank", 1), ("shop", 2))), "core")
    assert answer is None
    assert driver.machine.active_versions["shop"] == 2
    assert driver.machine.formats_of("n1") == {"bank": 1, "shop": 2}


def test_an_announcement_of_an_incarnation_that_ended_is_refused() -> None:
    driver = Driver()
    driver.start("n1")
    raised(driver)
    driver.start("n1")
    answer = driver.send(AnnounceFormats("n1", 1, ()), "core")
    assert isinstance(answer, StaleIncarnation)
    many = tuple((f"p{n}", 1) for n in range(257))
    assert isinstance(driver.send(AnnounceFormats("n1", 2, many), "core"), Refused)


def test_no_node_raises_the_core_format_by_its_announcement() -> None:
    driver = Driver()
    raised(driver)
    driver.start("n1", plugins=(("core", 9), ("bank", 1)))
    assert driver.machine.core_format == 2


def test_those_who_subscribe_to_the_core_see_the_change() -> None:
    driver = Driver()
    seen: list[Any] = []
    driver.machine.subscribe(lambda index, changes: seen.extend(changes), ("core",))
    raised(driver)
    assert [(change.table, change.key, change.new) for change in seen] == [("active", "core", 2)]
