"""TLS 1.3 over any stream: ciphertext in, plaintext out, and the other way round.

Rules of this file: no socket, no loop, no clock. The owner moves bytes: what arrives goes into
`receive`; after every call it writes what `take` returns. So the same code runs over asyncio's and
uvloop's transports, a failed handshake is known to its owner with its reason (the loops' own TLS
only closes the connection), and the number and the time of pending handshakes are the owner's to
bound.

Both contexts are mutual and speak TLS 1.3 only. There are no session tickets: a resumed session
would skip the very check that a replaced authority asks for.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import NamedTuple, Protocol

from raftkv.errors import RaftkvError
from raftkv.pem import load_pair

from .identity import CertificateIdentity

__all__ = ["Channel", "ChannelBroken", "Contexts", "Security"]

# The plaintext of one TLS record at most. A larger buffer per read would only be allocated.
RECORD_BYTES_MAX = 16_384

_ALERTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "for it, this node's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this node's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks no TLS 1.3",
}
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})


class ChannelBroken(RaftkvError):
    """The other end does not speak TLS as it must; the text says what was wrong."""

    code = "channel_broken"


class Contexts(NamedTuple):
    """What OpenSSL needs to know, for either side of a connection."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class Security(Protocol):
    """What a node's streams ask for: the credentials in force at the moment."""

    def channel(self, *, server_side: bool) -> Channel:
        """A channel for a new connection."""

    def identify(self, channel: Channel) -> CertificateIdentity:
        """Whom the peer's certificate names. Raises ChannelBroken: no node of this cluster."""


def contexts(certificate_path: str, key_path: str, authorities_pem: str) -> Contexts:
    """Mutual TLS 1.3 for both sides. Raises OSError (ssl.SSLError) when the files do not fit."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.num_tickets = 0
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Names are compared by `Security.identify`, after the chain was verified.
    client.check_hostname = False
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        context.load_verify_locations(cadata=authorities_pem)
        load_pair(context, certificate_path, key_path, "tls")
    return Contexts(server, client)


class Channel:
    """One connection's TLS. Begin with `start`; write what `take` returns after every call."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "established", "finished")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        # The handshake is done: the peer's certificate is verified. On the dialling side the peer
        # may still refuse this node's own.
        self.established = False
        # The peer has said that nothing more will come.
        self.finished = False

    def start(self) -> None:
        """The dialling side speaks first."""
        self._handshake()

    def receive(self, data: bytes) -> bytes:
        """Take ciphertext, return the plaintext that it completes. Raises ChannelBroken."""
        self._incoming.write(data)
        if not self.established:
            self._handshake()
            if not self.established:
                return b""
        parts: list[bytes] = []
        read, pending = self._tls.read, self._tls.pending
        try:
            while self._incoming.pending or pending():
                part = read(RECORD_BYTES_MAX)
                if not part:
                    self.finished = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still on its way
        except ssl.SSLZeroReturnError:
            self.finished = True
        except ssl.SSLError as error:
            raise ChannelBroken(explanation(error)) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, data: bytes) -> None:
        """Encrypt. Only once `established`. Raises ChannelBroken."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            raise ChannelBroken(explanation(error)) from None

    def take(self) -> bytes:
        """The ciphertext to be written now; empty if there is none."""
        return self._outgoing.read()

    def shut(self) -> None:
        """Say that nothing more will come."""
        # The peer's own goodbye is not waited for.
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()

    def peer_certificate(self) -> bytes:
        """DER of the verified certificate of the peer."""
        assert self.established
        found = self._tls.getpeercert(binary_form=True)
        assert found is not None, "CERT_REQUIRED let a peer without a certificate through"
        return found

    def _handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise ChannelBroken(explanation(error)) from None
        self.established = True


def explanation(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words that say who is at fault."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it has sent no certificate"
    if reason == "UNSUPPORTED_PROTOCOL":
        return "it speaks no TLS 1.3, only an older version"
    if reason in _NO_TLS:
        return "it does not speak TLS: a node without [tls], or no node at all"
    if "ALERT" in reason:
        words = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"it ends the handshake: {_ALERTS.get(reason, words)}"
    return f"TLS fails: {reason.replace('_', ' ').lower() or error}"
