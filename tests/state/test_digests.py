"""Digests by table: what they see, and that slices and writes meanwhile do not matter."""

from __future__ import annotations

from raftkv.state.digests import SESSIONS, DigestWalk
from raftkv.testing.damage import damage, lose

from .harness import Deposit, Driver

ROWS = 40


def driven() -> Driver:
    driver = Driver()
    driver.start("a")
    for number in range(ROWS):
        driver.send(Deposit(f"account{number:03}", number))
    return driver


def digests(driver: Driver, rows_max: int = 7) -> dict[str, bytes]:
    walk = DigestWalk(driver.machine.freeze())
    for rows, _ in walk.slices(rows_max):
        assert rows <= rows_max
    return walk.tables


def test_equal_states_have_equal_digests_however_they_are_cut() -> None:
    one, other = driven(), driven()
    assert digests(one, 1) == digests(other, 1000)
    assert SESSIONS in digests(one)


def test_writes_during_the_walk_do_not_matter() -> None:
    driver = driven()
    before = digests(driver)
    walk = DigestWalk(driver.machine.freeze())
    for number, _ in enumerate(walk.slices(3)):
        driver.send(Deposit(f"account{number:03}", 1000))
        driver.send(Deposit(f"more{number:03}", 1))
    assert walk.tables == before
    assert digests(driver) != before


def test_a_damaged_row_changes_the_digest_of_its_table_only() -> None:
    driver = driven()
    before = digests(driver)
    (plugin, table) = next(
        key for key, count in driver.machine.row_counts().items() if count >= ROWS
    )
    keys = [key for key, _ in driver.machine.view(plugin).table(table).scan()]
    value = driver.machine.view(plugin).table(table)[keys[1]]
    damage(driver.machine, plugin, table, keys[0], value)
    after = digests(driver)
    assert {name for name in before if before[name] != after[name]} == {f"{plugin}.{table}"}
    lose(driver.machine, plugin, table, keys[0])
    assert digests(driver)[f"{plugin}.{table}"] not in (
        before[f"{plugin}.{table}"],
        after[f"{plugin}.{table}"],
    )


def test_sessions_clock_and_serial_are_part_of_it() -> None:
    one, other = driven(), driven()
    other.machine._sessions.by_id[next(iter(other.machine._sessions.by_id))].done.clear()
    before, after = digests(one), digests(other)
    assert {name for name in before if before[name] != after[name]} == {SESSIONS}
    one.machine.serial += 1
    assert digests(one)[SESSIONS] != before[SESSIONS]


def test_a_walk_that_is_left_early_holds_on_to_nothing() -> None:
    driver = driven()
    walk = DigestWalk(driver.machine.freeze())
    slices = walk.slices(3)
    next(slices)
    slices.close()
    assert not driver.machine._sessions.walks
