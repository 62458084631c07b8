"""What goes over a link: one request, and lines of JSON as the answer, each a frame.

Theory. The request says, per topic, what the target has: a vector. From then on the source says
everything that comes behind it, per topic in the order of its positions; a target that has lost the
connection asks again from its tables, so nothing needs to be acknowledged. What the source lacks
(retention was faster) it says too, as a `Hole`: silence would be a gap that looks like an end.

Rules of this file
1. A line is looked at only when its size was checked: `LINE_BYTES_MAX`. What is in it is checked by
   the types, before anything else sees it.
2. Frames of one topic come in order: its `TopicFrame`, then messages by position, a `MarkerFrame`
   after all messages up to its position. `StateFrame`s may come at any time after the `TopicFrame`:
   an acknowledgement is true also before its message is here.
3. An `Alive` is only said after a linearizable read at the source. Without one for SILENCE_S the
   target gives the connection up: a half-open one looks like silence.
4. An unknown field is passed over, an unknown frame is an error: a newer source may say more of
   the same, and must not say other things to an older target (`PROTOCOL`).
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from raftkv_subscriptions.options import Want
from raftkv_subscriptions.rows import (
    NAME_CHARS_MAX,
    ROWS_MAX,
    Advance,
    Answer,
    Copy,
    Count,
    Hole,
    Kind,
    Ranges,
    Request,
    Vector,
)

__all__ = [
    "ALIVE_S",
    "FRAME_BYTES",
    "FRAME_PARTS",
    "LINE_BYTES_MAX",
    "PROTOCOL",
    "REQUEST_BYTES_MAX",
    "SILENCE_S",
    "STATE_RANGES",
    "Alive",
    "Bye",
    "Frame",
    "FrameError",
    "Hello",
    "LinkReport",
    "LinkRequest",
    "MarkerFrame",
    "MessagesFrame",
    "StateFrame",
    "TopicFrame",
    "decode",
    "encode",
]

KIB: Final = 1024
#: Raised when an older target would misunderstand what is said.
PROTOCOL: Final = 1
#: Messages in one frame, in bytes as `size_of` counts them; a larger message stands alone. Small
#: enough that acknowledgements between two frames do not wait long.
FRAME_BYTES: Final = 128 * KIB
#: Messages in one frame: one command takes them.
FRAME_PARTS: Final = ROWS_MAX
#: Acknowledged ranges in one frame: half of what a command may touch, for each may join two rows.
STATE_RANGES: Final = ROWS_MAX // 2
#: One line. A frame of many messages has some 200 KiB; but the largest message has 1 MiB, and JSON
#: writes a control character of its headers with six letters.
LINE_BYTES_MAX: Final = 8 * 1024 * KIB
#: One request: less than what a door takes.
REQUEST_BYTES_MAX: Final = 1024 * KIB
#: The source shows that it is there this often.
ALIVE_S: Final = 1.0
#: A connection on which nothing came for so long is given up.
SILENCE_S: Final = 3.0

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Parts = Annotated[tuple[Copy | Hole, ...], msgspec.Meta(min_length=1, max_length=FRAME_PARTS)]


class FrameError(ValueError):
    """What came is no frame of a link. Nothing of it is in the text."""


# --- what the target says -------------------------------------------------------------------------


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`region` asks for what it lacks; `topics`: what it has of each replicated topic.

    `want` "own": messages of the source's own, and of every origin that is not in `direct`, the
    regions that the target fetches from itself. "all": of every origin. Never the target's own.
    `paused`: topics whose messages are not wanted now, because they find no room.
    """

    region: Name
    protocol: int = PROTOCOL
    want: Want = "own"
    direct: tuple[Name, ...] = ()
    topics: dict[Name, Vector] = {}
    paused: tuple[Name, ...] = ()


class LinkReport(msgspec.Struct, frozen=True):
    """`region` says what it has, so that it need not be kept for it any longer.

    `link` is that of the `Hello` of the link that it came over, at the node that serves it.
    """

    region: Name
    topics: dict[Name, Vector]
    link: str = ""


# --- what the source says -------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first frame. `node` serves. `link` is a secret, by which the target reports."""

    region: Name
    node: str
    protocol: int = PROTOCOL
    link: str = ""


class TopicFrame(msgspec.Struct, frozen=True, tag="topic"):
    """A replicated topic, once per stream and topic before all else of it. `head`: what is there.

    How the source declared it counts only where it is missing.
    """

    topic: Name
    head: Vector
    compacted: bool = False
    retention_ms: Count = 0
    retention_bytes: Count = 0
    backlog_bytes_max: Count = 0


class MessagesFrame(msgspec.Struct, frozen=True, tag="messages"):
    """In the order of the source's positions."""

    topic: Name
    parts: Parts


class MarkerFrame(msgspec.Struct, frozen=True, tag="marker"):
    """Snapshot mode."""

    topic: Name
    what: Request | Answer | Advance


class StateFrame(msgspec.Struct, frozen=True, tag="state"):
    """Vector mode: these are acknowledged. `base`: where the subscription begins there.

    `whole`: it belongs to the first that this stream says of it, which is everything. Otherwise it
    is what is new.
    """

    topic: Name
    sub: Name
    kind: Kind
    base: Vector
    ranges: Annotated[Ranges, msgspec.Meta(max_length=STATE_RANGES)]
    whole: bool = False


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """`at_ms`: the log's clock there. `mode`: how subscriptions are replicated there now.

    `heads`: topics that have grown since this was last said. `gone`: topics of this stream that
    were deleted there, or are not replicated any more.
    """

    at_ms: Count
    mode: str = ""
    heads: dict[Name, Vector] = {}
    gone: tuple[Name, ...] = ()


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The last frame. `reason`: "stopping", "cut_off", "replaced", "excluded", "restored",
    "renamed"."""

    reason: str
    text: str = ""


Frame = Hello | TopicFrame | MessagesFrame | MarkerFrame | StateFrame | Alive | Bye

_frames: Final = msgspec.json.Decoder(Frame)
_encoder: Final = msgspec.json.Encoder()


def encode(frame: Frame) -> bytes:
    """One line, with its end."""
    return _encoder.encode(frame) + b"\n"


def decode(line: bytes) -> Frame:
    """The frame of a line. Raises FrameError; its text says what, and quotes nothing."""
    if len(line) > LINE_BYTES_MAX:
        raise FrameError(f"a line of {len(line)} bytes exceeds {LINE_BYTES_MAX}")
    try:
        frame: Frame = _frames.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a line is no frame of a link: {_kind_of(error)}") from None
    return frame


def _kind_of(error: Exception) -> str:
    """msgspec's texts name paths and types; those of other errors might quote what came."""
    return str(error) if isinstance(error, msgspec.ValidationError) else type(error).__name__
