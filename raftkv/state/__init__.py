"""The replicated state machine: pure, deterministic, without I/O, clock or chance."""

from .contract import (
    Change,
    Context,
    Member,
    MemberChange,
    PurePlugin,
    Setting,
    SettingChange,
    TableSpec,
    View,
)
from .core import (
    NodeDown,
    NodeDownResult,
    NodeUp,
    NodeUpResult,
    OpenSession,
    OpenSessionResult,
    OutcomeReport,
    SetSetting,
    SettleOutcome,
)
from .machine import Batch, Envelope, Fault, StateMachine, StateView, encode_batch
from .snapshot import Frozen, Image, Reader
from .tables import ABSENT, Absent, Table, TableView

__all__ = [
    "ABSENT",
    "Absent",
    "Batch",
    "Change",
    "Context",
    "Envelope",
    "Fault",
    "Frozen",
    "Image",
    "Member",
    "MemberChange",
    "NodeDown",
    "NodeDownResult",
    "NodeUp",
    "NodeUpResult",
    "OpenSession",
    "OpenSessionResult",
    "OutcomeReport",
    "PurePlugin",
    "Reader",
    "SetSetting",
    "Setting",
    "SettingChange",
    "SettleOutcome",
    "StateMachine",
    "StateView",
    "Table",
    "TableSpec",
    "TableView",
    "View",
    "encode_batch",
]
