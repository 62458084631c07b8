"""forced_recovery.py: one survivor becomes a cluster, whatever happens on the way."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from raftkv.config import Limits, NodeConfig
from raftkv.errors import ConfigError, DamagedLog, DirectoryLocked, WrongDataDirectory
from raftkv.raft.forced_recovery import Survey, force_new_cluster, survey
from raftkv.raft.identity import DataDirectory
from raftkv.raft.membership import Configuration
from raftkv.raft.recovery import recover
from raftkv.raft.wal import Wal
from raftkv.testing.disk import SimDisk
from tests.fakes import FakeRuntime
from tests.raft.harness import batch, configuration_entry, sync

ADDRESS = "127.0.0.1:7101"
CONFIG = NodeConfig(
    name="a", dir="data", peer_address=ADDRESS, cores={"a": ADDRESS}, cluster="main", plugins=()
)


def make(disk: SimDisk, *, voters: tuple[str, ...] = ("b-1", "c-1"), joined: bool = True) -> str:
    """A data directory of `a`, which votes beside `voters`; returns its raft id."""
    runtime: Any = FakeRuntime(disk)
    directory = DataDirectory(CONFIG, runtime)
    if joined:
        directory.join("c0ffee")
    me = directory.identity.raft_id
    wal = Wal.open(disk, "data/wal")
    if joined:
        configuration = Configuration((me, *voters), ("d-1",), ("e-1",))
        wal.append(configuration_entry(configuration), 2, 1)
        for index in range(3, 8):
            wal.append(batch(f"{index}"), index, 4)
        wal.set_hard_state(6, "b-1")
        sync(wal)
    wal.close()
    directory.close()
    return me


def forced(disk: SimDisk, seed: int = 5) -> Survey:
    directory = DataDirectory.existing(disk, "data")
    try:
        return force_new_cluster(disk, directory, random.Random(seed).randbytes)
    finally:
        directory.close()


def looked_at(disk: SimDisk) -> Survey:
    directory = DataDirectory.existing(disk, "data")
    try:
        return survey(disk, directory)
    finally:
        directory.close()


def test_the_survey_says_what_the_directory_holds() -> None:
    disk = SimDisk(random.Random(1))
    me = make(disk)
    before = looked_at(disk)
    assert (before.name, before.cluster, before.cluster_id) == ("a", "main", "c0ffee")
    assert (before.raft_id, before.epoch, before.interrupted) == (me, "0", False)
    assert (before.term, before.last_index, before.last_term) == (6, 7, 4)
    assert (before.snapshot_index, before.uncertain_entries) == (1, 6)
    assert (before.voters, before.learners, before.voted) == (["a", "b", "c"], ["d"], True)
    assert looked_at(disk) == before, "looking changes nothing"


def test_the_survivor_is_the_only_voter_under_a_new_id_in_a_new_epoch_and_term() -> None:
    disk = SimDisk(random.Random(1))
    me = make(disk)
    after = forced(disk)
    disk.crash()
    assert looked_at(disk) == after
    assert after.raft_id != me
    assert after.epoch.startswith("1-")
    assert (after.voters, after.learners, after.last_index, after.term) == (["a"], [], 8, 7)
    found = recover(disk, "data", Limits(), fsync=True, belongs=True)
    assert found.configurations.latest.voters == (after.raft_id,)
    removed = found.configurations.latest.removed
    # Not the learner: if it is a replicant whose promotion was under way, it is to copy again.
    assert removed == ("e-1", *sorted((me, "b-1", "c-1")))
    assert (found.wal.vote, found.wal.entries(3, 7)[-1].payload) == (None, batch("7"))
    found.wal.close()


def test_two_recoveries_in_turn_are_two_epochs() -> None:
    disk = SimDisk(random.Random(1))
    make(disk)
    first, second = forced(disk, 1), forced(disk, 2)
    assert (first.epoch[:2], second.epoch[:2]) == ("1-", "2-")
    assert first.raft_id != second.raft_id
    assert second.last_index == first.last_index + 1


def after_a_start(disk: SimDisk) -> str:
    """Which directory a node would start from, if it starts."""
    runtime: Any = FakeRuntime(disk)
    try:
        directory = DataDirectory(CONFIG, runtime)
    except WrongDataDirectory as error:
        told = "Run it again: raftkv recover --dir data" in str(error)
        return "between" if told and looked_at(disk).interrupted else str(error)
    directory.close()
    return "new" if directory.identity.epoch.number else "old"


def test_a_crash_anywhere_leaves_the_old_one_the_new_one_or_says_run_it_again() -> None:
    seen = set()
    for changes in range(60):
        disk = SimDisk(random.Random(changes))
        me = make(disk)
        disk.changes_left = changes
        try:
            forced(disk)
            done = True
        except OSError:
            done = False
        disk.changes_left = None
        disk.crash()
        outcome = after_a_start(disk)
        assert outcome == "new" or not done
        seen.add(outcome)
        state = looked_at(disk)
        if state.epoch == "0":
            state = forced(disk)
        assert (state.voters, state.last_index, state.interrupted) == (["a"], 8, False)
        assert state.raft_id != me
    assert seen == {"old", "between", "new"}


def test_a_directory_in_use_is_left_alone() -> None:
    disk = SimDisk(random.Random(1))
    make(disk)
    runtime: Any = FakeRuntime(disk)
    node = DataDirectory(CONFIG, runtime)
    with pytest.raises(DirectoryLocked, match="Stop that node first"):
        DataDirectory.existing(disk, "data")
    node.close()


def test_what_cannot_be_recovered_from_says_so() -> None:
    disk = SimDisk(random.Random(1))
    with pytest.raises(WrongDataDirectory, match="no data directory"):
        DataDirectory.existing(disk, "data")
    make(disk, joined=False)
    with pytest.raises(ConfigError, match="never belonged to a cluster"):
        forced(disk)
    runtime: Any = FakeRuntime(disk)
    config = msgspec.structs.replace(
        CONFIG, name="r", dir="other", role="replicant", peer_address="127.0.0.1:7999"
    )
    DataDirectory(config, runtime).close()
    with pytest.raises(ConfigError, match="replicant 'r'"):
        force_new_cluster(disk, DataDirectory.existing(disk, "other"), random.randbytes)


def test_a_log_without_configuration_or_without_files_is_refused() -> None:
    disk = SimDisk(random.Random(1))
    runtime: Any = FakeRuntime(disk)
    directory = DataDirectory(CONFIG, runtime)
    directory.join("c0ffee")
    with pytest.raises(DamagedLog, match="the log is gone"):
        survey(disk, directory)
    Wal.open(disk, "data/wal").close()
    with pytest.raises(ConfigError, match="received nothing"):
        force_new_cluster(disk, directory, random.randbytes)
    assert directory.identity.recovery is None
