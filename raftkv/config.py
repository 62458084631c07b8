"""The configuration of a node: TOML or keyword arguments in, one validated frozen object out.

Everything that a node may be told locally is here, and nothing that influences a verdict of the
replicated state machine: those are replicated settings, values in the log (`node.settings`).
Every limit states its unit in its name, its default, and its reason in the comment above it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from typing import Any, Literal

import msgspec

from .errors import ConfigError

__all__ = ["Limits", "NodeConfig", "RaftTimes", "load_config", "parse_address"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

_MAY_BE_ZERO = ("lease_ms", "clock_drift_permille")

KIB = 1024
MIB = 1024 * KIB


class RaftTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time-outs of the consensus engine, in milliseconds. The defaults suit a LAN."""

    # A follower that hears nothing from a leader for a random time in this range campaigns.
    # The minimum must exceed a slow fsync plus a pause of the process; 600 ms does on plain disks.
    election_timeout_min_ms: int = 600
    election_timeout_max_ms: int = 1200
    # An idle leader speaks this often. A tenth of the election time-out survives lost beats.
    heartbeat_ms: int = 60
    # How long a leader may serve reads from its own memory after it was last confirmed
    # (consistency="lease"). Followers promise that long to elect nobody else, even if the leader's
    # process ends, so a lease lengthens the fail-over by as much. 0: no leases, such reads are
    # confirmed by a majority.
    lease_ms: int = 0
    # What two clocks may differ in speed, per thousand. Ten times a bad quartz is 5.
    clock_drift_permille: int = 5
    # A proposal without an outcome is sent again after this time (the log removes duplicates).
    resend_ms: int = 1000
    # A member that nobody has heard for this long is declared dead by the leader; what it owned is
    # fenced. Far above an election time-out: a restart of a node is not a death.
    node_down_ms: int = 10_000


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one node accepts and keeps. Beyond a limit there is a typed error, never growth."""

    # One encoded command. etcd's default request limit is 1.5 MiB; a batch holds several.
    command_bytes_max: int = 1 * MIB + 512 * KIB
    # One key and one value of the keyspace.
    key_bytes_max: int = 64 * KIB
    value_bytes_max: int = 1 * MIB
    # Commands of one tick share an entry up to this size, so that a follower is never held long.
    batch_bytes_max: int = 4 * MIB
    # What may wait for the log in one node: beyond it `Overloaded`, at once.
    outbox_commands_max: int = 65_536
    outbox_bytes_max: int = 64 * MIB
    # One message between nodes: at least two batches (rule 31), so that none is ever unsendable.
    frame_bytes_max: int = 16 * MIB
    # Entries in flight to one follower that it has not acknowledged.
    inflight_bytes_max: int = 16 * MIB
    # What a leader appends before it is committed: without its quorum it soon stops, and the
    # commands wait at their origins.
    uncommitted_bytes_max: int = 64 * MIB
    # A snapshot is written when the log behind the last one exceeds either.
    snapshot_log_bytes: int = 64 * MIB
    snapshot_log_entries: int = 200_000
    # Entries kept behind a snapshot, so that a slow follower needs no snapshot.
    log_tail_entries: int = 10_000
    # One write-ahead log segment: small enough to be deleted soon, large enough to be few.
    segment_bytes_max: int = 64 * MIB
    # One chunk of a snapshot on its way to another node.
    snapshot_chunk_bytes: int = 1 * MIB


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node. `cores` names the cores that found the cluster, with their peer addresses.

    A core must stand in `cores` when it founds the cluster; a replicant must not. `dir` is the
    data directory: it is created, locked, and belongs to this name in this cluster for good.
    """

    name: str
    dir: str
    peer_address: str
    cores: dict[str, str]
    cluster: str = "raftkv"
    role: Literal["core", "replicant"] = "core"
    http_address: str | None = None
    # "off" loses acknowledged writes at a power cut; it is named in the status output.
    fsync: Literal["on", "off"] = "on"
    # Without certificates only loopback addresses are allowed unless this is set.
    insecure: bool = False
    plugins: tuple[str, ...] = ("lcr",)
    # What a plugin needs to know locally, by plugin name; the plugin checks it at start.
    options: dict[str, dict[str, Any]] = {}
    # The default deadline of a call that states none.
    timeout_s: float = 5.0
    raft: RaftTimes = RaftTimes()
    limits: Limits = Limits()

    def validated(self) -> NodeConfig:
        """Return self if it is consistent, else raise `ConfigError` saying what to change."""
        for label, name in [("name", self.name), ("cluster", self.cluster), *self._core_names()]:
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{label} = {name!r} is not a valid name: use 1 to 63 letters, digits, "
                    f"'.', '_' or '-', starting with a letter or digit"
                )
        if not self.cores:
            raise ConfigError("cores is empty: name at least one core with its peer address")
        self._check_role()
        for label, address in self._addresses():
            host, _ = parse_address(address, label)
            if not self.insecure and not _is_loopback(host):
                raise ConfigError(
                    f"{label} = {address!r} is not a loopback address, and this node has no "
                    f"certificates: everybody who reaches it could read and write. Set "
                    f"insecure = true if the network is trusted"
                )
        self._check_numbers()
        return self

    def _core_names(self) -> list[tuple[str, str]]:
        return [("cores", name) for name in sorted(self.cores)]

    def _addresses(self) -> list[tuple[str, str]]:
        found = [("peer_address", self.peer_address)]
        found += [(f"cores.{name}", self.cores[name]) for name in sorted(self.cores)]
        if self.http_address is not None:
            found.append(("http_address", self.http_address))
        return found

    def _check_role(self) -> None:
        if self.role == "replicant" and self.name in self.cores:
            raise ConfigError(f"{self.name!r} is a replicant and must not stand in cores")
        if self.role == "core" and self.name not in self.cores:
            raise ConfigError(
                f"{self.name!r} is a core but does not stand in cores: add "
                f'{self.name} = "{self.peer_address}" under [cores]'
            )

    def _check_numbers(self) -> None:
        times, limits = self.raft, self.limits
        for group, struct in (("raft", times), ("limits", limits)):
            for field in msgspec.structs.fields(type(struct)):
                least = 0 if field.name in _MAY_BE_ZERO else 1
                if getattr(struct, field.name) < least:
                    raise ConfigError(f"{group}.{field.name} must be at least {least}")
        if self.timeout_s <= 0:
            raise ConfigError("timeout_s must be greater than 0")
        if times.election_timeout_max_ms <= times.election_timeout_min_ms:
            raise ConfigError(
                "raft.election_timeout_max_ms must exceed raft.election_timeout_min_ms, or all "
                "followers campaign at the same moment"
            )
        if times.heartbeat_ms * 3 > times.election_timeout_min_ms:
            raise ConfigError(
                "raft.heartbeat_ms must be at most a third of raft.election_timeout_min_ms, or "
                "one late heartbeat starts an election"
            )
        if times.lease_ms > times.election_timeout_min_ms:
            raise ConfigError(
                "raft.lease_ms must not exceed raft.election_timeout_min_ms: for that long a "
                "restarted node keeps the promises that it has forgotten"
            )
        if times.clock_drift_permille >= 500:
            raise ConfigError("raft.clock_drift_permille must be below 500")
        if limits.command_bytes_max > limits.batch_bytes_max:
            raise ConfigError("limits.command_bytes_max must not exceed limits.batch_bytes_max")
        if limits.frame_bytes_max < 2 * limits.batch_bytes_max:
            raise ConfigError("limits.frame_bytes_max must be at least twice batch_bytes_max")
        if limits.value_bytes_max + limits.key_bytes_max > limits.command_bytes_max:
            raise ConfigError(
                "limits.key_bytes_max plus value_bytes_max must fit into command_bytes_max"
            )
        if limits.snapshot_chunk_bytes > limits.frame_bytes_max // 2:
            raise ConfigError("limits.snapshot_chunk_bytes must be at most half a frame")


def parse_address(address: str, label: str = "address") -> tuple[str, int]:
    """Split `host:port` (or `[v6]:port`); raise `ConfigError` naming `label` if it is not one."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 <= int(port) <= 65_535:
        raise ConfigError(f'{label} = {address!r} is not an address: write "host:port"')
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_config(path: str | os.PathLike[str]) -> NodeConfig:
    """Read a TOML file. Relative `dir` is taken from the file's own folder.

    Raises `ConfigError` naming the file and the key, for an unreadable file, bad TOML, an unknown
    key, a value of the wrong type or an inconsistent whole.
    """
    try:
        with open(path, "rb") as file:
            raw: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{os.fspath(path)} is not valid TOML: {error}") from None
    try:
        config = msgspec.convert(raw, NodeConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from None
    if not os.path.isabs(config.dir):
        base = os.path.dirname(os.path.abspath(path))
        config = msgspec.structs.replace(config, dir=os.path.join(base, config.dir))
    return config.validated()
