"""The authority's files: what `raftkv certs` works on.

    DIR/ca.pem        the trusted authorities, the newest first: every node gets this file
    DIR/ca.key        the key of the newest: it alone can issue, so keep it off the nodes
    DIR/NAME.pem      a node's certificate
    DIR/NAME.key      its key: for that node only

Rules of this file. A key is never readable for others, not even for a moment (mode 0600 from its
creation). A file is replaced as a whole: written under another name, synced, renamed, the directory
synced. Nothing is overwritten unless that is what the command means or `force` says so. The key is
replaced before its certificate; a crash in between leaves a pair that does not fit, which a running
node refuses to take, and `renew` mends it.

An authority is replaced in steps that each leave every node trusting every other: `renew_authority`
puts the new one in front of the old in ca.pem, the nodes get that file, then new certificates, and
`drop_authorities` leaves the newest alone. It refuses while a certificate in the directory still
depends on an old one.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Sequence
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from raftkv.config import TlsFiles, is_name
from raftkv.errors import CertificateError

from .authority import (
    AUTHORITY_DAYS,
    NODE_DAYS,
    Authority,
    cluster_of,
    hosts_of,
    identity_of,
    issue,
    new_authority,
    read_certificates,
    read_key,
    to_pem,
)
from .credentials import fingerprint, signed_by
from .identity import CertificateIdentity
from .ownership import make_directory, require_own

__all__ = ["CertificateDirectory", "Described", "certify"]

AUTHORITY_NAME = "ca"


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate. Times are ISO 8601 in UTC; `issuer` is the fingerprint of its authority.

    `problem` says what is wrong with it, in words. If the file cannot be read, nothing else is
    known.
    """

    file: str
    kind: Literal["authority", "node"]
    cluster: str
    name: str | None
    hosts: list[str]
    replicant_only: bool
    fingerprint: str
    issuer: str | None
    not_before: str
    not_after: str
    days_left: int
    problem: str | None


class CertificateDirectory:
    """The files in `path`. Methods raise CertificateError, which says what to do."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    # -- the authority

    def init(
        self, cluster: str, *, days: int = AUTHORITY_DAYS, force: bool = False
    ) -> list[Described]:
        """Make the directory and a cluster's first authority."""
        made = new_authority(cluster, now=_now(), days=days)
        make_directory(self.path)
        if not force:
            for file in (self._file("ca.pem"), self._file("ca.key")):
                if os.path.exists(file):
                    raise CertificateError(
                        f"{file} exists: with another authority every certificate that it has "
                        f"signed is worthless. Choose another directory, replace it step by step "
                        f"with raftkv certs renew-ca, or overwrite it with --force"
                    )
        self._write("ca.key", to_pem(made.key), replace=force)
        self._write("ca.pem", to_pem(made.certificate), replace=force)
        return self.show(AUTHORITY_NAME)

    def renew_authority(self, *, days: int = AUTHORITY_DAYS) -> list[Described]:
        """A new authority in front of the old ones, which stay trusted."""
        bundle = self._bundle()
        made = new_authority(self.cluster, now=_now(), days=days)
        # The bundle first: with the key first, a crash would leave one that nobody trusts.
        self._write("ca.pem", b"".join(map(to_pem, [made.certificate, *bundle])), replace=True)
        self._write("ca.key", to_pem(made.key), replace=True)
        return self.show(AUTHORITY_NAME)

    def drop_authorities(self, *, force: bool = False) -> list[Described]:
        """Trust the newest authority only."""
        newest = self._authority().certificate
        held = [
            each.file
            for each in self._describe_nodes(self._bundle())
            if each.fingerprint and each.issuer != fingerprint(newest)
        ]
        if held and not force:
            raise CertificateError(
                f"{', '.join(held)} would be worthless: renew them first with raftkv certs renew, "
                f"or give them up with --force"
            )
        self._write("ca.pem", to_pem(newest), replace=True)
        return self.show(AUTHORITY_NAME)

    @property
    def cluster(self) -> str:
        """The cluster whose authority this is."""
        newest = self._bundle()[0]
        cluster = cluster_of(newest)
        if cluster is None:
            raise CertificateError(
                f"{self._file('ca.pem')} does not begin with an authority made by raftkv certs init"
            )
        return cluster

    # -- nodes

    def issue(
        self,
        name: str,
        hosts: Sequence[str],
        *,
        days: int = NODE_DAYS,
        replicant_only: bool = False,
        force: bool = False,
    ) -> list[Described]:
        """A certificate and key for a node."""
        if name == AUTHORITY_NAME:
            raise CertificateError(
                f"{name!r} cannot be the name of a node here: {name}.pem and {name}.key are the "
                f"authority's files"
            )
        identity = CertificateIdentity(self.cluster, name, replicant_only)
        made = issue(self._authority(), identity, hosts, now=_now(), days=days)
        if not force:
            for file in (self._file(f"{name}.pem"), self._file(f"{name}.key")):
                if os.path.exists(file):
                    raise CertificateError(
                        f"{file} exists: renew it with raftkv certs renew {name}, or overwrite it "
                        f"with --force"
                    )
        self._write_pair(name, made, replace=force)
        return self.show(name)

    def renew(self, name: str, *, days: int = NODE_DAYS) -> list[Described]:
        """A new certificate and a new key for the same identity and hosts."""
        current = self._node(name)
        identity = identity_of(current)
        made = issue(self._authority(), identity, hosts_of(current), now=_now(), days=days)
        self._write_pair(name, made, replace=True)
        return self.show(name)

    def _write_pair(self, name: str, made: Authority, *, replace: bool) -> None:
        self._write(f"{name}.key", to_pem(made.key), replace=replace)
        self._write(f"{name}.pem", to_pem(made.certificate), replace=replace)

    # -- looking

    def show(self, name: str | None = None) -> list[Described]:
        """All certificates, authorities first; or those of one node, or `ca`."""
        bundle = self._bundle()
        if name is not None and name != AUTHORITY_NAME:
            return [self._describe_node(name, bundle)]
        newest_key = self._key_problem("ca.key", bundle[0])
        authorities = [
            _described(
                self._file("ca.pem"), each, bundle, problem=newest_key if number == 0 else None
            )
            for number, each in enumerate(bundle)
        ]
        return authorities if name is not None else authorities + self._describe_nodes(bundle)

    def _describe_nodes(self, bundle: Sequence[x509.Certificate]) -> list[Described]:
        names = [
            file.removesuffix(".pem")
            for file in sorted(os.listdir(self.path))
            if file.endswith(".pem") and file != "ca.pem"
        ]
        found = []
        for name in names:
            try:
                found.append(self._describe_node(name, bundle))
            except CertificateError as error:
                found.append(_unreadable(self._file(f"{name}.pem"), name, str(error)))
        return found

    def _describe_node(self, name: str, bundle: Sequence[x509.Certificate]) -> Described:
        certificate = self._node(name)
        problem = self._key_problem(f"{name}.key", certificate)
        return _described(self._file(f"{name}.pem"), certificate, bundle, problem=problem)

    def _key_problem(self, file: str, certificate: x509.Certificate) -> str | None:
        """What is wrong with the key beside a certificate. It need not be there."""
        path = self._file(file)
        if not os.path.exists(path):
            return None
        try:
            key = read_key(self._read(file), path)
        except CertificateError as error:
            return str(error)
        if key.public_key() != certificate.public_key():
            return f"{path} is the key of another certificate"
        return None

    # -- files

    def _bundle(self) -> list[x509.Certificate]:
        return read_certificates(self._read("ca.pem"), self._file("ca.pem"))

    def _authority(self) -> Authority:
        """The authority whose key is there: the newest, unless `renew_authority` was cut short."""
        bundle = self._bundle()
        key = read_key(self._read("ca.key"), self._file("ca.key"))
        for certificate in bundle:
            fits = key.public_key() == certificate.public_key()
            if fits and isinstance(key, ec.EllipticCurvePrivateKey):
                return Authority(certificate, key)
        raise CertificateError(
            f"{self._file('ca.key')} is not the key of an authority in {self._file('ca.pem')}: "
            f"bring back the pair"
        )

    def _node(self, name: str) -> x509.Certificate:
        if not is_name(name):
            raise CertificateError(f"{name!r} is no name of a node")
        path = self._file(f"{name}.pem")
        certificate = read_certificates(self._read(f"{name}.pem"), path)[0]
        try:
            identity_of(certificate)
        except ValueError as error:
            raise CertificateError(f"{path} is no certificate of a node: {error}") from None
        return certificate

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _read(self, name: str) -> bytes:
        path = self._file(name)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            hint = (
                f"make an authority with raftkv certs init --dir {self.path}"
                if name in ("ca.pem", "ca.key")
                else f"make it with raftkv certs issue --dir {self.path}"
            )
            raise CertificateError(f"{path} cannot be read: {error.strerror}; {hint}") from None

    def _write(self, name: str, content: bytes, *, replace: bool) -> None:
        """All of the file or nothing, durably. A key is for its owner only from the beginning."""
        # Keys that another user could replace are worth nothing.
        require_own(self.path)
        path = self._file(name)
        temporary = f"{path}.{os.getpid()}.new"
        mode = 0o600 if name.endswith(".key") else 0o644
        # What a process that was killed may have left; its number has come round again.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, mode)
            try:
                with open(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                if replace:
                    os.rename(temporary, path)
                else:
                    # Unlike rename, this fails if somebody was faster.
                    os.link(temporary, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise CertificateError(f"{path} cannot be written: {error.strerror}") from None


def certify(
    path: str, cluster: str, names: Sequence[str], hosts: Sequence[str]
) -> dict[str, TlsFiles]:
    """Certificates for several nodes at once, as clusters on one machine need them.

    What is there already is kept. Returns each node's `tls`.
    """
    directory = CertificateDirectory(path)
    if not os.path.exists(os.path.join(path, "ca.pem")):
        directory.init(cluster)
    found = {}
    for name in names:
        files = TlsFiles(
            ca=os.path.join(path, "ca.pem"),
            certificate=os.path.join(path, f"{name}.pem"),
            key=os.path.join(path, f"{name}.key"),
        )
        if not os.path.exists(files.certificate):
            directory.issue(name, hosts, force=True)
        found[name] = files
    return found


def _described(
    file: str,
    certificate: x509.Certificate,
    bundle: Sequence[x509.Certificate],
    *,
    problem: str | None,
) -> Described:
    now = _now()
    authority = cluster_of(certificate)
    issuers = [fingerprint(each) for each in bundle if signed_by(certificate, each)]
    identity = None if authority is not None else identity_of(certificate)
    last = certificate.not_valid_after_utc
    if problem is None and last <= now:
        problem = "it has expired"
    if problem is None and not issuers:
        problem = "no authority in ca.pem has signed it"
    return Described(
        file=file,
        kind="node" if identity is not None else "authority",
        cluster=authority or (identity.cluster if identity is not None else ""),
        name=None if identity is None else identity.name,
        hosts=hosts_of(certificate),
        replicant_only=identity is not None and identity.replicant_only,
        fingerprint=fingerprint(certificate),
        issuer=issuers[0] if issuers else None,
        not_before=certificate.not_valid_before_utc.isoformat(),
        not_after=last.isoformat(),
        days_left=(last - now).days,
        problem=problem,
    )


def _unreadable(file: str, name: str, problem: str) -> Described:
    """A file that should hold a node's certificate."""
    return Described(
        file=file,
        kind="node",
        cluster="",
        name=name,
        hosts=[],
        replicant_only=False,
        fingerprint="",
        issuer=None,
        not_before="",
        not_after="",
        days_left=0,
        problem=problem,
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
