"""Directories that another user prepared are refused, and no link in them is followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster
from raftkv.cli.layout import ClusterShape, lay_out
from raftkv.errors import ConfigError
from raftkv.security import ownership
from raftkv.security.directory import CertificateDirectory
from raftkv.security.ownership import make_directory, open_own, require_own

COMMAND = ["/bin/false"]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def laid_out(tmp_path: Path) -> Path:
    directory = tmp_path / "cluster"
    make_directory(str(directory))
    lay_out(str(directory), ClusterShape(cores=1, replicants=0), None)
    return directory


def test_what_is_made_is_its_owners_alone(laid_out: Path) -> None:
    os.umask(0o002)
    assert mode_of(laid_out) == mode_of(laid_out / "core1") == 0o700
    assert mode_of(laid_out / "cluster.json") == mode_of(laid_out / "core1" / "node.toml") == 0o600


@pytest.mark.parametrize("which", [".", "core1", "core1/data"])
def test_cluster_up_refuses_what_others_may_write(laid_out: Path, which: str) -> None:
    (laid_out / "core1" / "data").mkdir(mode=0o700)
    (laid_out / which).chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        DevCluster(laid_out, command=COMMAND).up(timeout_s=1)


@pytest.mark.parametrize("name", ["core1/pid", "core1/log", "lock"])
def test_cluster_up_follows_no_link(laid_out: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (laid_out / name).symlink_to(victim)
    with pytest.raises(ConfigError, match="is a link"):
        DevCluster(laid_out, command=COMMAND).up(timeout_s=1)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["core1", "core1/data"])
def test_cluster_up_uses_no_directory_behind_a_link(
    laid_out: Path, tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if (laid_out / name).exists():
        (laid_out / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (laid_out / name).symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="is a link"):
        DevCluster(laid_out, command=COMMAND).up(timeout_s=1)


def test_laying_out_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "cluster"
    (directory / "core1").mkdir(parents=True)
    (directory / "core1" / "node.toml").symlink_to(victim)
    with pytest.raises(ConfigError, match="is a link"):
        DevCluster(directory, command=COMMAND).create(cores=1, replicants=0)
    assert victim.read_text() == "precious"


def test_certificates_are_not_made_where_others_may_write(tmp_path: Path) -> None:
    directory = tmp_path / "certs"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        CertificateDirectory(directory).init("c")
    directory.chmod(0o700)
    CertificateDirectory(directory).init("c")
    directory.chmod(0o702)
    with pytest.raises(ConfigError, match="chmod go-w"):
        CertificateDirectory(directory).issue("n", ["127.0.0.1"])


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.lstat(tmp_path).st_uid
    require_own(str(tmp_path))
    monkeypatch.setattr(ownership.os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(ownership, "_ROOT", -1)
    with pytest.raises(ConfigError, match=f"belongs to the user with the number {owner}"):
        require_own(str(tmp_path))


def test_a_group_of_this_process_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o775)
    require_own(str(tmp_path))
    monkeypatch.setattr(ownership.os, "getegid", lambda: -1)
    monkeypatch.setattr(ownership.os, "getgroups", list)
    with pytest.raises(ConfigError, match="mode 0775"):
        require_own(str(tmp_path))


def test_an_ordinary_failure_to_open_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_own(str(tmp_path / "no" / "file"), os.O_WRONLY | os.O_CREAT)
