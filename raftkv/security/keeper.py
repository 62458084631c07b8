"""The credentials in force on a running node, and their replacement without a restart.

Rules of this file:
- New connections use the newest credentials; connections that stand go on as they are. TLS checks
  a certificate when a connection begins, and cutting all of them at once would be the downtime
  that a rotation is to avoid. To put somebody out, restart the nodes after the rotation.
- A bad file never replaces a good one: it is logged once, shown in the status, and the former
  credentials stay in force until they expire.
- The files are looked at every POLL_S seconds. A change is taken once it has stood still between
  two looks, because certificate, key and authorities are replaced one after the other. `reload`
  (SIGHUP in `raftkv serve`) takes them at once.
- A certificate that ends within EXPIRY_WARNING_DAYS is logged at the start and once a day.

Files are read in the runtime's bulk thread: a network file system that hangs must not stop the
heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from typing import Any, Final, Literal

from raftkv.config import NodeConfig, TlsFiles
from raftkv.errors import CertificateError
from raftkv.pem import as_certificate_error
from raftkv.runtime import Runtime

from . import credentials
from .channel import Channel, ChannelBroken
from .credentials import Credentials
from .identity import CertificateIdentity
from .report import AuthorityStatus, TlsStatus

__all__ = ["EXPIRY_WARNING_DAYS", "Keeper"]

log = logging.getLogger("raftkv.security")

# New files are in force within two looks, about ten seconds.
POLL_S: Final = 5.0
# Renewing is a command and a copy; a month leaves room for whoever is on holiday.
EXPIRY_WARNING_DAYS: Final = 30
_DAY_S: Final = 86_400.0


class Keeper:
    """A node's `channel.Security`. The constructor raises CertificateError for unusable files."""

    def __init__(self, config: NodeConfig, runtime: Runtime) -> None:
        assert config.tls is not None
        self._files: TlsFiles = config.tls
        self._config = config
        self._runtime = runtime
        self._task: asyncio.Task[Any] | None = None
        self._warned_at: float | None = None
        self.fault: str | None = None
        self._stamp = self._look()
        self.current: Credentials = self._load()

    # -- channel.Security

    def channel(self, *, server_side: bool) -> Channel:
        """A channel with the credentials of now."""
        made = self.current.contexts
        return Channel(made.server if server_side else made.client, server_side=server_side)

    def identify(self, channel: Channel) -> CertificateIdentity:
        """Whom the peer's certificate names. Raises ChannelBroken: no node of this cluster."""
        try:
            identity = credentials.identify(channel.peer_certificate())
        except ValueError as error:
            raise ChannelBroken(f"its certificate names no node: {error}") from None
        if identity.cluster != self._config.cluster:
            raise ChannelBroken(
                f"its certificate is of {identity.name!r} in the cluster {identity.cluster!r}, "
                f"this is {self._config.cluster!r}"
            )
        return identity

    # -- replacement

    def start(self) -> None:
        """Watch the files, until `stop`."""
        self._task = self._runtime.spawn(self._watch(), "watch certificates")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def reload(self) -> None:
        """Read the files now. Raises CertificateError; then the former ones stay in force."""
        runtime = self._runtime
        stamp = await runtime.offload_bulk(self._look)
        try:
            fresh = await runtime.offload_bulk(self._load)
        except Exception as error:
            # Whatever it is: it must not end `_watch`.
            found = as_certificate_error(error, "tls")
            self._stamp, self.fault = stamp, str(found)
            log.error("%s uses its former certificate: %s", self._config.name, found)
            raise found from None
        self._stamp, self.fault = stamp, None
        if fresh.serial != self.current.serial or fresh.authorities != self.current.authorities:
            self._warned_at = None
            log.info(
                "%s uses certificate %s (until %s) and trusts %s for new connections",
                self._config.name,
                fresh.serial,
                fresh.not_after.date(),
                ", ".join(each.fingerprint for each in fresh.authorities),
            )
        self.current = fresh

    async def _watch(self) -> None:
        seen = self._stamp
        while True:
            self._warn()
            await self._runtime.sleep(POLL_S)
            stamp = await self._runtime.offload_bulk(self._look)
            settled, seen = stamp == seen, stamp
            if settled and stamp != self._stamp:
                # `reload` logs what is wrong; the next change of a file is the next attempt.
                with contextlib.suppress(CertificateError):
                    await self.reload()

    def _look(self) -> credentials.Stamp:
        return credentials.stamp(self._files.ca, self._files.certificate, self._files.key)

    def _load(self) -> Credentials:
        files, config = self._files, self._config
        found = credentials.load(files.ca, files.certificate, files.key)
        cluster, name, replicant_only = found.identity
        if (cluster, name) != (config.cluster, config.name):
            raise CertificateError(
                f"{files.certificate} is the certificate of {name!r} in the cluster {cluster!r}, "
                f"but this node is {config.name!r} in {config.cluster!r}: correct [tls], or make "
                f"one with raftkv certs issue {config.name}, or raftkv certs renew if it has one"
            )
        if replicant_only and config.role != "replicant":
            raise CertificateError(
                f"{files.certificate} is for a replicant only, and this node is a core: make one "
                f"without --replicant-only (raftkv certs issue {config.name} --force)"
            )
        return found

    # -- expiry

    def _warn(self) -> None:
        """Once a day from EXPIRY_WARNING_DAYS before the end of certificate or authority."""
        now = self._runtime.monotonic()
        if self._warned_at is not None and now - self._warned_at < _DAY_S:
            return
        ends: list[tuple[Literal["certificate", "authority"], datetime.datetime]]
        ends = [("certificate", self.current.not_after)]
        ends += [("authority", each.not_after) for each in self.current.authorities]
        for what, end in ends:
            days = self._days_left(end)
            if days < EXPIRY_WARNING_DAYS:
                self._warned_at = now
                log.warning(
                    "%s: the %s in force ends in %d days (%s): raftkv certs %s makes a new one",
                    self._config.name,
                    what,
                    days,
                    end.date(),
                    f"renew {self._config.name}" if what == "certificate" else "renew-ca",
                )

    def _days_left(self, end: datetime.datetime) -> int:
        """Whole days, rounded down; negative once it has ended."""
        now = datetime.datetime.fromtimestamp(self._runtime.wall_ms() / 1000, datetime.UTC)
        return (end - now).days

    def status(self) -> TlsStatus:
        """What `node.status()` shows."""
        current = self.current
        return TlsStatus(
            serial=current.serial,
            not_after=current.not_after.isoformat(),
            days_left=self._days_left(current.not_after),
            authorities=[
                AuthorityStatus(fingerprint=each.fingerprint, not_after=each.not_after.isoformat())
                for each in current.authorities
            ],
            fault=self.fault,
        )
