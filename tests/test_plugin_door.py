"""What the routes of all plugins share: reading what was asked, and the shape of an error."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import raftkv.plugin
from raftkv import plugin_door
from raftkv.errors import Refused
from raftkv.plugin import (
    BadRequest,
    Request,
    Response,
    answered,
    body_of,
    error_response,
    fresh,
    number_of,
    only_query,
    query_flag,
    query_number,
    query_seconds,
    query_word,
    value_of,
)
from raftkv.plugin_door import JSON_OBJECTS_MAX


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dish: str = "soup"
    details: msgspec.Raw = msgspec.Raw(b"null")


class _SoldOut(Refused):
    code = "sold_out"


class _Host:
    """Remembers which barriers were asked for."""

    def __init__(self) -> None:
        self.barriers: list[str] = []

    async def barrier(self, consistency: str) -> None:
        self.barriers.append(consistency)


def asked(body: bytes = b"", **query: str) -> Request:
    return Request(params={}, query=query, body=body, peer="")


def refusal(call: Any, *args: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        call(*args)
    return str(caught.value)


def test_all_names_are_given_to_plugins() -> None:
    for name in plugin_door.__all__:
        assert getattr(raftkv.plugin, name) is getattr(plugin_door, name)
        assert name in raftkv.plugin.__all__


def test_an_unknown_parameter_is_refused_by_name() -> None:
    only_query(asked(limit="1"), "limit", "all")
    assert refusal(only_query, asked(limt="1"), "limit", "all") == (
        "there is no parameter 'limt' here: only limit, all"
    )
    assert "it takes none" in refusal(only_query, asked(limit="1"))


def test_a_flag_is_true_false_or_refused() -> None:
    answers = [query_flag(asked(**query), "all") for query in ({}, {"all": "1"}, {"all": "true"})]
    assert answers == [False, True, True]
    assert not query_flag(asked(all="0"), "all")
    assert not query_flag(asked(all="false"), "all")
    assert refusal(query_flag, asked(all="yes"), "all") == "all is 'yes': say true or false"


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.5", "", "x", "٣", "9" * 5000])
def test_a_number_out_of_bounds_or_no_number_is_refused(text: str) -> None:
    told = refusal(query_number, asked(limit=text), "limit", 7, 1, 100)
    assert told.startswith("limit is ")
    assert "1 to 100" in told
    assert len(told) < 100


def test_a_number_has_a_default_and_both_bounds() -> None:
    assert query_number(asked(), "limit", 0, 1, 100) == 0
    assert query_number(asked(limit="1"), "limit", 7, 1, 100) == 1
    assert query_number(asked(limit="100"), "limit", 7, 1, 100) == 100
    assert number_of("id", str(2**63 - 1), 1, 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9", "", "soon", "9" * 5000])
def test_seconds_that_are_none_or_too_many_are_refused(text: str) -> None:
    told = refusal(query_seconds, asked(timeout_s=text), "timeout_s", 5.0, 60.0)
    assert "say more than 0 and at most 60" in told
    assert len(told) < 100


def test_seconds_may_have_a_fraction_and_a_default() -> None:
    assert query_seconds(asked(), "timeout_s", 5.0, 60.0) == 5.0
    assert query_seconds(asked(timeout_s="0.25"), "timeout_s", 5.0, 60.0) == 0.25
    assert query_seconds(asked(timeout_s="60"), "timeout_s", 5.0, 60.0) == 60.0


def test_a_word_is_one_of_those_that_are_named() -> None:
    views = ("pending", "linearizable")
    assert query_word(asked(), "view", "confirmed", views) == "confirmed"
    assert query_word(asked(view="pending"), "view", "confirmed", views) == "pending"
    assert refusal(query_word, asked(view="all"), "view", "confirmed", views) == (
        "view is 'all': say confirmed, pending, or linearizable"
    )


def test_a_read_is_as_fresh_as_it_is_asked_for() -> None:
    host = _Host()

    async def all_of_them() -> None:
        await fresh(host, asked())
        await fresh(host, asked(consistency="linearizable"))
        await fresh(host, asked(consistency="local"))
        with pytest.raises(BadRequest, match="say linearizable, or local"):
            await fresh(host, asked(consistency="lease"))

    asyncio.run(all_of_them())
    # A local one, too: a node that has applied nothing refuses it.
    assert host.barriers == ["linearizable", "linearizable", "local"]


def test_a_body_is_read_into_its_kind() -> None:
    assert body_of(asked(), _Order) == _Order()
    assert body_of(asked(b'{"dish": "fish"}'), _Order).dish == "fish"


@pytest.mark.parametrize("body", [b"[", b'"soup"', b'{"dish": 1}', b'{"plate": 1}', b"\xff\xfe"])
def test_a_body_that_is_something_else_names_the_fields(body: bytes) -> None:
    told = refusal(body_of, asked(body), _Order, "; dish is what the card offers")
    assert told.startswith("the body is not what is asked for: ")
    assert told.endswith("It is JSON with dish, details; dish is what the card offers")


def test_a_body_may_not_be_nested_without_end() -> None:
    # What is skipped over is not read at all, so the depth shows where a value is decoded.
    deep = b'{"details": ' + 20_000 * b"[" + 20_000 * b"]" + b"}"
    with pytest.raises(BadRequest, match=r"nested too deep|cannot be read"):
        value_of("details", body_of(asked(deep), _Order).details)


def test_the_error_of_a_value_quotes_nothing_of_it() -> None:
    assert value_of("details", msgspec.Raw(b'{"a": [1]}')) == {"a": [1]}
    told = refusal(value_of, "details", msgspec.Raw(b'{"secret"'))
    assert told == "details cannot be read as JSON: DecodeError"


def test_errors_are_answered_in_the_shape_of_the_door() -> None:
    def known(error: Exception) -> Response | None:
        if isinstance(error, _SoldOut):
            return error_response(409, error.code, str(error), left=0)
        return None

    def raising(error: Exception) -> Response:
        async def handler(request: Request) -> Response:
            raise error

        return asyncio.run(_await(answered(handler, known), asked()))

    bad = raising(BadRequest("say fish"))
    assert (bad.status, bad.body) == (
        400,
        {"error": "say fish", "message": "say fish", "code": 3, "reason": "bad_request"},
    )
    out = raising(_SoldOut("no fish"))
    assert (out.status, out.body["reason"], out.body["code"], out.body["left"]) == (
        409,
        "sold_out",
        9,
        0,
    )
    # The door itself answers for these, and logs what nobody expected.
    with pytest.raises(KeyError):
        raising(KeyError("x"))


async def _await(handler: Any, request: Request) -> Response:
    answer: Response = await handler(request)
    return answer


class _Publish(msgspec.Struct):
    messages: list[dict[str, int]]


def test_a_body_of_objects_alone_is_refused_before_they_are_built() -> None:
    few = JSON_OBJECTS_MAX - 2  # beside the body itself and its list
    body = b'{"messages":[%b{}]}'
    assert len(body_of(asked(body % (b"{}," * (few - 1))), _Publish).messages) == few
    text = refusal(body_of, asked(body % (b"{}," * few)), _Publish)
    assert text.startswith("the body has 52001 objects and lists, and 52000 is the limit")


def test_an_error_quotes_little_of_the_body() -> None:
    assert len(refusal(body_of, asked(b'{"%b":1}' % (b"x" * 100_000)), _Order)) < 500
