"""The authority's directory: what `raftkv certs` makes, replaces and refuses."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raftkv.config import TlsFiles
from raftkv.errors import CertificateError
from raftkv.security.authority import AUTHORITY_DAYS, NODE_DAYS
from raftkv.security.credentials import load
from raftkv.security.directory import CertificateDirectory, certify
from raftkv.security.identity import CertificateIdentity

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def certs(tmp_path: Path) -> CertificateDirectory:
    made = CertificateDirectory(tmp_path / "certs")
    made.init("orders")
    return made


def files(certs: CertificateDirectory, name: str) -> TlsFiles:
    folder = Path(certs.path)
    return TlsFiles(
        ca=str(folder / "ca.pem"),
        certificate=str(folder / f"{name}.pem"),
        key=str(folder / f"{name}.key"),
    )


def loaded(certs: CertificateDirectory, name: str) -> CertificateIdentity:
    """The identity of a node's files; raises if the node could not start with them."""
    found = files(certs, name)
    return load(found.ca, found.certificate, found.key).identity


def contents(certs: CertificateDirectory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(certs.path).iterdir()}


def test_a_node_can_start_with_what_was_issued(certs: CertificateDirectory) -> None:
    (made,) = certs.issue("a", ["10.0.0.1", "a.example.org", "::1", "[fe80::1]"])
    assert loaded(certs, "a") == CertificateIdentity("orders", "a")
    assert made.hosts == ["a.example.org", "10.0.0.1", "::1", "fe80::1"]
    assert (made.cluster, made.name, made.replicant_only) == ("orders", "a", False)
    assert made.days_left == NODE_DAYS - 1
    (authority,) = certs.show("ca")
    assert authority.days_left == AUTHORITY_DAYS - 1
    assert made.issuer == authority.fingerprint == authority.issuer


def test_keys_are_for_their_owner_only(certs: CertificateDirectory) -> None:
    certs.issue("a", [])
    certs.renew("a")
    certs.renew_authority()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(certs.path).iterdir()}
    assert modes == {"ca.key": 0o600, "a.key": 0o600, "ca.pem": 0o644, "a.pem": 0o644}
    assert stat.S_IMODE(os.stat(certs.path).st_mode) == 0o700


def test_nothing_is_overwritten_without_force(certs: CertificateDirectory) -> None:
    certs.issue("a", [])
    before = contents(certs)
    with pytest.raises(CertificateError, match="--force"):
        certs.init("orders")
    with pytest.raises(CertificateError, match="--force"):
        certs.issue("a", [])
    assert contents(certs) == before
    certs.issue("a", ["127.0.0.1"], force=True)
    certs.init("orders", force=True)
    after = contents(certs)
    assert all(after[name] != before[name] for name in before)


def test_renewal_keeps_the_identity_and_changes_the_key(certs: CertificateDirectory) -> None:
    certs.issue("r1", ["127.0.0.1", "r1"], replicant_only=True)
    before = contents(certs)
    (made,) = certs.renew("r1", days=7)
    assert (made.name, made.replicant_only, made.days_left) == ("r1", True, 6)
    assert made.hosts == ["r1", "127.0.0.1"]
    after = contents(certs)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"r1.pem", "r1.key"}
    assert loaded(certs, "r1").replicant_only


def test_an_authority_is_replaced_in_steps(certs: CertificateDirectory) -> None:
    certs.issue("a", [])
    certs.issue("b", [])
    old = certs.show("ca")
    new, still = certs.renew_authority()
    assert [still] == old
    assert new.fingerprint != still.fingerprint
    # In between, certificates of either authority are good.
    certs.renew("a")
    assert loaded(certs, "a").name == "a"
    assert loaded(certs, "b").name == "b"
    with pytest.raises(CertificateError, match=r"b\.pem would be worthless"):
        certs.drop_authorities()
    assert len(certs.show("ca")) == 2
    certs.renew("b")
    assert certs.drop_authorities() == [new]
    assert {each.issuer for each in certs.show()} == {new.fingerprint}
    assert loaded(certs, "b").name == "b"


def test_the_old_authority_is_dropped_by_force(certs: CertificateDirectory) -> None:
    certs.issue("a", [])
    certs.renew_authority()
    certs.drop_authorities(force=True)
    (node,) = certs.show("a")
    assert node.issuer is None
    assert node.problem == "no authority in ca.pem has signed it"
    with pytest.raises(CertificateError, match="not signed by an authority"):
        loaded(certs, "a")


def test_a_crash_between_bundle_and_key_leaves_an_authority_that_issues(
    certs: CertificateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CertificateDirectory._write

    def crash(self: CertificateDirectory, name: str, content: bytes, *, replace: bool) -> None:
        if name == "ca.key":
            raise KeyboardInterrupt
        write(self, name, content, replace=replace)

    with monkeypatch.context() as patch:
        patch.setattr(CertificateDirectory, "_write", crash)
        with pytest.raises(KeyboardInterrupt):
            certs.renew_authority()
    certs.issue("a", [])
    assert loaded(certs, "a").name == "a"
    assert certs.show("ca")[0].problem is not None


def test_a_write_that_fails_leaves_the_old_file(
    certs: CertificateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs.issue("a", [])
    before = contents(certs)

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(CertificateError, match="cannot be written: No space left"):
            certs.renew("a")
    assert contents(certs) == before


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b", "-a", "a" * 64, "é"])
def test_bad_names_are_refused(certs: CertificateDirectory, name: str) -> None:
    before = contents(certs)
    with pytest.raises(CertificateError, match="no name of a node"):
        certs.issue(name, [])
    with pytest.raises(CertificateError, match="no name of a node"):
        certs.renew(name)
    assert contents(certs) == before


@pytest.mark.parametrize("host", ["", "a:1", "a b", "-a", "a..b", "x" * 64, "é.example"])
def test_bad_hosts_are_refused(certs: CertificateDirectory, host: str) -> None:
    with pytest.raises(CertificateError, match="is no host"):
        certs.issue("a", [host])


def test_the_authority_has_a_name_that_no_node_can_take(certs: CertificateDirectory) -> None:
    with pytest.raises(CertificateError, match="cannot be the name of a node"):
        certs.issue("ca", [], force=True)


def test_a_key_beside_another_certificate_is_shown(certs: CertificateDirectory) -> None:
    certs.issue("a", [])
    certs.issue("b", [])
    os.replace(files(certs, "b").key, files(certs, "a").key)
    (node,) = certs.show("a")
    assert node.problem is not None
    assert "key of another certificate" in node.problem


def test_a_file_that_cannot_be_read_hides_no_other(certs: CertificateDirectory) -> None:
    certs.issue("b", [])
    for file in ("a.pem", "not a node.pem"):
        (Path(certs.path) / file).write_bytes(b"garbage")
    shown = certs.show()
    assert [each.name for each in shown] == [None, "a", "b", "not a node"]
    assert [each.problem is None for each in shown] == [True, False, True, False]
    certs.renew_authority()
    certs.renew("b")
    assert len(certs.drop_authorities()) == 1


def test_what_a_killed_process_left_is_in_nobody_s_way(certs: CertificateDirectory) -> None:
    left = Path(certs.path) / f"a.key.{os.getpid()}.new"
    left.write_bytes(b"half")
    left.chmod(0o644)
    certs.issue("a", [])
    assert loaded(certs, "a").name == "a"
    assert stat.S_IMODE(os.stat(files(certs, "a").key).st_mode) == 0o600
    assert not left.exists()


def test_certify_keeps_what_is_there(tmp_path: Path) -> None:
    path = str(tmp_path / "certs")
    certify(path, "dev", ["a"], ["127.0.0.1"])
    before = contents(CertificateDirectory(path))
    made = certify(path, "dev", ["a", "b"], ["127.0.0.1"])
    after = contents(CertificateDirectory(path))
    assert {name: after[name] for name in before} == before
    assert set(made) == {"a", "b"}


# The command -------------------------------------------------------------------------------------


def raftkv(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "raftkv", "certs", *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )
    assert done.returncode == code, done.stderr
    return (done.stdout if code == 0 else done.stderr).decode()


def test_the_command_makes_certificates_and_shows_them(tmp_path: Path) -> None:
    folder = str(tmp_path / "certs")
    raftkv("init", "--dir", folder, "--cluster", "orders")
    issued = json.loads(
        raftkv("issue", "a", "--host", "10.0.0.1", "--host", "a", "--dir", folder, "--json")
    )
    (made,) = issued["certificates"]
    assert (made["name"], made["cluster"], made["hosts"]) == ("a", "orders", ["a", "10.0.0.1"])
    table = raftkv("show", "--dir", folder)
    assert re.search(r"a\.pem +a +a, 10\.0\.0\.1 .*" + made["fingerprint"], table)
    assert "authority of orders" in table
    error = raftkv("issue", "a", "--dir", folder, code=2)
    assert error.startswith("error: ")
    assert error.count("\n") == 1
