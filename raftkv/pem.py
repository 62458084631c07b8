"""A certificate and its private key, given to OpenSSL by their paths.

A key with a password is refused everywhere: nodes, clients and commands run without anybody who
could enter it, and OpenSSL would ask at the terminal of the process while its time-outs pass.

This module imports nothing heavy: clients and the command line use it.
"""

from __future__ import annotations

import logging
import ssl

from .errors import CertificateError

__all__ = ["as_certificate_error", "load_pair", "reason_of"]

_log = logging.getLogger("raftkv.security")


class _HasPassword(Exception):
    """OpenSSL has asked for a password."""


def load_pair(context: ssl.SSLContext, certificate: str, key: str | None, what: str) -> None:
    """Have `context` show this certificate; its key is in the same file if `key` is None.

    `what` names the setting or option in errors. Raises CertificateError.
    """
    files = certificate if key is None else f"{certificate} with {key}"
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except _HasPassword:
        raise CertificateError(
            f"{what}: the key in {key or certificate} is encrypted with a password, which no "
            f"process can enter: store the key without one (openssl pkey -in FILE -out FILE), "
            f"readable for its user only"
        ) from None
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"{what}: {files} cannot be used: {reason_of(error)}. Name a certificate in PEM form "
            f"and its key"
        ) from None


def as_certificate_error(error: Exception, what: str) -> CertificateError:
    """The error of a reload that failed, also for an unforeseen one."""
    if isinstance(error, CertificateError):
        return error
    _log.error("an unexpected error while certificates were read", exc_info=error)
    kind = type(error).__name__
    return CertificateError(
        f"{what}: the files cannot be used ({kind}: {reason_of(error)}): correct them"
    )


def reason_of(error: BaseException) -> str:
    """The cause in the words of OpenSSL or of the system, without codes and source lines."""
    if isinstance(error, ssl.SSLError):
        # An SSLError made in Python has no `reason`.
        return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def _no_password() -> str:
    raise _HasPassword
