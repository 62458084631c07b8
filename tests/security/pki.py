"""Certificates for tests, the bad ones too."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from raftkv.config import TlsFiles
from raftkv.security.authority import Authority, issue, new_authority, to_pem
from raftkv.security.identity import CertificateIdentity

CLUSTER = "raftkv"
HOSTS = ["127.0.0.1"]


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def days(count: float) -> datetime.timedelta:
    return datetime.timedelta(days=count)


def authority(
    cluster: str = CLUSTER, *, made: datetime.datetime | None = None, valid_days: int = 100
) -> Authority:
    return new_authority(cluster, now=made or now(), days=valid_days)


def node(
    signer: Authority,
    name: str,
    cluster: str = CLUSTER,
    *,
    replicant_only: bool = False,
    made: datetime.datetime | None = None,
    valid_days: int = 90,
) -> Authority:
    identity = CertificateIdentity(cluster, name, replicant_only)
    return issue(signer, identity, HOSTS, now=made or now(), days=valid_days)


def write(folder: Path, made: Authority, *trusted: Authority, name: str = "node") -> TlsFiles:
    """The three files of a node that trusts these authorities."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, certificate, key = folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key"
    ca.write_bytes(b"".join(to_pem(each.certificate) for each in trusted))
    certificate.write_bytes(to_pem(made.certificate))
    key.write_bytes(to_pem(made.key))
    key.chmod(0o600)
    return TlsFiles(ca=str(ca), certificate=str(certificate), key=str(key))


def client(files: TlsFiles | None, trusted: str | None = None) -> ssl.SSLContext:
    """What a program uses that speaks TLS to a node's port, with a certificate or without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if trusted else ssl.CERT_NONE
    if trusted:
        context.load_verify_locations(trusted)
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context
