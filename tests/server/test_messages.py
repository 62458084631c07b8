"""Requests as etcd's gateway reads them: what is taken in which form, and what is not.

tests/etcd compares this with real etcd; here are the cases that it has found.
"""

from __future__ import annotations

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.plugin_door import JSON_OBJECTS_MAX
from raftkv.server import messages
from raftkv.server.answers import BadRequest
from raftkv.server.messages import (
    PutRequest,
    RangeRequest,
    TimeToLiveRequest,
    TxnRequest,
)

ranges = messages.decoder_of(RangeRequest)
puts = messages.decoder_of(PutRequest)
transactions = messages.decoder_of(TxnRequest)


def a_range(body: bytes) -> RangeRequest:
    return messages.decode(ranges, body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"key":"YQ==","limit":7}',
        b'{"key":"YQ==","limit":"7"}',
        b'{"key":[97],"limit":7}',
        b'{"key":"Y\\nQ==","limit":7,"revision":null}',
        b' {"key":"YQ==","limit":7} {"limit":8}',
        b'{"key":"YQ==","limit":7}garbage',
        b'{"key":"YQ==","limit":"7","nobody":{"knows":[1]}}garbage',
    ],
)
def test_one_request_in_many_forms(body: bytes) -> None:
    assert a_range(body) == RangeRequest(key=b"a", limit=7)


@pytest.mark.parametrize("body", [b"", b" ", b"{}", b"null", b'{"key":[]}', b'{"key":null}'])
def test_nothing_in_many_forms(body: bytes) -> None:
    assert a_range(body) == RangeRequest()


@pytest.mark.parametrize(
    "value",
    ['"1e3"', "1e3", "1.0", '"1.0"', '"+1"', '"01"', '" 1"', '""', "true", '"x"', "[]", "{}",
     str(2**63), f'"{2**63}"', f'"-{2**63 + 1}"'],
)  # fmt: skip
def test_what_is_no_64_bit_number(value: str) -> None:
    with pytest.raises(BadRequest):
        a_range(f'{{"key":"YQ==","limit":{value}}}'.encode())


def test_the_ends_of_64_bits() -> None:
    body = f'{{"limit":"{2**63 - 1}","revision":"-{2**63}"}}'.encode()
    assert a_range(body) == RangeRequest(limit=2**63 - 1, revision=-(2**63))


@pytest.mark.parametrize("value", ['"true"', "1", "0", '"false"', "[]", '""'])
def test_what_is_no_truth(value: str) -> None:
    with pytest.raises(BadRequest):
        messages.decode(puts, f'{{"key":"YQ==","prev_kv":{value}}}'.encode())
    with pytest.raises(BadRequest):
        messages.decode(
            messages.decoder_of(TimeToLiveRequest), f'{{"ID":"5","keys":{value}}}'.encode()
        )


MANY = 3 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' + b"[" * MANY,
        b'{"zz":1,"compare":[' + b"{}," * (MANY // 3) + b"{}]}",
        b'{"compare":[' + b"{}," * (MANY // 3) + b"{}]}",
        b'{"zz":{' + b'"a":1,' * (MANY // 6) + b'"a":1}}',
        b'{"zz":[' + b'"",' * (MANY // 3) + b'""]}',
        b'{"key":[' + b"1," * (MANY // 2) + b"1]}",
    ],
    ids=["depth", "unknown", "objects", "names", "strings", "numbers"],
)
def test_bodies_are_bounded_before_anything_is_built(body: bytes) -> None:
    """Nothing but counting happens: made into values the smallest of them takes 70 MB."""
    tracemalloc.start()
    try:
        for decoder in (ranges, transactions):
            with pytest.raises(BadRequest, match="more than (52000 objects|10000 values)"):
                messages.decode(decoder, body)
        assert tracemalloc.get_traced_memory()[1] < len(body)
    finally:
        tracemalloc.stop()


def test_what_is_no_json_is_refused_at_the_first_error() -> None:
    for rest in (b"{" * (JSON_OBJECTS_MAX - 1), b'"' * MANY, b"\\n" * MANY):
        with pytest.raises(BadRequest, match=r"not valid JSON: .*byte [78]"):
            a_range(b'{"key":' + b"x" + rest)


def test_depth_is_bounded() -> None:
    with pytest.raises(BadRequest, match="recursion"):
        a_range(b'{"a":' + b"[" * 5_000)


@given(st.dictionaries(st.sampled_from(["key", "limit", "x", "rangeEnd"]), st.just(None)),
       st.binary(max_size=10))  # fmt: skip
def test_what_follows_the_first_value_is_not_looked_at(found: dict[str, None], rest: bytes) -> None:
    assert a_range(json.dumps(found).encode() + rest) == RangeRequest()


def test_only_bodies_that_take_long_wait_for_a_turn() -> None:
    put = b'{"key":"YQ==","value":"%b"}'
    assert not messages.is_costly(b"{}," * 300)
    assert not messages.is_costly(put % (b"A" * 100_000))
    assert messages.is_costly(put % (b"A" * 300_000))
    assert messages.is_costly(b'{"compare":[' + b"{}," * 400 + b"{}]}")


@pytest.mark.parametrize("value", ["[256]", "[-1]", "[true]", "[[]]", "5", '"YQ"', '"_-8="'])
def test_what_are_no_bytes(value: str) -> None:
    with pytest.raises(BadRequest):
        a_range(f'{{"key":{value}}}'.encode())


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"{", b"\xff", b"{'key':1}", b"garbage {}"])
def test_what_is_no_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        a_range(body)


def test_every_field_of_bytes_and_every_integer_is_known_to_the_slow_way() -> None:
    for kind, names in messages._INTEGERS.items():
        for field in msgspec.structs.fields(kind):
            assert (field.type in (messages.Int64, messages.Uint64)) == (field.name in names)
            assert (field.type is bytes) == (field.name in messages._BYTES)
