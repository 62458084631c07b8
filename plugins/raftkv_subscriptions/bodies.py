"""What requests at the door say (door.py), as msgspec reads it: types, bounds, defaults.

Bodies of messages are base64, as all bytes at the door are; headers are pairs of texts. Times are
seconds, but for `at_ms`: a time of the log's clock, in milliseconds.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from .rows import (
    INT_MAX,
    ROWS_MAX,
    Count,
    Initial,
    Kind,
    Message,
    Mode,
    Position,
    RegionState,
)

__all__ = [
    "LIST_DEFAULT",
    "LIST_MAX",
    "NUMBER_MAX",
    "TIMEOUT_MAX_S",
    "TIMEOUT_S",
    "Wanted",
    "WantedAck",
    "WantedAckTo",
    "WantedConsumer",
    "WantedDeclare",
    "WantedMessage",
    "WantedMode",
    "WantedNothing",
    "WantedPublish",
    "WantedReceive",
    "WantedRegion",
    "WantedRegionName",
    "WantedReplicate",
    "WantedSeek",
    "WantedSubscribe",
    "WantedValue",
]

# How long a request may wait, and does if it says nothing.
TIMEOUT_S: Final = 5.0
TIMEOUT_MAX_S: Final = 600.0
# Messages of one answer.
LIST_DEFAULT: Final = 100
LIST_MAX: Final = 1_000
NUMBER_MAX: Final = INT_MAX
# A retention of more seconds is none.
AGE_MAX_S: Final = 10**10

Seconds = Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MAX_S)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=TIMEOUT_MAX_S)]
Age = Annotated[float, msgspec.Meta(ge=0, le=AGE_MAX_S)]
Some = Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Positions = Annotated[tuple[Position, ...], msgspec.Meta(min_length=1, max_length=ROWS_MAX)]
#: A position means that the next message is the one after it.
Place = Count | Literal["earliest", "latest"]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class WantedNothing(Wanted, frozen=True):
    """An empty body, or `{}`."""


class WantedMessage(Wanted, frozen=True):
    body: bytes
    key: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def message(self) -> Message:
        return Message(self.body, self.key, self.headers)


class WantedDeclare(Wanted, frozen=True):
    """null: as it is, or the default for a new one. `change`: an existing one may differ."""

    replicated: bool | None = None
    compacted: bool | None = None
    retention_s: Age | None = None
    retention_bytes: Count | None = None
    backlog_bytes_max: Count | None = None
    change: bool = False


class WantedPublish(Wanted, frozen=True):
    messages: tuple[WantedMessage, ...]
    timeout_s: Seconds = TIMEOUT_S


class WantedSubscribe(Wanted, frozen=True):
    """`replicate` null: false for a new one, unchanged for one that is there."""

    kind: Kind = "exclusive"
    initial: Initial = "latest"
    replicate: bool | None = None


class WantedReplicate(Wanted, frozen=True):
    replicate: bool


class WantedSeek(Wanted, frozen=True):
    """One of the two has to be said."""

    position: Place | None = None
    at_ms: Count | None = None


class WantedAck(Wanted, frozen=True):
    """`epoch`: that of the delivery, null: of what the consumer received last, or none."""

    positions: Positions
    epoch: Count | None = None


class WantedAckTo(Wanted, frozen=True):
    """`epoch` as in `WantedAck`."""

    position: Count
    epoch: Count | None = None


class WantedConsumer(Wanted, frozen=True):
    """`subscribe` false: only if the subscription is there."""

    topic: str
    sub: str
    kind: Kind = "exclusive"
    initial: Initial = "latest"
    replicate: bool | None = None
    priority: Priority = 0
    name: str = ""
    subscribe: bool = True
    timeout_s: Seconds = TIMEOUT_S


class WantedReceive(Wanted, frozen=True):
    """`wait_s`: for the first one; 0: what is there now."""

    count: Some = 1
    wait_s: Wait = 0.0


class WantedRegion(Wanted, frozen=True):
    """`fetches` null: true for a new one, unchanged for a known one."""

    state: RegionState = "active"
    fetches: bool | None = None


class WantedRegionName(Wanted, frozen=True):
    region: str


class WantedMode(Wanted, frozen=True):
    mode: Mode


class WantedValue(Wanted, frozen=True):
    value: msgspec.Raw
