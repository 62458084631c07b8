"""credentials.py: whatever is wrong with a node's files is said before they come into force."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from raftkv.config import TlsFiles
from raftkv.errors import CertificateError, ConfigError
from raftkv.security import credentials
from raftkv.security.authority import to_pem
from raftkv.security.channel import Contexts, contexts
from raftkv.security.credentials import Credentials, load
from tests.security import pki


def read(files: TlsFiles) -> Credentials:
    return load(files.ca, files.certificate, files.key)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    signer = pki.authority()
    return pki.write(tmp_path, pki.node(signer, "core1"), signer)


def test_good_files_give_the_identity_and_the_dates(tmp_path: Path) -> None:
    old, new = pki.authority(valid_days=10), pki.authority(valid_days=20)
    made = pki.node(old, "core1", valid_days=5)
    found = read(pki.write(tmp_path, made, new, old))
    assert found.identity == (pki.CLUSTER, "core1", False)
    assert found.not_after == made.certificate.not_valid_after_utc
    assert [(each.not_after - pki.now()).days for each in found.authorities] == [19, 9]


def refused(files: TlsFiles) -> str:
    with pytest.raises(CertificateError) as caught:
        read(files)
    assert isinstance(caught.value, ConfigError)
    return str(caught.value)


@pytest.mark.parametrize("which", ["ca", "certificate", "key"])
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nx"])
def test_a_file_that_is_missing_or_damaged_is_named(
    files: TlsFiles, which: str, content: bytes | None
) -> None:
    path = Path(getattr(files, which))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    said = refused(files)
    assert str(path) in said
    assert "raftkv certs" in said


def test_a_file_that_is_far_too_large_is_not_parsed(files: TlsFiles) -> None:
    with open(files.ca, "ab") as file:
        file.truncate(credentials.FILE_BYTES_MAX + 1)
    assert "exceeds" in refused(files)


def test_the_key_of_another_certificate(tmp_path: Path, files: TlsFiles) -> None:
    Path(files.key).write_bytes(to_pem(pki.authority().key))
    assert "is not the key of" in refused(files)


def test_an_encrypted_key(files: TlsFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    Path(files.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "encrypted with a password" in refused(files)


def test_an_expired_certificate(tmp_path: Path) -> None:
    signer = pki.authority()
    made = pki.node(signer, "core1", made=pki.now() - pki.days(3), valid_days=2)
    assert "expired on" in refused(pki.write(tmp_path, made, signer))


def test_a_certificate_from_the_future_accuses_the_clock(tmp_path: Path) -> None:
    signer = pki.authority()
    made = pki.node(signer, "core1", made=pki.now() + pki.days(3))
    assert "correct the clock" in refused(pki.write(tmp_path, made, signer))


def test_a_stranger_s_authority(tmp_path: Path) -> None:
    assert "not signed by an authority" in refused(
        pki.write(tmp_path, pki.node(pki.authority(), "core1"), pki.authority())
    )


def test_only_expired_authorities(tmp_path: Path) -> None:
    signer = pki.authority(made=pki.now() - pki.days(3), valid_days=2)
    made = pki.node(pki.authority(), "core1")
    assert "every authority" in refused(pki.write(tmp_path, made, signer))


def test_an_expired_authority_beside_a_good_one_does_not_matter(tmp_path: Path) -> None:
    expired = pki.authority(made=pki.now() - pki.days(3), valid_days=2)
    signer = pki.authority()
    found = read(pki.write(tmp_path, pki.node(signer, "core1"), expired, signer))
    assert len(found.authorities) == 1


def test_a_node_s_certificate_among_the_authorities(tmp_path: Path) -> None:
    signer = pki.authority()
    made = pki.node(signer, "core1")
    assert "no authority" in refused(pki.write(tmp_path, made, signer, made))


def test_a_certificate_without_an_identity(tmp_path: Path) -> None:
    signer = pki.authority()
    assert "no certificate of a node" in refused(pki.write(tmp_path, signer, signer))


def test_a_certificate_with_two_identities(tmp_path: Path) -> None:
    signer, key = pki.authority(), ec.generate_private_key(ec.SECP256R1())
    names = [x509.UniformResourceIdentifier(f"raftkv://raftkv/core{n}") for n in (1, 2)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(pki.now() - pki.days(1))
        .not_valid_after(pki.now() + pki.days(1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer.key, hashes.SHA256())
    )
    made = signer._replace(certificate=certificate, key=key)
    assert "names 2 nodes" in refused(pki.write(tmp_path, made, signer))


def test_a_key_that_others_may_read_is_warned_of(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        read(files)
        assert not caplog.records
        os.chmod(files.key, 0o640)
        read(files)
    assert [record.message for record in caplog.records] == [
        f"{files.key} has mode 0640: others on this machine may read the key"
    ]


def test_a_file_replaced_during_the_reading_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = pki.authority()
    files = pki.write(tmp_path, pki.node(signer, "core1"), signer)
    real, fresh = contexts, pki.node(signer, "core1")
    calls = []

    def replaced_meanwhile(*arguments: str) -> Contexts:
        calls.append(arguments)
        if len(calls) == 1:
            pki.write(tmp_path, fresh, signer)
        return real(*arguments)

    monkeypatch.setattr(credentials, "contexts", replaced_meanwhile)
    assert read(files).serial == f"{fresh.certificate.serial_number:x}"
    assert len(calls) == 2
