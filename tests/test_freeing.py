"""What a leader with a full disk still takes."""

from __future__ import annotations

import msgspec
import pytest

from raftkv.freeing import frees_room
from raftkv.kv import KV
from raftkv.kv.commands import Compact, DeleteRange, Grant, Put, Revoke
from raftkv.state import Envelope

encode = msgspec.msgpack.encode


def envelope(plugin: str, command: object) -> bytes:
    return encode(Envelope(9, 1, 1, plugin, encode(command)))


@pytest.mark.parametrize(
    ("plugin", "command", "taken"),
    [
        ("kv", DeleteRange(b"a", b"z"), True),
        ("kv", Compact(7), True),
        ("kv", Revoke(7), True),
        ("kv", Put(b"k", b"v"), False),
        ("kv", Grant(7, 60), False),
        ("core", ["anything"], True),
        ("queue", ["delete"], False),
        ("kv", [], False),
        ("kv", 7, False),
    ],
)
def test_deletions_compactions_and_housekeeping_are_taken(
    plugin: str, command: object, taken: bool
) -> None:
    assert frees_room(envelope(plugin, command)) is taken


def test_what_is_no_command_is_not_taken() -> None:
    assert not frees_room(b"")
    assert not frees_room(b"\xc1")


def test_every_tag_belongs_to_one_command_only() -> None:
    tags = [kind.__struct_config__.tag for kind in KV.commands]
    assert len(tags) == len(set(tags))


def test_a_command_of_any_depth_is_judged() -> None:
    """Skipping nested data recurses; a consensus link would be closed for the error."""
    deep = b"\x91" * 5_000 + b"\xc0"
    assert not frees_room(msgspec.msgpack.encode((1, 1, 1, "kv", deep)))
