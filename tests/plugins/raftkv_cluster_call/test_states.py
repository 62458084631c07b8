"""The states of a node: which of them have lost what the cursor says, and the files that tell."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from raftkv.testing.clock import run
from raftkv.testing.disk import SimDisk
from raftkv_cluster_call.commands import Cursor, Record
from raftkv_cluster_call.kept import KeptFile
from raftkv_cluster_call.states import States, StatesNotReady, StateTooLarge, covers
from tests.plugins.raftkv_cluster_call.lone_host import Hosts, LoneHost


class Box:
    """A state in memory, which is as of whatever a test says."""

    def __init__(self, name: str = "box", at: int | None = 0, **items: bytes) -> None:
        self.name = name
        self.items = dict(items)
        self.at = at
        self.told: list[int] = []

    async def as_of(self) -> int | None:
        return self.at

    async def dump(self) -> Mapping[str, bytes]:
        return self.items

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        self.items, self.at = dict(items), as_of

    async def passed(self, id: int) -> None:
        self.told.append(id)
        if self.at is not None:
            self.at = id


def record(state: str = "committed", kind: str = "call") -> Record:
    return Record("f", 1, b"", "n1", 1, 0, 0, state, "", 1, kind)  # type: ignore[arg-type]


def fill(host: LoneHost, *states: str, oldest: int = 1) -> None:
    """Records of these states from id `oldest` on; "force" is a kind."""
    records = {
        id: record("committed", "force") if state == "force" else record(state)
        for id, state in enumerate(states, oldest)
    }
    last = oldest + len(states) - 1
    host.state.tables["records"] = records
    host.state.tables["meta"] = {"last": last, "oldest": oldest}


# --- files ----------------------------------------------------------------------------------------


def test_a_kept_file_is_the_old_one_or_the_new_one_after_any_crash() -> None:
    outcomes = set()
    for seed in range(60):
        rng = random.Random(seed)
        disk = SimDisk(rng)
        host = LoneHost(Hosts(), "n1", disk)
        file = KeptFile(host, "it")
        old = rng.randbytes(rng.randint(0, 3000))
        new = rng.randbytes(rng.randint(0, 3000))
        file.write(old)
        disk.changes_left = rng.randint(0, 6)
        try:
            file.write(new)
            finished = True
        except OSError:
            finished = False
        disk.crash()
        found = KeptFile(LoneHost(Hosts(), "n1", disk), "it").read()
        assert found in (old, new), f"seed {seed}"
        assert not finished or found == new, f"seed {seed}"
        outcomes.add((finished, found == new))
    # All kinds of crash came up: before the rename, between it and its sync, and after.
    assert outcomes == {(True, True), (False, False), (False, True)}


def test_a_damaged_or_cut_file_is_none() -> None:
    disk = SimDisk(random.Random(1))
    host = LoneHost(Hosts(), "n1", disk)
    file = KeptFile(host, "it")
    assert file.read() is None
    file.write(b"something that is kept")
    size = disk.open(file.path, "r").size()
    for offset in range(size):
        disk.flip_bit(file.path, offset, 3)
        assert file.read() is None, offset
        disk.unflip_bit(file.path, offset, 3)
    assert file.read() == b"something that is kept"
    for shorter in range(size - 1, -1, -7):
        disk.open(file.path, "a").truncate(shorter)
        assert file.read() is None, shorter


def test_a_failed_sync_is_told_and_the_next_write_succeeds() -> None:
    disk = SimDisk(random.Random(2))
    file = KeptFile(LoneHost(Hosts(), "n1", disk), "it")
    file.write(b"old")
    disk.fail_syncs = True
    with pytest.raises(OSError, match="failed to sync"):
        file.write(b"new")
    disk.fail_syncs = False
    assert file.read() == b"old"
    file.write(b"newer")
    disk.crash()
    assert file.read() == b"newer"


# --- covering -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("as_of", "cursor", "states", "expected"),
    [
        (3, Cursor(3, "following"), ("committed",) * 3, True),
        # Ahead by the call that was running when the node died.
        (3, Cursor(2, "following"), ("committed",) * 3, True),
        (2, Cursor(3, "following"), ("committed",) * 3, False),
        (0, Cursor(3, "following"), ("committed",) * 3, False),
        # Nobody executes what was aborted, nor the id of a fix.
        (1, Cursor(3, "following"), ("committed", "aborted", "aborted"), True),
        (1, Cursor(3, "following"), ("committed", "force", "aborted"), True),
        (1, Cursor(3, "following"), ("committed", "aborted", "committed"), False),
        # An operator let this node pass it.
        (1, Cursor(2, "following", skipped=(2,)), ("committed", "committed"), True),
        # Of a history that the cluster has given up.
        (4, Cursor(3, "following"), ("committed",) * 3, False),
        (0, Cursor(0, "following"), (), True),
    ],
)
def test_what_covers_a_cursor(
    as_of: int, cursor: Cursor, states: tuple[str, ...], expected: bool
) -> None:
    host = LoneHost(Hosts(), "n1")
    fill(host, *states)
    assert covers(host.view(), cursor, as_of) is expected


def test_trimmed_records_do_not_count_as_aborted() -> None:
    host = LoneHost(Hosts(), "n1")
    fill(host, "aborted", "committed", oldest=7)
    assert covers(host.view(), Cursor(7, "following"), 6)
    assert not covers(host.view(), Cursor(7, "following"), 5)


# --- admission ------------------------------------------------------------------------------------


async def admitted(host: LoneHost, cursor: int, *boxes: Box) -> tuple[States, tuple[str, ...]]:
    states = States(host)
    for box in boxes:
        states.add(box)
    async with states.lock:
        lost = await states.admit(host.view, Cursor(cursor, "following"))
    return states, lost


def test_a_state_that_lost_its_data_is_noticed_after_a_restart() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"])
        box = Box()
        states, lost = await admitted(hosts["n1"], 0, box)
        assert lost == ()
        fill(hosts["n1"], "committed", "committed")
        await states.passed(2)
        assert box.at == 2
        # A restart that loses nothing.
        states, lost = await admitted(hosts.restart("n1"), 2, Box(at=2))
        assert (lost, states.settled) == ((), True)
        # And one that loses the state alone; the file of known names is there.
        states, lost = await admitted(hosts.restart("n1"), 2, Box(at=0))
        assert (lost, states.settled) == (("box",), False)

    run(body())


def test_a_wiped_directory_is_noticed_too() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"], "committed")
        _, lost = await admitted(hosts["n1"], 1, Box(at=1))
        assert lost == ()
        hosts["n1"].disk.wipe()
        _, lost = await admitted(hosts.restart("n1"), 1, Box(at=0))
        assert lost == ("box",)

    run(body())


def test_a_state_that_is_new_on_a_node_is_not_lost() -> None:
    """A plugin that is added to a running cluster must not put all of its nodes into a gap."""

    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"], "committed", "committed")
        _, lost = await admitted(hosts["n1"], 2)
        assert lost == ()
        new = Box("new", at=0)
        states, lost = await admitted(hosts.restart("n1"), 2, new)
        assert (lost, new.at, states.settled) == ((), 2, True)
        # From now on it is known.
        _, lost = await admitted(hosts.restart("n1"), 2, Box("new", at=0))
        assert lost == ("new",)

    run(body())


def test_data_of_an_earlier_history_is_the_beginning_of_one_without_calls() -> None:
    """The cluster was founded anew, and the plugin's directory is still there."""

    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"])
        box = Box(at=50, item=b"kept")
        states, lost = await admitted(hosts["n1"], 0, box)
        assert (lost, states.settled, box.at, box.items) == ((), True, 0, {"item": b"kept"})
        # Ahead by the very first call, which was running when the node died: as good.
        fill(hosts["n1"], "committed")
        box = Box(at=1)
        states, lost = await admitted(hosts.restart("n1"), 0, box)
        assert (lost, states.settled, box.told) == ((), True, [])

    run(body())


def test_a_state_that_knows_no_id_is_trusted() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"], "committed")
        box = Box(at=None)
        states, lost = await admitted(hosts["n1"], 1, box)
        assert (lost, states.settled) == ((), True)

    run(body())


def test_only_admitted_states_are_told_and_none_is_dumped_before_all_are() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"], "committed")
        early, late = Box("early", at=1), Box("late", at=0)
        states, _ = await admitted(hosts["n1"], 1, early)
        added = []
        states.on_added = lambda: added.append(1)
        states.add(late)
        assert added == [1]
        async with states.lock:
            await states.passed(2)
            assert (early.told, late.told) == ([2], [])
            with pytest.raises(StatesNotReady, match="late"):
                await states.dump()
        assert late.at == 0

    run(body())


def test_an_operator_declares_what_is_here_to_be_as_of_an_id() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"], "committed", "committed")
        box = Box(at=1)
        hosts["n1"].state.tables["meta"]["oldest"] = 3
        states, lost = await admitted(hosts["n1"], 2, box)
        assert lost == ("box",)
        async with states.lock:
            await states.adopt(2)
        assert (box.at, states.settled, states.told) == (2, True, 2)
        # It is durable: the next life finds nothing amiss.
        _, lost = await admitted(hosts.restart("n1"), 2, Box(at=2))
        assert lost == ()

    run(body())


def test_a_dump_is_sorted_copied_and_limited() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        fill(hosts["n1"])
        box = Box("b", items=b"x" * 10, other=b"y")
        states, _ = await admitted(hosts["n1"], 0, box, Box("a"))
        dump = await states.dump()
        assert dump == {"a": {}, "b": {"items": b"x" * 10, "other": b"y"}}
        assert list(dump) == ["a", "b"]
        box.items["items"] = b""
        assert dump["b"]["items"] == b"x" * 10
        with pytest.raises(StateTooLarge, match="keyspace"):
            await states.dump(bytes_max=5)
        with pytest.raises(ValueError, match="already"):
            states.add(Box("a"))

    run(body())


@pytest.mark.parametrize("how", ["load", "adopt"])
def test_a_state_that_is_added_meanwhile_has_no_copy_and_is_not_known(how: str) -> None:
    host = LoneHost(Hosts(), "n1")
    late = Box("late", at=0)

    class Slow(Box):
        async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
            states.add(late)
            await super().load(items, as_of)

        async def passed(self, id: int) -> None:
            states.add(late)
            await super().passed(id)

    states = States(host)
    states.add(Slow("early"))

    async def body() -> None:
        if how == "load":
            await states.load({"early": {"k": b"v"}}, 2)
        else:
            await states.adopt(2)
        assert late.told == []
        with pytest.raises(StatesNotReady, match="the state of late yet"):
            await states.dump()
        # It is new here, so it has lost nothing.
        fill(host, "committed", "committed")
        assert await states.admit(host.view, Cursor(2, "following")) == ()
        assert late.at == 2

    run(body())
