"""`raftkv recover`: says what it found, asks, and does it once."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from raftkv.config import NodeConfig
from raftkv.raft.identity import DataDirectory
from raftkv.raft.membership import Configuration
from raftkv.raft.wal import Wal
from raftkv.runtime import OsFiles
from tests.cli.test_main import one_line_error, raftkv
from tests.fakes import FakeRuntime
from tests.raft.harness import batch, configuration_entry, sync

ADDRESS = "127.0.0.1:7101"
CONFIG = NodeConfig(
    name="a", dir="data", peer_address=ADDRESS, cores={"a": ADDRESS}, cluster="main", plugins=()
)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """The data directory of a core that votes beside two others."""
    path = str(tmp_path / "data")
    runtime = FakeRuntime()
    runtime.files = OsFiles()
    config = msgspec.structs.replace(CONFIG, dir=path)
    directory = DataDirectory(config, runtime)  # type: ignore[arg-type]
    directory.join("c0ffee")
    wal = Wal.open(OsFiles(), f"{path}/wal")
    me = directory.identity.raft_id
    wal.append(configuration_entry(Configuration((me, "b-1", "c-1"))), 2, 1)
    wal.append(batch("x"), 3, 2)
    sync(wal)
    wal.close()
    directory.close()
    return path


def test_a_dry_run_says_what_is_there_and_what_may_be_lost(data: str) -> None:
    done = raftkv("recover", "--dir", data, "--dry-run")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "voters           a, b, c" in text
    assert "last entry       3, of term 2" in text
    assert "every write behind entry 3" in text
    document = json.loads(raftkv("recover", "--dir", data, "--dry-run", "--json").stdout)
    assert (document["epoch"], document["uncertain_entries"]) == ("0", 2)


def test_it_is_done_once_it_is_confirmed(data: str) -> None:
    at = ("recover", "--dir", data, "--force-new-cluster")
    refused = raftkv(*at, stdin=b"a\n")
    assert refused.returncode == 2
    assert b"add --yes" in refused.stderr
    assert json.loads(raftkv(*at, "--dry-run", "--json").stdout)["epoch"] == "0"
    done = raftkv(*at, "--yes", "--json")
    after = json.loads(done.stdout)
    assert (after["voters"], after["epoch"][:2], after["last_index"]) == (["a"], "1-", 4)
    again = raftkv(*at, "--yes")
    assert b"in epoch 2-" in again.stdout
    assert b"raftkv member add" in again.stdout


def test_a_directory_of_something_else_is_one_line(tmp_path: Path) -> None:
    done = raftkv("recover", "--dir", str(tmp_path), "--force-new-cluster", "--yes")
    assert "is no data directory" in one_line_error(done, 3)


def test_without_a_decision_nothing_happens(data: str) -> None:
    assert "say --dry-run" in one_line_error(raftkv("recover", "--dir", data), 2)
