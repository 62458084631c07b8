"""The configuration of a node: TOML or keyword arguments in, one validated frozen object out.

Everything that a node may be told locally is here, and nothing that influences a verdict of the
replicated state machine: those are replicated settings, values in the log (docs/settings.md).
Every limit states its unit in its name, its default, and its reason in the comment above it.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from .address_rules import check_addresses, is_loopback, parse_address
from .errors import ConfigError
from .frozen_dict import FrozenDict, frozen
from .hostnames import normal_name, normal_origin

__all__ = [
    "NAME_RULE",
    "HttpLimits",
    "HttpTls",
    "Limits",
    "NodeConfig",
    "RaftTimes",
    "TlsFiles",
    "is_name",
    "load_config",
    "parse_address",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

#: What `is_name` allows, for messages.
NAME_RULE = "use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"

_MAY_BE_ZERO = ("lease_ms", "clock_drift_permille", "snapshot_log_percent", "disk_reserve_bytes")

KIB = 1024
MIB = 1024 * KIB


def _check_fields(struct: msgspec.Struct, group: str = "") -> None:
    """Check every field by its type; a list stands for a tuple, a path for its string.

    Raises ConfigError naming the key. Numbers of a group are also checked against their least.
    """
    for field in msgspec.structs.fields(struct):
        label = f"{group}{field.name}"
        given = getattr(struct, field.name)
        value = os.fspath(given) if isinstance(given, os.PathLike) else given
        choices = get_args(field.type) if get_origin(field.type) is Literal else ()
        if choices and value not in choices:
            words = " or ".join(f'"{choice}"' for choice in choices)
            raise ConfigError(f"{label} = {given!r}: it must be {words}")
        try:
            value = msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{label} = {given!r:.80}: {_plain(str(error))}") from None
        if isinstance(value, dict):
            value = frozen(value)  # nothing that was checked changes afterwards
        if value is not given:
            msgspec.structs.force_setattr(struct, field.name, value)
        if isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{label} = {given!r:.80}: it must not contain a NUL character")
        if group and type(value) in (int, float):
            _check_least(label, value, 0 if field.name in _MAY_BE_ZERO else 1)


def _check_least(label: str, value: float, least: int) -> None:
    if type(value) is float:
        if not 0 < value < math.inf:  # nan is neither
            raise ConfigError(f"{label} must be greater than 0, and finite")
    elif value < least:
        raise ConfigError(f"{label} must be at least {least}")


def _plain(error: str) -> str:
    """A message of msgspec in the words of this module."""
    plain = error.replace("`object", "`table").replace("`array", "`list")
    return plain.replace("Expected", "it must be a").replace(" - at `$[...]`", "").replace("`", "")


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

    def __post_init__(self) -> None:
        _check_fields(self, "raft.")


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
    # A snapshot is written when the log behind the last one exceeds either: a start applies it.
    snapshot_log_bytes: int = 64 * MIB
    snapshot_log_entries: int = 200_000
    # But its bytes must be so much of the last snapshot's, too, or a large state would be written
    # again and again for a little log. With 33 at most three bytes are written for one of the log,
    # and what a start applies takes at most three times as long as reading the snapshot.
    snapshot_log_percent: int = 33
    # Entries kept behind a snapshot, so that a slow follower needs no snapshot.
    log_tail_entries: int = 10_000
    # And not more than so much of it, because it is kept in memory, too.
    log_tail_bytes: int = 32 * MIB
    # One write-ahead log segment: small enough to be deleted soon, large enough to be few.
    segment_bytes_max: int = 64 * MIB
    # One chunk of a snapshot on its way to another node: read, sent, checked and written in one go.
    snapshot_chunk_bytes: int = 256 * KIB
    # What is on its way to one node and not acknowledged. A heartbeat waits behind it in the same
    # stream: 84 ms at 100 Mbit/s, a seventh of the shortest election time-out.
    snapshot_inflight_bytes_max: int = 1 * MIB
    # The rate to one node: about half of a gigabit link, so that the log has the other half.
    snapshot_send_bytes_per_s: int = 64 * MIB
    # The rate to the own disk: a third of what a plain SSD writes, so that the log has the rest.
    snapshot_write_bytes_per_s: int = 64 * MIB
    # What the walk for a snapshot takes of the loop, at least, while entries are applied. It takes
    # more where nobody waits for the node, and when the log behind it grows (raft/pacing.py).
    snapshot_loop_percent: int = 5
    # Snapshots that a core sends to replicants at once. While N are under way a value that changes
    # is kept N times: 1 costs a tenth of the rate of applying, 4 about a third, 50 five sixths.
    replicant_snapshots_max: int = 4
    # What a snapshot must leave free on the disk: two segments, so that the log goes on while room
    # is made, and keys can be deleted and compacted. At most a tenth of the volume. 0: no reserve.
    disk_reserve_bytes: int = 128 * MIB
    # The log that is kept while no snapshot can be written; at least twice of what begins one. It
    # is in memory, too, and a start applies it; 100 kB/s of writes fill it in three hours.
    log_kept_bytes_max: int = 1024 * MIB
    # A snapshot file is synced this often while it grows. What is written and not synced would
    # delay the next fsync of the log: 8 MiB by some tens of milliseconds.
    snapshot_sync_bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        _check_fields(self, "limits.")


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a node's certificates are: PEM files, read again when they change.

    `ca` may hold several authorities: all of them are trusted, so that one can replace another.
    """

    ca: str
    certificate: str
    key: str

    def __post_init__(self) -> None:
        _check_fields(self, "tls.")


class HttpTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP door's certificate: PEM files, read again when they change.

    `ca` holds the authorities of the clients: with it every client must show a certificate of
    theirs. Without it anybody may come, so the door then needs `insecure` like one without TLS.
    """

    certificate: str
    key: str
    ca: str | None = None

    def __post_init__(self) -> None:
        _check_fields(self, "http_tls.")


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the HTTP door of one node takes at once. Beyond it: 429 or 503, and Retry-After.

    The largest body is no limit of its own: it follows from `limits.command_bytes_max`.
    """

    # Connections at once. Where the process may have fewer files open, fewer (descriptors.py).
    connections_max: int = 4096
    # Requests under way at once. At 10,000 a second these are answered in a fifth of a second;
    # a client that had to wait longer is better told so.
    requests_max: int = 2048
    # Streams at once, watches and keep-alives: they hold their connections for good, and half of
    # the connections is left for requests.
    streams_max: int = 2048
    # Bytes of answers that are written or not yet taken by their clients, over all connections: two
    # of the largest one (256 MiB).
    answer_bytes_max: int = 512 * MIB
    # Bytes of requests that are received and not answered yet, over all connections: 85 of the
    # largest body. The first 64 KiB of each need no room, so that small ones are always taken.
    request_bytes_max: int = 256 * MIB
    # New client sessions (POST /v1/sessions) a second from one address, and ten seconds' worth at
    # once. The cluster has 10,000, and one address must not use them up.
    sessions_per_s_max: int = 50
    # Watches on one stream.
    stream_watches_max: int = 1000
    # Bytes of the watches of all streams, with their keys: a kilobyte each and the key and the end
    # of its range, without what waits in their buffers. 30 watches for each of the streams.
    watch_bytes_max: int = 64 * MIB
    # Request line and headers of one request. Apache and nginx allow 8 KiB a line, Node.js 16 KiB
    # in all; this leaves room for a proxy's additions. One read of the loop may exceed it once.
    head_bytes_max: int = 64 * KIB
    # From the first byte of a request to its last one, and from connecting to the first request:
    # 3 MiB in that time are 100 KiB/s. A stream's requests may come whenever they like.
    request_timeout_s: float = 30.0
    # An idle connection is kept so long: clients pool connections and expect them to last.
    idle_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        _check_fields(self, "http.")


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node. `cores` names the cores that bootstrap the cluster, with their peer addresses.

    A core must be listed in `cores` when it bootstraps the cluster; a replicant must not. `dir` is
    the data directory: it is created, locked, and belongs to this name in this cluster for good.

    The constructor checks every field, as `load_config` does for a file, and raises ConfigError.
    """

    name: str
    dir: str
    peer_address: str
    cores: Mapping[str, str]
    cluster: str = "raftkv"
    role: Literal["core", "replicant"] = "core"
    # Where to listen for other nodes, if that is not `peer_address`, which is what they are told:
    # behind address translation, in a container, or with a proxy in front.
    listen_address: str | None = None
    http_address: str | None = None
    # Where the HTTP API listens, if that is not `http_address`, which others get.
    http_listen_address: str | None = None
    # Host names by which clients may address the HTTP API, besides IP addresses, localhost, and the
    # names in this node's addresses and certificate. "*" allows every name, which leaves the node
    # open to web pages that rebind a name of their own.
    host_whitelist: tuple[str, ...] = ()
    # Origins of web pages that may use the HTTP API: "https://console.example". "*" allows all.
    cors: tuple[str, ...] = ()
    # "off" loses acknowledged writes at a power cut; it is named in the status output.
    fsync: Literal["on", "off"] = "on"
    # With certificates, streams between nodes are mutual TLS 1.3 and nothing else.
    tls: TlsFiles | None = None
    # The same for the HTTP door, with certificates of its own: clients are no nodes.
    http_tls: HttpTls | None = None
    # Without certificates only loopback addresses are allowed unless this is set: for streams
    # between nodes without [tls], for the HTTP door without the clients' certificates.
    insecure: bool = False
    # Those of this package. A plugin is active once all cores have it.
    plugins: tuple[str, ...] = ("lcr", "calls", "conf", "limbo", "txqueue", "subscriptions")
    # What a plugin needs to know locally, by plugin name; the plugin checks it at start.
    options: Mapping[str, Mapping[str, Any]] = FrozenDict()
    # The default deadline of a call that states none.
    timeout_s: float = 5.0
    # Whether the leader raises the core format of the cluster by itself once every member knows a
    # newer one; "manual" leaves it to `raftkv format raise`. It cannot be taken back.
    format_raise: Literal["automatic", "manual"] = "automatic"
    # For how long all members must have known it before: the time in which an operator may still
    # go back to the former release. An upgrade that fails usually shows it within minutes.
    format_raise_after_s: float = 600.0
    # How often the cores compare digests of their states. What memory or a bug has changed spreads
    # by then into snapshots and answers; a check takes half a percent of a core. 0: never.
    corruption_check_s: float = 600.0
    # What a core does that is found corrupt: it stops, for an operator to look at it; or it has
    # itself removed, stops, and is a new core with an empty directory after its next start.
    on_corruption: Literal["stop", "rebuild"] = "stop"
    raft: RaftTimes = RaftTimes()
    limits: Limits = Limits()
    http: HttpLimits = HttpLimits()

    def __post_init__(self) -> None:
        _check_fields(self)
        self._check()

    def validated(self) -> NodeConfig:
        """Return self, which the constructor has checked."""
        self._check()
        return self

    def _check(self) -> None:
        """Raise `ConfigError`, saying what to change, unless the whole is consistent."""
        for label, name in [("name", self.name), ("cluster", self.cluster), *self._core_names()]:
            if not is_name(name):
                raise ConfigError(f"{label} = {name!r} is not a valid name: {NAME_RULE}")
        if not self.dir:
            raise ConfigError('dir = "": name the data directory; "." is the one of the program')
        if not self.cores:
            raise ConfigError("cores is empty: name at least one core with its peer address")
        self._check_role()
        self._check_addresses()
        self._check_web()
        self._check_plugins()
        self._check_numbers()

    def _core_names(self) -> list[tuple[str, str]]:
        return [("cores", name) for name in sorted(self.cores)]

    def _check_addresses(self) -> None:
        for_others = [("peer_address", self.peer_address)]
        for_others += [(f"cores.{name}", self.cores[name]) for name in sorted(self.cores)]
        listening = [_listens("listen_address", self.listen_address, *for_others[0])]
        if self.http_address is not None:
            for_others.append(("http_address", self.http_address))
            listening.append(
                _listens("http_listen_address", self.http_listen_address, *for_others[-1])
            )
        elif self.http_listen_address is not None:
            raise ConfigError(
                f"http_listen_address = {self.http_listen_address!r}: name with http_address where "
                f"clients reach the HTTP API, too"
            )
        check_addresses(self.name, self.role, self.cores, for_others, listening)
        for label, address in dict.fromkeys((*for_others, *listening)):
            host, _ = parse_address(address, label)
            if not self.insecure and not is_loopback(host):
                self._check_certificates(label, address)

    def _check_certificates(self, label: str, address: str) -> None:
        """An address that is not loopback needs certificates, or `insecure`."""
        if label in ("http_address", "http_listen_address"):
            if self.http_tls is not None and self.http_tls.ca is not None:
                return
            lacks = "has no TLS" if self.http_tls is None else "asks for no client certificates"
            raise ConfigError(
                f"{label} = {address!r} is not a loopback address, and the HTTP API {lacks}: "
                f"everybody who reaches it could read and write. Name a certificate, its key "
                f"and the clients' ca under [http_tls], or set insecure = true if the network "
                f"is trusted"
            )
        if self.tls is None:
            raise ConfigError(
                f"{label} = {address!r} is not a loopback address, and this node has no "
                f"certificates: everybody who reaches it could read and write. Make them with "
                f"raftkv certs and name them under [tls], or set insecure = true if the "
                f"network is trusted"
            )

    def _check_role(self) -> None:
        if self.role == "replicant" and self.name in self.cores:
            raise ConfigError(f"{self.name!r} is a replicant and must not be listed in cores")
        if self.role == "core" and self.name not in self.cores:
            raise ConfigError(
                f"{self.name!r} is a core but is not listed in cores: add "
                f'{self.name} = "{self.peer_address}" under [cores]'
            )

    def _check_plugins(self) -> None:
        for name in self.plugins:
            if self.plugins.count(name) > 1:
                raise ConfigError(f"plugins names {name!r:.80} twice: leave one out")

    def _check_web(self) -> None:
        for name in self.host_whitelist:
            if name != "*" and normal_name(name) is None:
                raise ConfigError(
                    f'host_whitelist: {name!r} is not a host name: write "host.example" without '
                    f'scheme and port, "*.example" for all hosts of a domain, or "*" for any'
                )
        for origin in self.cors:
            if origin != "*" and normal_origin(origin) is None:
                raise ConfigError(
                    f"cors: {origin!r} is not an origin: write scheme, host and port as browsers "
                    f'do, "https://console.example:8443", without a path, or "*" for any'
                )

    def _check_numbers(self) -> None:
        times, limits = self.raft, self.limits
        for label in ("timeout_s", "format_raise_after_s"):
            if not 0 < getattr(self, label) < math.inf:
                raise ConfigError(f"{label} must be greater than 0, and finite")
        if not 0 <= self.corruption_check_s < math.inf:
            raise ConfigError("corruption_check_s must be 0 or more, and finite")
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
        if limits.snapshot_inflight_bytes_max < limits.snapshot_chunk_bytes:
            raise ConfigError("limits.snapshot_inflight_bytes_max must be at least one chunk")


def _listens(label: str, address: str | None, other: str, advertised: str) -> tuple[str, str]:
    """The key and the address that a node listens on: its own, or the advertised one."""
    return (other, advertised) if address is None else (label, address)


def is_name(text: str) -> bool:
    """Whether a node or a cluster may be called so."""
    return _NAME.fullmatch(text) is not None


def load_config(path: str | os.PathLike[str]) -> NodeConfig:
    """Read a TOML file. `dir` and the files of certificates are relative to the file's own folder.

    Raises `ConfigError` naming the file and the key, for an unreadable file, bad TOML, an unknown
    key, a value of the wrong type or an inconsistent whole.
    """
    try:
        with open(path, "rb") as file:
            raw: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{os.fspath(path)} is not valid TOML: {error}") from None
    try:
        config = msgspec.convert(raw, NodeConfig)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from None
    base = os.path.dirname(os.path.abspath(path))
    config = msgspec.structs.replace(config, dir=os.path.join(base, config.dir))
    # join() leaves an absolute path as it is.
    if config.tls is not None:
        config = msgspec.structs.replace(config, tls=_below(base, config.tls))
    if config.http_tls is not None:
        config = msgspec.structs.replace(config, http_tls=_below(base, config.http_tls))
    return config


_Files = TypeVar("_Files", TlsFiles, HttpTls)


def _below(base: str, files: _Files) -> _Files:
    given = msgspec.structs.asdict(files)
    absolute = {key: os.path.join(base, file) for key, file in given.items() if file is not None}
    return msgspec.structs.replace(files, **absolute)
