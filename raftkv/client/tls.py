"""What a client needs for https endpoints."""

from __future__ import annotations

import ssl

import msgspec

from raftkv.config import TlsFiles
from raftkv.errors import CertificateError, ConfigError
from raftkv.pem import load_pair, reason_of

__all__ = ["ClientTls", "context_of"]


class ClientTls(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files. `ca` holds the authorities that the doors' certificates are checked against.

    `certificate` and `key` are shown to a door that asks for them. The files are read when the
    client is made.
    """

    ca: str
    certificate: str | None = None
    key: str | None = None


def context_of(tls: ClientTls | TlsFiles | ssl.SSLContext | None) -> ssl.SSLContext | None:
    """The context for https endpoints. Raises CertificateError for files that cannot be used."""
    if tls is None or isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, ClientTls | TlsFiles):
        raise ConfigError(f"tls must be a ClientTls, a TlsFiles or an SSLContext, not {tls!r:.60}")
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"tls: {tls.ca} cannot be used: {reason_of(error)}. Name a file with the certificates "
            f"of authorities in PEM form"
        ) from None
    if tls.certificate is not None:
        load_pair(context, tls.certificate, tls.key, "tls")
    return context
