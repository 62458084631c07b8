"""Frames: what a peer may send, through the real receive path up to typed messages.

Two kinds of cases: bodies, each of which a correct frame delivers to `wire.decode`; and streams,
several frames behind each other with damage anywhere, lengths too, cut into reads of odd sizes by
`wire.Frames`, under the limit of a stranger (`HELLO_BYTES_MAX`) or of a known peer. The handlers
behind it have a target of their own (handlers.py).

Allowed: a message of the protocol that survives being encoded again, or `ProtocolError`. Between
two reads nothing larger than one frame of the limit may be kept.
"""

from __future__ import annotations

import random
import types
import typing
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from raftkv.raft import wire
from raftkv.testing.fuzz.mutate import STRANGE, damaged, damaged_document
from raftkv.testing.fuzz.target import Case, Finding

__all__ = ["KINDS", "FrameTarget", "sample_message", "samples"]

KINDS: Final[tuple[type[msgspec.Struct], ...]] = get_args(wire.Message)
SAMPLES_PER_KIND: Final = 12
BODIES_PER_CASE: Final = 16
FRAMES_PER_STREAM: Final = 8
# Of the cases, how many are streams.
STREAM_SHARE: Final = 0.25
# A known peer's limit in the cases; small, so that streams pass it now and then.
FRAME_BYTES_MAX: Final = 64 * 1024


def sample_message(kind: type[msgspec.Struct], rng: random.Random) -> Any:
    """A message of that kind with plausible values in every field."""
    values = {f.name: _value(f.type, rng) for f in msgspec.structs.fields(kind)}
    return kind(**values)


def _value(kind: Any, rng: random.Random) -> Any:
    """A value of the field's type. An unknown type is an error: teach it here."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _value(arguments[0], rng)
    if origin in (typing.Union, types.UnionType):
        return _value(rng.choice(arguments), rng)
    if origin is typing.Literal:
        return rng.choice(arguments)
    if origin is list:
        return [_value(arguments[0], rng) for _ in range(rng.randrange(4))]
    if origin is tuple and Ellipsis in arguments:
        return tuple(_value(arguments[0], rng) for _ in range(rng.randrange(4)))
    if origin is tuple:
        return tuple(_value(argument, rng) for argument in arguments)
    if origin is dict:
        return {_value(arguments[0], rng): _value(arguments[1], rng) for _ in range(3)}
    if kind is type(None):
        return None
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice((0, 1, 2, 5, 100, 1000, 70_000, rng.randrange(1 << 40)))
    if kind is float:
        return rng.random()
    if kind is str:
        return rng.choice(("", "raft", "core1", "core1-0a1b2c3d", "dev", "127.0.0.1:7000"))
    if kind is bytes:
        return bytes([rng.randrange(4)]) + rng.randbytes(rng.randrange(40))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return sample_message(kind, rng)
    raise TypeError(f"no sample of {kind!r}: teach raftkv/testing/fuzz/frames.py this type")


def samples(seed: int = 1) -> list[bytes]:
    """Frame bodies of valid messages, some of every kind."""
    rng = random.Random(seed)
    return [
        wire.encode(sample_message(kind, rng))[4:]
        for kind in KINDS
        for _ in range(SAMPLES_PER_KIND)
    ]


class FrameTarget:
    """See the module's text. Counts frames: every body, and every frame put into a stream."""

    name = "frames"
    unit = "frames"
    traced: Sequence[str] = ()
    batch = 1000

    def __init__(self) -> None:
        self._bodies = samples()
        self._documents = [msgspec.msgpack.decode(body) for body in self._bodies]

    def make(self, rng: random.Random) -> Case:
        if rng.random() < STREAM_SHARE:
            return self._stream(rng)
        return Case({str(n): self._body(rng) for n in range(BODIES_PER_CASE)})

    def vary(self, case: Case, rng: random.Random) -> Case:
        parts = {name: damaged(data, rng) for name, data in case.parts.items()}
        return Case(parts, case.sample, case.choice)

    def _body(self, rng: random.Random) -> bytes:
        draw = rng.random()
        at = int(rng.random() * len(self._bodies))
        if draw < 0.45:
            other = self._bodies[int(rng.random() * len(self._bodies))]
            return damaged(self._bodies[at], rng, other)
        if draw < 0.9:
            return damaged_document(self._documents[at], rng, self._documents)
        if draw < 0.95:
            # A known tag with random fields behind it.
            document = self._documents[at]
            fields = [STRANGE[int(rng.random() * len(STRANGE))] for _ in document[1:]]
            return msgspec.msgpack.encode([document[0], *fields])
        return rng.randbytes(int(rng.random() * 40))

    def _stream(self, rng: random.Random) -> Case:
        bodies = [
            self._body(rng) if rng.random() < 0.5 else rng.choice(self._bodies)
            for _ in range(FRAMES_PER_STREAM)
        ]
        stream = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
        if rng.random() < 0.7:
            stream = damaged(stream, rng, stream, times=1)
        # The choice seeds the sizes of the reads; zero is kept for bodies.
        return Case({"stream": stream}, choice=1 + int(rng.random() * (1 << 30)))

    def run(self, case: Case) -> Counter[str]:
        counts: Counter[str] = Counter()
        if case.choice:
            self._run_stream(case.parts["stream"], case.choice, counts)
            return counts
        for body in case.parts.values():
            counts[self._decode(body)] += 1
        return counts

    @staticmethod
    def _decode(body: bytes) -> str:
        try:
            message = wire.decode(body)
        except wire.ProtocolError:
            return "refused"
        if not isinstance(message, KINDS):
            raise Finding(f"decoded into no message: {type(message).__name__}")
        if wire.decode(wire.encode(message)[4:]) != message:
            raise Finding("a decoded message does not survive being encoded again")
        return "decoded"

    def _run_stream(self, stream: bytes, choice: int, counts: Counter[str]) -> None:
        rng = random.Random(choice)
        limit = wire.HELLO_BYTES_MAX if choice % 2 else FRAME_BYTES_MAX
        frames = wire.Frames(limit)
        greeted = bool(choice % 4 // 2)
        before = sum(counts.values())
        at = 0
        while at < len(stream):
            count = 1 + int(rng.random() ** 4 * 4000)
            piece = stream[at : at + count]
            at += count
            try:
                if greeted:
                    bodies = frames.feed(piece)
                else:
                    first = frames.feed_one(piece)
                    greeted = first is not None
                    bodies = [] if first is None else [first, *frames.feed(b"")]
            except wire.ProtocolError:
                counts["link dropped"] += 1
                break
            if frames.waiting_bytes > 4 + limit:
                raise Finding(f"{frames.waiting_bytes} bytes are kept, the limit is {limit}")
            for body in bodies:
                if len(body) > limit:
                    raise Finding(f"a frame of {len(body)} bytes passed the limit {limit}")
                counts[self._decode(body)] += 1
        missing = FRAMES_PER_STREAM - (sum(counts.values()) - before)
        # What a dropped link or a changed length has swallowed was fed all the same.
        counts["swallowed"] += max(0, missing)
