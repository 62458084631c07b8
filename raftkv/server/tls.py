"""TLS for the network door: who the node is to its clients, and which clients may come.

The certificates of the door are not those between nodes (raftkv/security): a client is no node, and
must not become one by holding a certificate. Any PEM files will do that clients accept.

Rules of this file
- With `ca`, a client without a certificate of these authorities does not get through the handshake.
- TLS 1.2 is the oldest version: clients of the gateway are of many kinds, and all know it.
- Files are read again when they have changed and stood still for a moment, and by `reload`. New
  connections get the new ones; a file that cannot be used is logged once, and the former stay.
- The names in the certificate are hosts that the node is known as (admission.py).
- No session is resumed: it would skip the check of the client's certificate, for hours after its
  authority was replaced or it expired. There are no tickets, and each handshake begins with a
  context of its own, because OpenSSL keeps the sessions of TLS 1.2 in the context that a connection
  began with (about 0.15 ms and 13 KiB each).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable
from typing import Final

from raftkv.config import HttpTls
from raftkv.errors import CertificateError
from raftkv.hostnames import normal_name
from raftkv.pem import as_certificate_error, load_pair, reason_of
from raftkv.security.authority import hosts_of, read_certificates
from raftkv.security.credentials import FILE_BYTES_MAX, UNREADABLE

__all__ = ["POLL_S", "DoorTls", "names_in"]

_log = logging.getLogger("raftkv.server")

# New files are in force within two looks, about ten seconds, as those between nodes.
POLL_S: Final = 5.0

_Stamp = tuple[tuple[int, int, int], ...]


class DoorTls:
    """The certificates in force. The constructor raises CertificateError for unusable files."""

    def __init__(self, files: HttpTls) -> None:
        self._files = files
        self._stamp = _look(files)
        self._current = _load(files)
        self.fault: str | None = None
        #: The hosts that the certificate is for; `on_names` is called when they were read again.
        self.names = names_in(files.certificate)
        self.on_names: Callable[[frozenset[str]], None] = _ignore

    def context(self) -> ssl.SSLContext:
        """A context for one handshake, which knows no earlier session."""
        made = _new_context()
        if self._files.ca is not None:
            # OpenSSL takes the authorities from the context of `_choose`, but not this demand.
            made.verify_mode = ssl.CERT_REQUIRED
        made.sni_callback = self._choose
        return made

    def _choose(self, wire: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        """Called at the beginning of every handshake, whether the client names a server or not."""
        wire.context = self._current

    async def watch(self) -> None:
        """Look at the files, for ever."""
        loop = asyncio.get_running_loop()
        seen = self._stamp
        while True:
            await asyncio.sleep(POLL_S)
            stamp = await loop.run_in_executor(None, _look, self._files)
            settled, seen = stamp == seen, stamp
            if settled and stamp != self._stamp:
                # `reload` logs what is wrong; the next change of a file is the next attempt.
                with contextlib.suppress(CertificateError):
                    await self.reload()

    async def reload(self) -> None:
        """Read the files now. Raises CertificateError; then the former ones stay in force."""
        loop = asyncio.get_running_loop()
        self._stamp = await loop.run_in_executor(None, _look, self._files)
        try:
            current = await loop.run_in_executor(None, _load, self._files)
            names = await loop.run_in_executor(None, names_in, self._files.certificate)
        except Exception as error:
            # Whatever it is: it must not end `watch`.
            found = as_certificate_error(error, "http_tls")
            self.fault = str(found)
            _log.error("the HTTP API uses its former certificate: %s", found)
            raise found from None
        self._current, self.names, self.fault = current, names, None
        self.on_names(self.names)
        _log.info("the door uses %s for new connections", self._files.certificate)


def names_in(path: str) -> frozenset[str]:
    """The hosts that the certificate in a PEM file is for; a first label may be `*`.

    None for a file that holds nothing readable: whether it will do is for OpenSSL to judge.
    """
    try:
        with open(path, "rb") as file:
            first = read_certificates(file.read(FILE_BYTES_MAX), path)[0]
        names = [normal_name(host) for host in hosts_of(first)]
    except (OSError, CertificateError, *UNREADABLE):
        return frozenset()
    return frozenset(name for name in names if name is not None)


def _ignore(names: frozenset[str]) -> None:
    """Until another function is set."""


def _look(files: HttpTls) -> _Stamp:
    found = []
    for path in (files.certificate, files.key, files.ca):
        try:
            status = os.stat(path) if path is not None else None
        except OSError:
            status = None
        known = (0, 0, 0)
        if status is not None:
            known = (status.st_mtime_ns, status.st_size, status.st_ino)
        found.append(known)
    return tuple(found)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(files: HttpTls) -> ssl.SSLContext:
    context = _new_context()
    load_pair(context, files.certificate, files.key, "http_tls")
    if files.ca is None:
        return context
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"http_tls.ca = {files.ca} cannot be used: {reason_of(error)}. Name a file with the "
            f"certificates of the authorities of your clients in PEM form"
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context
