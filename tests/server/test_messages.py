"""Requests as etcd's gateway reads them: what is taken in which form, and what is not.

tests/etcd compares this with real etcd; here are the cases that it has found.
"""

from __future__ import annotations

import msgspec
import pytest

from raftkv.server import messages
from raftkv.server.answers import BadRequest
from raftkv.server.messages import PutRequest, RangeRequest, TimeToLiveRequest

ranges = messages.decoder_of(RangeRequest)
puts = messages.decoder_of(PutRequest)


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
