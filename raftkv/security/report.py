"""What a node tells of its certificate: a part of `node.status()`."""

from __future__ import annotations

import msgspec

__all__ = ["AuthorityStatus", "TlsStatus"]


class AuthorityStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An authority that this node trusts; the fingerprint is what `raftkv certs show` prints."""

    fingerprint: str
    not_after: str


class TlsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate in force for new connections. Times are ISO 8601 in UTC.

    `days_left` is negative once it has ended; `fault` is why newer files are not in force.
    """

    serial: str
    not_after: str
    days_left: int
    authorities: list[AuthorityStatus]
    fault: str | None
