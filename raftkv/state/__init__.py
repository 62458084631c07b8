"""The replicated state machine: pure, deterministic, without I/O, clock or chance."""

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
from .slicing import Steps, at_once
from .snapshot import Frozen, Image, Reader
from .tables import ABSENT, Absent, Table, TableView
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
