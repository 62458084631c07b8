"""wire.py: messages survive the stream however it is cut; other bytes are a ProtocolError."""

from __future__ import annotations

import struct
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.raft import wire
from raftkv.raft.epoch import NUMBER_MAX, Epoch

MESSAGES = get_args(wire.Message)
number = st.integers(0, wire.NUMBER_MAX)
nonce = st.integers(0, 2**63 - 1)
payload = st.binary(min_size=1, max_size=20)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    wire.Number: number,
    wire.Nonce: nonce,
    bool: st.booleans(),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=60),
    Epoch: st.builds(Epoch, st.integers(0, NUMBER_MAX), st.text(max_size=9)),
    list[bytes]: st.lists(st.binary(max_size=20), max_size=4),
    list[tuple[str, str]]: st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9))),
    list[tuple[str, bytes]]: st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=16))),
    list[str]: st.lists(st.text(max_size=9), max_size=4),
    wire.About | None: st.none()
    | st.builds(
        wire.About,
        st.text(max_size=9),
        st.lists(st.tuples(st.text(max_size=9), number), max_size=4),
        st.text(max_size=9),
        st.text(max_size=9),
    ),
    list[tuple[str, wire.Number, wire.Nonce]]: st.lists(
        st.tuples(st.text(max_size=9), number, nonce), max_size=4
    ),
    list[tuple[wire.Number, wire.Payload]]: st.lists(st.tuples(number, payload), max_size=4),
}


def of(kind: type) -> st.SearchStrategy[wire.Message]:
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: VALUES[field.type] for field in fields})


messages = st.one_of([of(kind) for kind in MESSAGES])


def test_every_message_has_a_tag_of_its_own() -> None:
    tags = [kind.__struct_config__.tag for kind in MESSAGES]
    assert len(set(tags)) == len(tags)
    assert all(kind.__struct_config__.array_like for kind in MESSAGES)


@given(messages)
def test_a_message_survives_its_frame(message: wire.Message) -> None:
    frame = wire.encode(message)
    assert struct.unpack_from("<I", frame) == (len(frame) - 4,)
    assert wire.decode(frame[4:]) == message


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_a_protocol_error(body: bytes) -> None:
    try:
        wire.decode(body)
    except wire.ProtocolError:
        return
    assert isinstance(wire.decode(body), MESSAGES)


@given(messages, st.data())
def test_damaged_messages_are_a_message_or_a_protocol_error(
    message: wire.Message, data: st.DataObject
) -> None:
    body = bytearray(wire.encode(message)[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (body, body[:cut], body + body[:cut]):
        try:
            found = wire.decode(damaged)
        except wire.ProtocolError:
            continue
        assert isinstance(found, MESSAGES)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x91" * 100_000,  # nested deeper than any stack
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million elements
        b"\xc6\xff\xff\xff\xff",  # as many bytes
        msgspec.msgpack.encode([10, 1, 1, 1, 1, 1]),  # a number for a truth value
        msgspec.msgpack.encode([12, 1, 1, 1, 1, 1, [[1]]]),
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode([2, b"\xff", "x"]),
        b"\x93\x02\xa1\xff\xa1x",  # a string that is not UTF-8
    ],
)
def test_hostile_bodies_are_protocol_errors(body: bytes) -> None:
    with pytest.raises(wire.ProtocolError, match="not a message of this protocol"):
        wire.decode(body)


@pytest.mark.parametrize("number", [-1, -(2**63), wire.NUMBER_MAX + 1, 2**64 - 1])
def test_a_number_that_no_node_means_is_a_protocol_error(number: int) -> None:
    for fields in (
        [12, 1, number, 1, 1, 1, []],
        [12, 1, 1, 1, 1, 1, [[number, b"\1"]]],
        [16, number],
    ):
        with pytest.raises(wire.ProtocolError, match="Expected `int`"):
            wire.decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("tag", [12, 31])
def test_an_entry_without_a_kind_is_a_protocol_error(tag: int) -> None:
    fields = [tag, *[1] * (5 if tag == 12 else 3), [[1, b""]]]
    with pytest.raises(wire.ProtocolError, match="length >= 1"):
        wire.decode(msgspec.msgpack.encode(fields))


def test_a_newer_version_may_append_fields() -> None:
    newer = msgspec.msgpack.encode([16, 7, "new"])
    assert wire.decode(newer) == wire.TimeoutNow(7)


# The stream --------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_frames_come_out_however_the_stream_is_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    frames, found = wire.Frames(40), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[start:end])
    assert found == bodies


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(1, 9))
def test_the_first_frame_is_cut_out_alone(bodies: list[bytes], step: int) -> None:
    stream = b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    frames, first, position = wire.Frames(40), None, 0
    while first is None:
        first = frames.feed_one(stream[position : position + step])
        position += step
    assert first == bodies[0]
    assert frames.feed(stream[position:]) == bodies[1:]


@pytest.mark.parametrize("feed", ["feed", "feed_one"])
def test_an_oversized_length_is_refused_before_anything_of_it_is_here(feed: str) -> None:
    frames = wire.Frames(100)
    with pytest.raises(wire.ProtocolError, match="101 bytes exceeds the limit 100"):
        getattr(frames, feed)(struct.pack("<I", 101))
    assert getattr(wire.Frames(101), feed)(struct.pack("<I", 101)) in ([], None)


def test_the_limit_may_be_raised_once_the_peer_is_known() -> None:
    frames = wire.Frames(10)
    assert frames.feed_one(struct.pack("<I", 2) + b"hi" + struct.pack("<I", 50)) == b"hi"
    frames.limit = 50
    assert frames.feed(b"x" * 50) == [b"x" * 50]


def test_frames_before_an_oversized_one_in_the_same_read_do_not_hide_it() -> None:
    frames = wire.Frames(10)
    with pytest.raises(wire.ProtocolError):
        frames.feed(struct.pack("<I", 1) + b"a" + struct.pack("<I", 11))
