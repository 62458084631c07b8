"""The whole door of a node, put together from its configuration."""

from __future__ import annotations

from importlib import metadata

from raftkv import descriptors
from raftkv.config import NodeConfig, parse_address
from raftkv.errors import ConfigError
from raftkv.node import Node
from raftkv.plugin import Metric

from .admission import Admission
from .app import App
from .door import Door
from .format_routes import format_routes
from .members import member_routes
from .peer_rate import PeerRate
from .quota_routes import quota_routes
from .routes import with_own
from .sessions import Sessions
from .tls import DoorTls, names_in

__all__ = ["door_of"]


def door_of(node: Node, *, version: str = "") -> Door:
    """The HTTP API of a started node, with all its routes: the one that the node serves.

    A node with an `http_address` serves it by itself. Another one is made, not started yet, after
    that one was stopped, and for a node with a runtime of a test. `version` is what `/version`
    gives as `raftkv`, if not the installed one. Its figures are among the node's. Raises
    ConfigError without `http_address`, CertificateError for files of `http_tls` that cannot be
    used.
    """
    if node.http_api is not None and not node.http_api.stopped:
        return node.http_api
    config = node.config
    if config.http_address is None:
        raise ConfigError("http_address is not set: the node has no door")
    label = "http_address" if config.http_listen_address is None else "http_listen_address"
    host, port = parse_address(config.http_listen_address or config.http_address, label)
    tls = None if config.http_tls is None else DoorTls(config.http_tls)
    rate = PeerRate(config.http.sessions_per_s_max, node.runtime.monotonic)
    sessions = Sessions(node, timeout_s=config.timeout_s, rate=rate)
    routes = with_own(
        {
            "members": member_routes(node),
            "format": format_routes(node),
            "quotas": quota_routes(node),
            **sessions.routes(),
        },
        {name: each.routes() for name, each in node.hosting.services.items()},
    )
    command_bytes_max = config.limits.command_bytes_max
    app = App(
        node,
        routes=routes,
        version=version or _version(),
        # base64 makes 4/3 of a command; the rest is JSON around many small operations.
        body_bytes_max=2 * command_bytes_max,
        route_body_bytes_max=command_bytes_max,
        sessions=sessions,
        limits=descriptors.within_limit(config.http),
        scheme="http" if tls is None else "https",
        admission=_admission(config),
    )
    # The first scrape should hold the loop no longer than the others.
    node.metrics.prepare()
    door = Door(app, host, port, tls=tls, label=label)

    def figures() -> list[Metric]:
        limit = {"limit": "sessions_per_s_max"}
        by_rate = Metric("refused", "counter", rate.refused, "Refused, by the limit.", limit)
        return [*door.metrics(), by_rate]

    node.metrics.add("door", figures)
    # Before anybody waits for a first scrape.
    node.metrics.prepare()
    node.http_api = door
    return door


def _version() -> str:
    try:
        return metadata.version("raftkv")
    except metadata.PackageNotFoundError:
        return "unknown"


def _admission(config: NodeConfig) -> Admission:
    """Who the node is to its clients: the names that it tells others, and those of its settings."""
    addresses = (config.http_address, config.peer_address, config.cores.get(config.name))
    names = [parse_address(address)[0] for address in addresses if address is not None]
    if config.tls is not None:
        names += names_in(config.tls.certificate)
    return Admission(names, host_whitelist=config.host_whitelist, cors=config.cors)
