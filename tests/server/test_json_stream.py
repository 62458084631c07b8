"""Objects out of a stream: wherever it is cut, and whatever stands in their strings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.server.answers import BadRequest
from raftkv.server.json_stream import MARKS_MAX, JsonStream

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


@pytest.mark.parametrize("cut", [0, 8])
def test_an_object_that_is_too_large_is_refused_when_its_end_comes_with_it(cut: int) -> None:
    """Its receiver waits for room, which there never is for one so large."""
    whole, stream = b'{"a":"%b"}' % (b"1" * 20), JsonStream(10)
    assert list(stream.feed(b'{"a":1}' + whole[:cut])) == [b'{"a":1}']
    with pytest.raises(BadRequest, match="exceeds 10 bytes"):
        list(stream.feed(whole[cut:]))


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


@pytest.mark.parametrize("filler", [b"[", b'"a",', b"{}"])
def test_strings_and_brackets_of_one_object_are_bounded(filler: bytes) -> None:
    stream = JsonStream(1_000_000)
    assert list(stream.feed(b'{"a":[' + filler * (MARKS_MAX // 2 - 5))) == []
    with pytest.raises(BadRequest, match="more than 1000 strings and brackets"):
        list(stream.feed(filler * 400_000))
    assert stream._marks == MARKS_MAX + 1, "nothing behind the limit was looked at"


def test_what_one_object_has_does_not_count_for_the_next() -> None:
    stream = JsonStream(1_000_000)
    one = b'{"a":[' + b"[]," * 300 + b"[]]}"
    assert list(stream.feed(one * 10)) == [one] * 10


def test_a_string_of_escapes_is_passed_over_at_once() -> None:
    stream = JsonStream(1_000_000)
    one = b'{"a":"' + b"\\n\\\\" * 100_000 + b'"}'
    assert list(stream.feed(one[:-3])) == []
    assert list(stream.feed(one[-3:] + one)) == [one, one]
    assert stream._marks == 4
