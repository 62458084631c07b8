"""Objects out of a stream: wherever it is cut, and whatever stands in their strings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.server.answers import BadRequest
from raftkv.server.json_stream import JsonStream, first_value

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('"\\{}[]ab\n\u00e4'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("{}]\\k"), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text('ab"\\'), VALUES, max_size=3), max_size=5)


@given(OBJECTS, st.booleans(), st.sampled_from(["", " ", "\n", "\r\n\t"]), st.data())
def test_objects_are_found_wherever_the_stream_is_cut(
    objects: list[Any], ascii_only: bool, gap: str, data: st.DataObject
) -> None:
    text = gap.join(json.dumps(each, ensure_ascii=ascii_only) for each in objects).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    stream = JsonStream(10_000)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += stream.feed(text[start:end])
    assert [json.loads(each) for each in found] == objects
    assert not stream.pending


@given(OBJECTS.filter(bool), st.binary(max_size=10))
def test_what_follows_the_first_value_is_not_looked_at(objects: list[Any], rest: bytes) -> None:
    text = json.dumps(objects[0]).encode()
    assert first_value(text + rest) == text


@pytest.mark.parametrize(("body", "found"), [(b"", b""), (b" \n", b""), (b"{", None), (b"x", None)])
def test_there_may_be_no_first_value(body: bytes, found: bytes | None) -> None:
    assert first_value(body) == found


@pytest.mark.parametrize("text", [b"1", b"[{}]", b'"x"', b"{}null", b"{} }"])
def test_only_objects_follow_one_another(text: bytes) -> None:
    with pytest.raises(BadRequest):
        list(JsonStream(100).feed(text))


def test_an_object_that_is_too_large_is_refused_before_it_is_whole() -> None:
    stream = JsonStream(10)
    assert list(stream.feed(b'{"a":1}' * 5)) == [b'{"a":1}'] * 5
    assert list(stream.feed(b'{"a":"1234')) == []
    assert stream.pending
    with pytest.raises(BadRequest, match="exceeds 10 bytes"):
        list(stream.feed(b"5"))


def test_blanks_are_not_kept_and_do_not_count() -> None:
    stream = JsonStream(10)
    for _ in range(5):
        assert list(stream.feed(b"\n" * 100)) == []
        assert not stream.pending
        assert list(stream.feed(b" " * 50 + b'{"a":')) == []
        assert list(stream.feed(b"1}" + b" " * 50)) == [b'{"a":1}']


def test_objects_are_cut_when_they_are_asked_for() -> None:
    """A quarter of a megabyte of small ones, cut at once, would hold the loop for seconds."""
    stream = JsonStream(10)
    objects = stream.feed(b"{}" * 100_000)
    assert [next(objects) for _ in range(100)] == [b"{}"] * 100
    assert stream._seen == 200
    assert sum(1 for _ in objects) == 99_900
