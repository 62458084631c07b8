"""A cluster of one node, and its door."""

from __future__ import annotations

from pathlib import Path

import raftkv
from raftkv import NodeConfig
from raftkv.server import App, Door
from raftkv.server.members import member_routes
from raftkv.server.sessions import Sessions
from raftkv.testing.local_cluster import free_ports

__all__ = ["config", "open_door"]


def config(directory: Path, name: str = "alone") -> NodeConfig:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return NodeConfig(
        name=name,
        dir=str(directory / name),
        peer_address=address,
        cores={name: address},
        fsync="off",
    )


async def open_door(node: raftkv.Node) -> Door:
    sessions = Sessions(node)
    routes = {"members": member_routes(node), **sessions.routes()}
    door = Door(App(node, routes=routes, sessions=sessions), "127.0.0.1", 0)
    await door.start()
    return door
