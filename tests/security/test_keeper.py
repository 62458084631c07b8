"""keeper.py: certificates replaced, refused and warned of while a node runs, on a fake clock."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv.config import NodeConfig, TlsFiles
from raftkv.errors import CertificateError
from raftkv.security.channel import Channel, ChannelBroken
from raftkv.security.keeper import EXPIRY_WARNING_DAYS, POLL_S, Keeper
from tests.fakes import FakeRuntime
from tests.security import pki

SIGNER = pki.authority()


def config(files: TlsFiles, **changes: Any) -> NodeConfig:
    made = NodeConfig(
        name="core1",
        dir="/d",
        peer_address="127.0.0.1:1",
        cores={"core1": "127.0.0.1:1"},
        tls=files,
    )
    return msgspec.structs.replace(made, **changes)


class Runtime(FakeRuntime):
    """Its wall clock begins now: certificates are dated by the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.wall = int(pki.now().timestamp() * 1000)

    def pass_polls(self, count: int) -> None:
        """Let `count` looks at the files happen, and whatever follows from each."""
        for _ in range(count):
            self.advance(POLL_S)
            self.settle()


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pki.write(tmp_path, pki.node(SIGNER, "core1"), SIGNER)
    return tmp_path


@pytest.fixture
def keeper(folder: Path, runtime: Runtime) -> Iterator[Keeper]:
    made = Keeper(config(files_in(folder)), runtime)  # type: ignore[arg-type]
    made.start()
    runtime.run()
    yield made
    made.stop()
    runtime.run()


def files_in(folder: Path) -> TlsFiles:
    return TlsFiles(
        ca=str(folder / "ca.pem"),
        certificate=str(folder / "node.pem"),
        key=str(folder / "node.key"),
    )


def replace(folder: Path, name: str = "core1", *, days: int = 90) -> str:
    """Another certificate in the node's files; its serial number."""
    made = pki.node(SIGNER, name, valid_days=days)
    pki.write(folder, made, SIGNER)
    return f"{made.certificate.serial_number:x}"


def test_new_files_are_taken_once_they_stand_still(
    keeper: Keeper, runtime: Runtime, folder: Path
) -> None:
    old = keeper.current.serial
    runtime.pass_polls(3)
    assert keeper.current.serial == old
    new = replace(folder)
    runtime.pass_polls(1)
    assert keeper.current.serial == old, "another of the three files may be about to change"
    runtime.pass_polls(1)
    assert keeper.current.serial == new
    assert keeper.status().fault is None


def test_a_file_that_changes_at_every_look_is_waited_for(
    keeper: Keeper, runtime: Runtime, folder: Path
) -> None:
    old = keeper.current.serial
    for _ in range(4):
        new = replace(folder)
        runtime.pass_polls(1)
        assert keeper.current.serial == old
    runtime.pass_polls(1)
    assert keeper.current.serial == new


@pytest.mark.parametrize("what", ["garbage", "another name", "missing", "authority"])
def test_a_broken_file_is_said_once_and_the_old_stays(
    what: str, keeper: Keeper, runtime: Runtime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = keeper.current
    if what == "garbage":
        (folder / "node.pem").write_bytes(b"garbage")
    elif what == "another name":
        replace(folder, "core2")
    elif what == "missing":
        (folder / "node.key").unlink()
    else:
        pki.write(folder, pki.node(SIGNER, "core1"), pki.authority())
    with caplog.at_level(logging.INFO):
        runtime.pass_polls(6)
    assert keeper.current is before
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "uses its former certificate" in record.message
    fault = keeper.status().fault
    assert fault is not None
    assert fault in record.message
    # Channels are still made with what is in force.
    assert isinstance(keeper.channel(server_side=True), Channel)
    mended = replace(folder)
    runtime.pass_polls(2)
    assert keeper.current.serial == mended
    assert keeper.status().fault is None


def test_a_bundle_of_two_authorities_is_taken(
    keeper: Keeper, runtime: Runtime, folder: Path
) -> None:
    pki.write(folder, pki.node(SIGNER, "core1"), pki.authority(), SIGNER)
    runtime.pass_polls(2)
    assert len(keeper.status().authorities) == 2


def test_expiry_is_warned_of_once_a_day(
    runtime: Runtime, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replace(folder, days=EXPIRY_WARNING_DAYS)
    keeper = Keeper(config(files_in(folder)), runtime)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        keeper.start()
        runtime.run()
        runtime.pass_polls(10)
        (record,) = caplog.records
        assert "ends in 29 days" in record.message
        assert "raftkv certs renew core1" in record.message
        runtime.now += 86_400
        runtime.wall += 86_400_000
        runtime.pass_polls(2)
    assert len(caplog.records) == 2
    assert "ends in 28 days" in caplog.records[1].message
    assert keeper.status().days_left == 28
    keeper.stop()
    runtime.run()


def test_a_good_certificate_is_not_warned_of(
    keeper: Keeper, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        runtime.pass_polls(3)
    assert not caplog.records
    status = keeper.status()
    assert status.days_left == 89
    end = datetime.datetime.fromisoformat(status.not_after)
    assert end == keeper.current.not_after


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "core2", "cores": {"core2": "127.0.0.1:1"}}, "this node is 'core2'"),
        ({"cluster": "orders"}, "in 'orders'"),
    ],
)
def test_the_certificate_of_another_node_is_refused_at_the_start(
    folder: Path, runtime: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CertificateError, match=said):
        Keeper(config(files_in(folder), **changes), runtime)


def test_a_core_cannot_start_as_replicant_only(tmp_path: Path, runtime: Any) -> None:
    files = pki.write(tmp_path, pki.node(SIGNER, "core1", replicant_only=True), SIGNER)
    with pytest.raises(
        CertificateError, match="for a replicant only.* certs issue [a-z0-9]+ --force"
    ):
        Keeper(config(files), runtime)
    role: Any = "replicant"
    Keeper(config(files, role=role, cores={"core2": "127.0.0.1:2"}), runtime)


def test_a_peer_of_another_cluster_is_named(keeper: Keeper, tmp_path: Path) -> None:
    server = keeper.channel(server_side=True)
    files = pki.write(tmp_path / "other", pki.node(SIGNER, "core2", "orders"), SIGNER)
    client = Channel(pki.client(files), server_side=False)
    client.start()
    server.receive(client.take())
    client.receive(server.take())
    server.receive(client.take())
    assert server.established
    with pytest.raises(ChannelBroken, match="'core2' in the cluster 'orders', this is 'raftkv'"):
        keeper.identify(server)


def test_the_stamp_sees_a_replacement_of_the_same_size_and_time(folder: Path) -> None:
    from raftkv.security.credentials import stamp

    files = files_in(folder)
    before = stamp(files.ca, files.certificate, files.key)
    status = os.stat(files.key)
    copy = Path(files.key + ".new")
    copy.write_bytes(Path(files.key).read_bytes())
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.rename(copy, files.key)
    assert stamp(files.ca, files.certificate, files.key) != before
