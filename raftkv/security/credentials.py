"""A node's certificate, key and trusted authorities: read and checked as one.

Everything that can be wrong is found here, before the files come into force, and said in the words
of `CertificateError`: a file that is missing or damaged, a key of another certificate, a
certificate that none of the authorities has signed, that has expired, or that names another node.

OpenSSL reads certificate and key by their paths and not from memory, so they are read twice: once
for the checks and once by OpenSSL. If the files changed in between, all is read again; so a
certificate is never in force that was not the one checked.
"""

from __future__ import annotations

import datetime
import logging
import os
import stat
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes

from raftkv.errors import CertificateError

from .authority import identity_of, read_certificates, read_key
from .channel import Contexts, contexts
from .identity import CertificateIdentity

__all__ = [
    "AuthorityInfo",
    "Credentials",
    "Stamp",
    "fingerprint",
    "identify",
    "load",
    "signed_by",
    "stamp",
]

log = logging.getLogger("raftkv.security")

# Three small files. A certificate has about 1 KB; this much is a mistake in the path.
FILE_BYTES_MAX = 1024 * 1024
_READS_MAX = 5

# What `cryptography` raises for a certificate that is damaged inside its PEM.
UNREADABLE = (
    ValueError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)

Stamp = tuple[tuple[int, int, int], ...]
"""Modification time, size and inode of each file: differs when one of them was replaced."""


class AuthorityInfo(NamedTuple):
    """One trusted authority: the beginning of its SHA-256 fingerprint, and its end."""

    fingerprint: str
    not_after: datetime.datetime


class Credentials(NamedTuple):
    """What one reading of the files gave. `serial` is the certificate's, in hexadecimal."""

    identity: CertificateIdentity
    serial: str
    not_after: datetime.datetime
    authorities: tuple[AuthorityInfo, ...]
    contexts: Contexts


def stamp(ca: str, certificate: str, key: str) -> Stamp:
    """The files' stamps as of now; zeros for one that cannot be looked at."""
    found = []
    for path in (ca, certificate, key):
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


def load(ca: str, certificate: str, key: str) -> Credentials:
    """Read and check the three files. Raises CertificateError, which says what to do."""
    for _ in range(_READS_MAX):
        before = stamp(ca, certificate, key)
        try:
            found = _load(ca, certificate, key)
        except CertificateError:
            if stamp(ca, certificate, key) == before:
                raise
            continue
        except UNREADABLE as error:
            raise CertificateError(
                f"{certificate} or {ca} is a certificate that cannot be understood ({error}): make "
                f"them with raftkv certs"
            ) from None
        if stamp(ca, certificate, key) == before:
            return found
    raise CertificateError(f"{certificate}, {key} and {ca} change all the time: try again")


def _load(ca: str, certificate: str, key: str) -> Credentials:
    now = datetime.datetime.now(datetime.UTC)
    bundle_pem = _read(ca, "ca")
    authorities = _authorities(read_certificates(bundle_pem, f"tls.ca = {ca}"), ca, now)
    chain_pem = _read(certificate, "certificate")
    own, *rest = read_certificates(chain_pem, f"tls.certificate = {certificate}")
    try:
        identity = identity_of(own)
    except ValueError as error:
        raise CertificateError(
            f"{certificate} is no certificate of a node: {error}. Make one with raftkv certs issue"
        ) from None
    _check_dates(own, certificate, now)
    private = read_key(_read(key, "key"), f"tls.key = {key}")
    if private.public_key() != own.public_key():
        raise CertificateError(
            f"{key} is not the key of {certificate}: bring back the pair, or make a new one with "
            f"raftkv certs renew {identity.name}"
        )
    _check_chain(own, rest, authorities, certificate, ca)
    _warn_of_readers(key)
    try:
        made = contexts(certificate, key, bundle_pem.decode("ascii", "replace"))
    except OSError as error:
        raise CertificateError(f"OpenSSL cannot use {certificate} with {key}: {error}") from None
    return Credentials(
        identity=identity,
        serial=f"{own.serial_number:x}",
        not_after=own.not_valid_after_utc,
        authorities=tuple(
            AuthorityInfo(fingerprint(each), each.not_valid_after_utc) for each in authorities
        ),
        contexts=made,
    )


def _read(path: str, label: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateError(
            f"tls.{label} = {path} cannot be read: {error.strerror}. Correct the path or its "
            f"permissions, or make the file with raftkv certs"
        ) from None
    if len(content) > FILE_BYTES_MAX:
        raise CertificateError(f"tls.{label} = {path} exceeds {FILE_BYTES_MAX} bytes: correct it")
    return content


def _authorities(
    bundle: list[x509.Certificate], path: str, now: datetime.datetime
) -> list[x509.Certificate]:
    """The authorities of the bundle; all that have expired do not count."""
    for each in bundle:
        if not _is_authority(each):
            raise CertificateError(
                f"{path} holds a certificate that is no authority ({each.subject.rfc4514_string()}"
                f"): put only ca.pem of raftkv certs there"
            )
    valid = [each for each in bundle if each.not_valid_after_utc > now]
    if not valid:
        raise CertificateError(
            f"every authority in {path} has expired: make a new one with raftkv certs renew-ca, "
            f"then renew the certificates of all nodes"
        )
    return valid


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _check_dates(certificate: x509.Certificate, path: str, now: datetime.datetime) -> None:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if last <= now:
        raise CertificateError(
            f"{path} expired on {last:%Y-%m-%d %H:%M} UTC: make a new one with raftkv certs renew"
        )
    if first > now:
        raise CertificateError(
            f"{path} is not valid before {first:%Y-%m-%d %H:%M} UTC, and this machine's clock "
            f"says {now:%Y-%m-%d %H:%M}: correct the clock, or make a new certificate"
        )


def _check_chain(
    own: x509.Certificate,
    rest: list[x509.Certificate],
    authorities: list[x509.Certificate],
    path: str,
    ca: str,
) -> None:
    """The certificate leads to a trusted authority, over those that follow it in its file."""
    current = own
    for _ in range(len(rest) + 1):
        if any(signed_by(current, each) for each in authorities):
            return
        above = [each for each in rest if signed_by(current, each)]
        if not above:
            break
        current = above[0]
    raise CertificateError(
        f"{path} was not signed by an authority in {ca}: bring the bundle of its authority, or "
        f"make a new certificate with raftkv certs renew"
    )


def signed_by(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _warn_of_readers(path: str) -> None:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return  # it is just being replaced: then all is read again
    if mode & 0o077:
        log.warning("%s has mode %04o: others on this machine may read the key", path, mode)


def fingerprint(certificate: x509.Certificate) -> str:
    """The first 16 hexadecimal digits of the SHA-256 fingerprint: enough to tell two apart."""
    return certificate.fingerprint(hashes.SHA256()).hex()[:16]


def identify(der: bytes) -> CertificateIdentity:
    """Whom a peer's certificate, already verified, names. Raises ValueError."""
    try:
        return identity_of(x509.load_der_x509_certificate(der))
    except UNREADABLE as error:
        raise ValueError(str(error)) from None
