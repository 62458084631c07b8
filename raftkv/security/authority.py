"""Making certificates: a cluster's own authority and the certificates that it issues.

Rules of this file: values in, values out. No file is touched and no clock is read; `now` is an
argument. Keys come from the system's generator inside `cryptography`.

Everything is ECDSA on P-256 with SHA-256: small, fast, and accepted by every TLS 1.3 library. The
authority signs node certificates directly (path length 0), and its certificate names the cluster:
`raftkv://<cluster>`. Each new authority has a distinct subject, so that several may stand in one
bundle while one replaces the other.

A certificate is valid from an hour before it was made, because clocks differ.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raftkv.config import is_name
from raftkv.errors import CertificateError

from .identity import SCHEME, CertificateIdentity, parse_uri, uri_of

__all__ = [
    "AUTHORITY_DAYS",
    "NODE_DAYS",
    "Authority",
    "cluster_of",
    "hosts_of",
    "identity_of",
    "issue",
    "new_authority",
    "read_certificates",
    "read_key",
    "to_pem",
]

# Replacing the authority takes several steps on every node, replacing a certificate one.
AUTHORITY_DAYS = 3650
NODE_DAYS = 365
# Nobody plans further, and X.509's last date is in the year 9999.
DAYS_MAX = 36_500

_BACKDATED = datetime.timedelta(hours=1)
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")


class Authority(NamedTuple):
    """A certificate that may sign others, with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_authority(cluster: str, *, now: datetime.datetime, days: int) -> Authority:
    """A self-signed authority for `cluster`. Raises CertificateError for a bad name or `days`."""
    if not is_name(cluster):
        raise CertificateError(
            f"{cluster!r} is no name of a cluster: use 1 to 63 letters, digits, '.', '_' or '-', "
            f"starting with a letter or digit"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"raftkv authority {serial % 2**32:08x}"),
            x509.NameAttribute(NameOID.COMMON_NAME, cluster),
        ]
    )
    public = key.public_key()
    builder = _builder(subject, subject, serial, public, now, _ends(now, days))
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(SCHEME + cluster)]),
            critical=False,
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def issue(
    authority: Authority,
    identity: CertificateIdentity,
    hosts: Sequence[str],
    *,
    now: datetime.datetime,
    days: int,
) -> Authority:
    """A node's certificate and its new key. It never outlives the authority.

    Raises CertificateError for a bad name, host or `days`, or when the authority has expired.
    """
    if not is_name(identity.name):
        raise CertificateError(
            f"{identity.name!r} is no name of a node: use 1 to 63 letters, digits, '.', '_' or "
            f"'-', starting with a letter or digit"
        )
    last = authority.certificate.not_valid_after_utc
    if last <= now:
        raise CertificateError(
            f"the authority expired on {last:%Y-%m-%d}, so nobody would trust what it signs: make "
            f"a new one with raftkv certs renew-ca"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.name)])
    issuer = authority.certificate
    builder = _builder(
        subject,
        issuer.subject,
        x509.random_serial_number(),
        key.public_key(),
        now,
        min(_ends(now, days), last),
    )
    names: list[x509.GeneralName] = [_host_name(host) for host in hosts]
    names.append(x509.UniformResourceIdentifier(uri_of(identity)))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    return Authority(certificate, key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    serial: int,
    public: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _ends(now: datetime.datetime, days: int) -> datetime.datetime:
    if not 1 <= days <= DAYS_MAX:
        raise CertificateError(f"a certificate is valid for 1 to {DAYS_MAX} days, not for {days}")
    return now + datetime.timedelta(days=days)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return x509.IPAddress(ipaddress.ip_address(bare))
    except ValueError:
        pass  # then it is a name
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise CertificateError(
            f"{host!r} is no host: write a host name or an IP address, without a port"
        )
    return x509.DNSName(host)


# Reading -----------------------------------------------------------------------------------------


def read_certificates(pem: bytes, what: str) -> list[x509.Certificate]:
    """The certificates in a PEM file, at least one. Raises CertificateError naming `what`."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(
            f"{what} holds no readable certificate in PEM form ({error}): bring the file back, or "
            f"make a new one with raftkv certs"
        ) from None


def read_key(pem: bytes, what: str) -> PrivateKeyTypes:
    """The key in a PEM file. Raises CertificateError naming `what`, never what is in it."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        raise CertificateError(
            f"{what} is encrypted with a password, and a node starts without anybody to ask: "
            f"store the key without one, readable for the node's user only"
        ) from None
    except ValueError:
        raise CertificateError(
            f"{what} holds no readable private key in PEM form: bring the file back, or make a "
            f"new one with raftkv certs"
        ) from None


def identity_of(certificate: x509.Certificate) -> CertificateIdentity:
    """Whom the certificate names. Raises ValueError when that is not exactly one node."""
    own = [uri for uri in _uris(certificate) if uri.startswith(SCHEME)]
    if len(own) != 1:
        raise ValueError(f"it names {len(own)} nodes ({SCHEME}...) instead of one")
    identity = parse_uri(own[0])
    if identity is None:
        raise ValueError(f"{own[0]!r} names no node")
    return identity


def cluster_of(certificate: x509.Certificate) -> str | None:
    """The cluster whose authority this is, or None for any other certificate."""
    for uri in _uris(certificate):
        if uri.startswith(SCHEME) and is_name(uri[len(SCHEME) :]):
            return uri[len(SCHEME) :]
    return None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The host names and IP addresses that the certificate is for."""
    names = _names(certificate)
    if names is None:
        return []
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def _uris(certificate: x509.Certificate) -> list[str]:
    names = _names(certificate)
    return [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)


def _names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def to_pem(thing: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    """PEM of a certificate, or of a key without a password."""
    if isinstance(thing, x509.Certificate):
        return thing.public_bytes(serialization.Encoding.PEM)
    return thing.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
