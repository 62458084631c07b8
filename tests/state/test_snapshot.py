"""Snapshots: equal at any interleaving, all or nothing, damaged in every place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import DamagedSnapshot, Diverged, MissingPlugin
from raftkv.state import StateMachine, snapshot
from tests.state.harness import (
    Balance,
    Bank,
    Close,
    Deposit,
    Driver,
    Order,
    Shop,
    Transfer,
    copy_of,
    replay,
)


def busy() -> Driver:
    driver = Driver()
    driver.start("n2")
    driver.start("n1")
    for seq in range(20):
        driver.send(Deposit(f"account {seq:02}", seq), seq=seq)
    driver.send(Transfer("x", "y", 1), seq=20)
    driver.send(Order("account 07", 1), plugin="shop", seq=21)
    return driver


def fresh() -> StateMachine:
    return StateMachine([Bank(), Shop()])


def test_a_restored_machine_is_the_machine() -> None:
    driver = busy()
    driver.skip()
    machine = driver.machine
    other = copy_of(machine)
    assert (other.index, other.now, other.serial) == (machine.index, machine.now, machine.serial)
    assert other.digest() == machine.digest()
    assert other.active_versions == machine.active_versions
    assert dict(other.members) == dict(machine.members)
    assert other.session_count == machine.session_count
    before = len(driver.bodies)
    assert driver.send(Deposit("account 07", 1), seq=22).amount == 7
    driver.start("n1")
    driver.send(Order("account 08", 1), plugin="shop")
    assert replay(driver.bodies[before:], other).digest() == machine.digest()


def test_digests_differ_when_anything_differs() -> None:
    def without(driver: Driver) -> None: ...

    def row(driver: Driver) -> None:
        driver.send(Deposit("zz", 1), seq=30)

    def other_row(driver: Driver) -> None:
        driver.send(Deposit("zz", 2), seq=30)

    def answer(driver: Driver) -> None:
        driver.send(Close("nothing"), seq=30)

    def other_number(driver: Driver) -> None:
        driver.send(Close("nothing"), seq=31)

    def floor(driver: Driver) -> None:
        driver.send(Close("nothing"), seq=30, floor=5)

    def later(driver: Driver) -> None:
        driver.now += 1
        driver.send(Close("nothing"), seq=30)

    def entry(driver: Driver) -> None:
        driver.skip()

    changes: list[Callable[[Driver], None]] = [
        without, row, other_row, answer, other_number, floor, later, entry,
    ]  # fmt: skip
    digests = set()
    for change in changes:
        driver = busy()
        change(driver)
        digests.add(driver.machine.digest())
    assert len(digests) == len(changes)


def test_the_digest_does_not_depend_on_the_cuts() -> None:
    machine = busy().machine
    digests = set()
    for rows_max in (1, 2, 7, 1000):
        frozen = machine.freeze()
        assert frozen.index == machine.index
        assert frozen.digest == ""
        for chunk in frozen.slices(rows_max):
            assert chunk
        digests.add(frozen.digest)
    assert digests == {machine.digest()}


@pytest.mark.parametrize("chunk_bytes", [1, 40, 200])
def test_chunks_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    driver = busy()
    expected = driver.machine.digest()
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", chunk_bytes)
    chunks = list(driver.machine.freeze().slices())
    assert max(map(len, chunks)) < chunk_bytes + 120
    other = fresh()
    other.restore(chunks, driver.machine.index)
    assert other.digest() == expected


STEP = st.one_of(
    st.builds(Deposit, st.sampled_from("abcdefgh"), st.integers(0, 9)),
    st.builds(
        Transfer, st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh"), st.integers(0, 9)
    ),
    st.builds(Close, st.sampled_from("abcdefgh")),
    st.sampled_from(["slice", "slice", "freeze", "n1", "n2"]),
)


@given(st.lists(STEP, max_size=40), st.lists(STEP, max_size=60), st.integers(1, 4))
@settings(max_examples=150)
def test_a_snapshot_is_of_its_moment_however_slices_and_entries_interleave(
    before: list[Any], after: list[Any], rows_max: int
) -> None:
    driver = Driver()
    driver.start()
    walks: list[tuple[Any, Any, list[bytes], str, int]] = []

    def freeze() -> None:
        # The digest at the freeze comes from another machine, which is never frozen.
        twin = replay(driver.bodies, fresh())
        frozen = driver.machine.freeze()
        walks.append((frozen, frozen.slices(rows_max), [], twin.digest(), driver.machine.index))

    def do(step: Any) -> None:
        if step == "freeze":
            freeze()
        elif step == "slice":
            for _, slices, chunks, _, _ in walks:
                chunks += [chunk for chunk in [next(slices, None)] if chunk is not None]
        elif isinstance(step, str):
            driver.start(step)
        else:
            driver.send(step)

    for step in before:
        do(step)
    freeze()
    for step in after:
        do(step)
    for frozen, slices, chunks, digest, index in walks:
        chunks += slices
        assert frozen.digest == digest
        other = fresh()
        other.restore(chunks, index)
        assert other.digest() == digest
        assert replay(driver.bodies[index:], other).digest() == driver.machine.digest()
    assert replay(driver.bodies, fresh()).digest() == driver.machine.digest()


def test_a_closed_walk_saves_nothing_any_more() -> None:
    driver = busy()
    frozen = driver.machine.freeze()
    slices = frozen.slices(1)
    next(slices)
    frozen.close()
    accounts = driver.machine._all["bank"].tables["accounts"]
    assert not any(accounts._frozen)
    other = driver.machine.freeze().slices(1)
    next(other)
    assert any(accounts._frozen)
    other.close()
    assert not any(accounts._frozen)


def test_a_restore_replaces_everything() -> None:
    old = busy()
    old.send(Deposit("vanishes", 1))
    target = replay(old.bodies[:2], fresh())
    view = target.view("bank").table("accounts")
    new = busy()
    for _ in range(5):
        new.skip()
    target.restore(list(new.machine.freeze().slices()), new.machine.index)
    assert target.digest() == new.machine.digest()
    assert view.get("vanishes") is None
    assert view.get("account 19") == 19


def test_a_snapshot_of_the_past_or_of_another_index_is_not_installed() -> None:
    driver = busy()
    chunks = list(driver.machine.freeze().slices())
    index = driver.machine.index
    driver.skip()
    digest = driver.machine.digest()
    for wanted in (index, index + 1):
        with pytest.raises(Diverged):
            driver.machine.restore(chunks, wanted)
    assert driver.machine.digest() == digest


def test_a_node_without_the_plugin_refuses_the_snapshot() -> None:
    driver = busy()
    chunks = list(driver.machine.freeze().slices())
    poor = StateMachine([Bank()])
    empty = poor.digest()
    with pytest.raises(MissingPlugin, match="'shop', which this node lacks"):
        poor.restore(chunks, driver.machine.index)

    class OldShop(Shop):
        version: ClassVar[int] = 1

    with pytest.raises(MissingPlugin, match="version 2"):
        StateMachine([Bank(), OldShop()]).restore(chunks, driver.machine.index)
    assert poor.digest() == empty


def test_a_node_with_more_plugins_and_newer_ones_takes_the_snapshot() -> None:
    driver = Driver(StateMachine([Bank()]))
    driver.start()
    driver.send(Deposit("a", 1))

    class NewBank(Bank):
        version: ClassVar[int] = 9

    other = copy_of(driver.machine, [NewBank(), Shop()])
    assert other.active_versions == {"bank": 1}
    assert other.digest() == driver.machine.digest()


def refused(chunks: list[bytes], index: int) -> None:
    driver = Driver()
    driver.start()
    driver.send(Deposit("mine", 1))
    before = driver.machine.digest()
    with pytest.raises(DamagedSnapshot):
        driver.machine.restore(chunks, index)
    assert driver.machine.digest() == before
    assert driver.send(Deposit("mine", 1)) == Balance("mine", 2)


def test_a_stream_with_missing_swapped_or_added_chunks_is_refused() -> None:
    driver = busy()
    chunks = list(driver.machine.freeze().slices(5))
    index = driver.machine.index
    for at in range(len(chunks)):
        refused(chunks[:at] + chunks[at + 1 :], index)
        refused([*chunks[:at], chunks[at], *chunks[at:]], index)
        refused(chunks[:at], index)
    refused([chunks[0], *chunks[1:-1][::-1], chunks[-1]], index)
    refused([*chunks, chunks[-1]], index)


def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    driver = Driver()
    driver.start()
    driver.send(Deposit("a", 5))
    driver.send(Transfer("x", "a", 5))
    chunks = list(driver.machine.freeze().slices())
    index = driver.machine.index
    for place, chunk in enumerate(chunks):
        for at in range(len(chunk)):
            for bit in (0, 6):
                damaged = bytearray(chunk)
                damaged[at] ^= 1 << bit
                try:
                    fresh().restore([*chunks[:place], bytes(damaged), *chunks[place + 1 :]], index)
                except (DamagedSnapshot, MissingPlugin, Diverged):
                    continue
                pytest.fail(f"bit {bit} of byte {at} of chunk {place} went unnoticed")


def with_a_large_row() -> tuple[Driver, list[bytes]]:
    """A state, and its chunks, of which none has more than 200 bytes."""
    driver = busy()
    driver.send(Deposit(" ".join(map(str, range(1000))), 7), seq=22)
    return driver, list(driver.machine.freeze().slices(5, 200))


def test_a_large_row_goes_in_pieces() -> None:
    driver, chunks = with_a_large_row()
    assert max(map(len, chunks)) <= 200
    other = fresh()
    other.restore(chunks, driver.machine.index)
    assert other.digest() == driver.machine.digest()
    frozen = driver.machine.freeze()
    assert max(map(len, frozen.slices())) > 3000
    assert frozen.digest == driver.machine.digest()


def test_pieces_that_are_missing_swapped_or_doubled_are_refused() -> None:
    driver, chunks = with_a_large_row()
    index = driver.machine.index
    pieces = [at for at, chunk in enumerate(chunks) if chunk[1] == 5]
    assert len(pieces) > 10
    for at in pieces:
        refused(chunks[:at] + chunks[at + 1 :], index)
        refused([*chunks[:at], chunks[at], *chunks[at:]], index)
        refused(chunks[: at + 1], index)
        refused([*chunks[: at + 1], chunks[0], *chunks[at + 1 :]], index)
    first, second = pieces[3:5]
    chunks[first], chunks[second] = chunks[second], chunks[first]
    refused(chunks, index)


def test_pieces_of_pieces_and_pieces_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = msgspec.msgpack.encode(snapshot.Piece(last=True, data=b"x"))
    with pytest.raises(DamagedSnapshot, match="pieces of a piece"):
        fresh().restore([msgspec.msgpack.encode(snapshot.Piece(last=True, data=piece))], 1)
    monkeypatch.setattr(snapshot, "WHOLE_BYTES_MAX", 100)
    endless = [msgspec.msgpack.encode(snapshot.Piece(last=False, data=b"x" * 60))] * 2
    with pytest.raises(DamagedSnapshot, match="exceed 100 bytes together"):
        fresh().restore(endless, 1)


def test_a_foreign_format_and_a_huge_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = busy()
    chunks = list(driver.machine.freeze().slices())
    header = msgspec.msgpack.decode(chunks[0])
    assert header[:2] == [0, 1]
    header[1] = 2
    foreign = msgspec.msgpack.encode(header)
    with pytest.raises(DamagedSnapshot, match="format 2"):
        fresh().restore([foreign, *chunks[1:]], driver.machine.index)
    monkeypatch.setattr(snapshot, "CHUNK_BYTES_MAX", 100)
    with pytest.raises(DamagedSnapshot, match="exceeds 100"):
        fresh().restore([b"x" * 101], 1)
