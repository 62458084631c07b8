"""Refusals, settings, xids: what others rely on of them."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from raftkv.errors import InvalidSetting, Refused
from raftkv_txqueue import commands, refusals, rows
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.refusals import REFUSALS, BranchRefused
from raftkv_txqueue.settings import SETTINGS
from raftkv_txqueue.xa import ANY_XID_BYTES_MAX, XaError, XaStatus, Xid, xid_from_text
from tests.plugins.raftkv_txqueue.pure import TxLog

SAMPLES = {"int": 7, "str": "word", "Sequence[str]": ("word", "other")}


def sample(kind: type[Refused]) -> Refused:
    """One with arguments of the types that it asks for."""
    if kind.__init__ is Refused.__init__:
        return kind()
    parameters = list(inspect.signature(kind).parameters.values())
    return kind(*(SAMPLES[parameter.annotation] for parameter in parameters))


@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
def test_a_refusal_is_made_again_from_what_is_kept(kind: type[Refused]) -> None:
    one = sample(kind)
    again = kind(*msgspec.msgpack.decode(msgspec.msgpack.encode(one.args)))
    assert str(again) == str(one)
    assert vars(again) == vars(one)
    assert one.code.startswith("txqueue_")


def test_all_refusals_are_declared_once() -> None:
    declared = {
        kind
        for kind in vars(refusals).values()
        if inspect.isclass(kind) and kind.__module__ == refusals.__name__
    }
    assert set(REFUSALS) == declared - {BranchRefused}
    assert len({kind.code for kind in REFUSALS}) == len(REFUSALS)


def test_refusals_of_branches_bear_the_codes_of_xa() -> None:
    codes = {kind.__name__: kind.xa for kind in REFUSALS if issubclass(kind, BranchRefused)}
    assert codes == {
        "UnknownXid": XaError.NOT_FOUND,
        "IllegalState": XaError.ILLEGAL_STATE,
        "CommandInvalid": XaError.COMMAND_INVALID,
        "NotInBranch": XaError.COMMAND_INVALID,
        "NotAllowed": XaError.NOT_ALLOWED,
        "InvalidArgument": XaError.INVALID_ARGUMENT,
    }


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_settings_have_bounds_that_their_defaults_keep(setting: Any) -> None:
    assert setting.check is not None
    assert setting.check(setting.default) is None
    log = TxLog(("n1",))
    log.set(setting.key, setting.default)
    for bad in (-1, 10**15):
        with pytest.raises(InvalidSetting, match="must be"):
            log.set(setting.key, bad)


def test_commands_rows_and_results_are_exported_by_one_module() -> None:
    assert set(rows.__all__) < set(commands.__all__)
    assert all(hasattr(commands, name) for name in commands.__all__)
    tags = [command.__struct_config__.tag for command in TxQueue.commands]
    assert len(set(tags)) == len(tags)


def test_a_xid_as_text_and_back() -> None:
    for xid in (
        Xid(0, b""),
        Xid(1, b"order", b"\x01"),
        Xid(2**31 - 1, b"\xff" * ANY_XID_BYTES_MAX, b"\x00" * ANY_XID_BYTES_MAX),
    ):
        assert xid_from_text(str(xid)) == xid
    assert str(Xid(1, b"order", b"\x01")) == "1:6f72646572:01"


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:00", "1:00:00:00", "x:00:00", "-1:00:00", "1:0:00", "1:zz:00", "1:" + "00" * 65],
)
def test_what_is_no_xid(text: str) -> None:
    with pytest.raises(ValueError, match="format:global:branch"):
        xid_from_text(text)


def test_a_xid_is_no_longer_than_xa_allows() -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        xid_from_text("1:" + "00" * 65 + ":")


def test_the_numbers_of_xa() -> None:
    assert [int(status) for status in XaStatus] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [int(code) for code in XaError] == [404, 409, 503, 530, 540, 542]
