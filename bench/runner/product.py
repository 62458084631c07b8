"""Inner names of raftkv that the benchmark uses, from whichever modules a revision has them in.

`bench compare` and `bench turns` run this bench on other revisions of raftkv, whose modules may
have other names. Each name here lists its modules, the newest first; a name is imported when it is
first asked for, because a revision may lack others. Names that users import (`raftkv.Node`,
`raftkv.kv.PutOp`) stay where they are and need no row.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

# Imported `as` themselves, which offers them to the other modules.
if TYPE_CHECKING:
    from raftkv.cli.ports import free_ports as free_ports
    from raftkv.raft.link import Link as Link
    from raftkv.security.directory import certify as certify
    from raftkv.server import App as App
    from raftkv.server import Door as Door
    from raftkv.server import door_of as door_of
    from raftkv_lcr.api import LcrApi as LcrApi
    from raftkv_lcr.commands import Channel as Channel
    from raftkv_lcr.commands import OldNodes as OldNodes
    from raftkv_lcr.commands import Open as Open
    from raftkv_lcr.commands import Registered as Registered
    from raftkv_lcr.owner import Message as Message
    from raftkv_lcr.result import ConnectResult as ConnectResult
    from raftkv_lcr.testing.broker import MemoryBroker as MemoryBroker

_SERVER = ("raftkv.http", "raftkv.server")
_COMMANDS = ("raftkv_lcr.machine.commands", "raftkv_lcr.commands")
HOMES: dict[str, tuple[str, ...]] = {
    "App": _SERVER,
    "Channel": _COMMANDS,
    "ConnectResult": ("raftkv_lcr.node.results", "raftkv_lcr.result"),
    "Door": _SERVER,
    "LcrApi": ("raftkv_lcr.api",),
    "Link": ("raftkv.raft.link",),
    "MemoryBroker": ("raftkv_lcr.testing.broker",),
    "Message": ("raftkv_lcr.node.channel_owner", "raftkv_lcr.owner"),
    "OldNodes": _COMMANDS,
    "Open": _COMMANDS,
    "Registered": _COMMANDS,
    "certify": ("raftkv.security.certificate_directory", "raftkv.security.directory"),
    "door_of": _SERVER,
    "free_ports": ("raftkv.cli.devcluster.free_ports", "raftkv.cli.ports"),
}


def home_of(modules: tuple[str, ...]) -> str:
    """The first of the modules that this revision has; the last one if it has none."""
    for name in modules:
        # A module that lacks a parent is missing as well, and so is one below what is no package.
        try:
            if find_spec(name) is not None:
                return name
        except ModuleNotFoundError:
            continue
    return modules[-1]


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of(HOMES[name])), name)
