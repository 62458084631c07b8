"""The replicated state machine: pure, deterministic, without I/O, clock or chance.

What a plugin is written with is imported at once, and the machine when it is first used: a plugin's
commands on the command line need none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .batch import Batch, Envelope, check_envelope, encode_batch
from .contract import (
    Change,
    Context,
    Member,
    MemberChange,
    PurePlugin,
    Quota,
    Setting,
    SettingChange,
    TableSpec,
    View,
)
from .slicing import Steps, at_once
from .tables import ABSENT, Absent, Table, TableView

if TYPE_CHECKING:
    from .core import (
        DeclareDead,
        DisarmAlarm,
        NodeDown,
        NodeDownResult,
        NodeRole,
        NodeUp,
        NodeUpResult,
        OpenSession,
        OpenSessionResult,
        OutcomeReport,
        SetSetting,
        SettleOutcome,
        SetVoters,
    )
    from .machine import Fault, StateMachine
    from .snapshot import Frozen, Image, Reader
    from .views import StateView

__all__ = [
    "ABSENT",
    "Absent",
    "Batch",
    "Change",
    "Context",
    "DeclareDead",
    "DisarmAlarm",
    "Envelope",
    "Fault",
    "Frozen",
    "Image",
    "Member",
    "MemberChange",
    "NodeDown",
    "NodeDownResult",
    "NodeRole",
    "NodeUp",
    "NodeUpResult",
    "OpenSession",
    "OpenSessionResult",
    "OutcomeReport",
    "PurePlugin",
    "Quota",
    "Reader",
    "SetSetting",
    "SetVoters",
    "Setting",
    "SettingChange",
    "SettleOutcome",
    "StateMachine",
    "StateView",
    "Steps",
    "Table",
    "TableSpec",
    "TableView",
    "View",
    "at_once",
    "check_envelope",
    "encode_batch",
]

# Which module has the name. tests/test_imports.py holds this against the imports above.
_HOMES = {
    "DeclareDead": "core",
    "DisarmAlarm": "core",
    "Fault": "machine",
    "Frozen": "snapshot",
    "Image": "snapshot",
    "NodeDown": "core",
    "NodeDownResult": "core",
    "NodeRole": "core",
    "NodeUp": "core",
    "NodeUpResult": "core",
    "OpenSession": "core",
    "OpenSessionResult": "core",
    "OutcomeReport": "core",
    "Reader": "snapshot",
    "SetSetting": "core",
    "SetVoters": "core",
    "SettleOutcome": "core",
    "StateMachine": "machine",
    "StateView": "views",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return list(__all__)
