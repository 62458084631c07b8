"""Refusals, settings, data types: what others rely on of them."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest

from raftkv.errors import InvalidSetting, Refused
from raftkv.state import StateMachine
from raftkv_subscriptions import commands, refusals, rows
from raftkv_subscriptions.plugin import Subscriptions
from raftkv_subscriptions.refusals import REFUSALS
from raftkv_subscriptions.rows import MESSAGE_OVERHEAD, Message, size_of
from raftkv_subscriptions.settings import SETTINGS
from tests.plugins.raftkv_subscriptions.pure import RegionLog

SAMPLES = {"int": 7, "str": "word", "int | None": 7}


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
    assert one.code.startswith("subscriptions_")


@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
def test_a_refusal_says_what_to_do(kind: type[Refused]) -> None:
    text = str(sample(kind))
    assert "{" not in text
    # Two that say it by naming what is wrong, for there is nothing else to do.
    if kind is not refusals.BadMessage:
        assert any(sign in text for sign in (":", ". ")), text


def test_all_refusals_are_declared_once() -> None:
    declared = {
        kind
        for kind in vars(refusals).values()
        if inspect.isclass(kind) and kind.__module__ == refusals.__name__
    }
    assert set(REFUSALS) == declared
    assert len({kind.code for kind in REFUSALS}) == len(REFUSALS)
    assert set(refusals.__all__) == {kind.__name__ for kind in declared} | {"REFUSALS"}


def test_the_machine_takes_the_declarations() -> None:
    StateMachine([Subscriptions()])
    assert len(Subscriptions.commands) == 29


@pytest.mark.parametrize("module", [commands, rows], ids=lambda module: module.__name__)
def test_everything_that_others_take_is_named(module: Any) -> None:
    structs = {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module.__name__
    }
    assert structs <= set(module.__all__)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_settings_have_a_sentence_and_a_default_that_may_be_set(setting: Any) -> None:
    assert setting.doc.endswith(".")
    assert type(setting.default) is setting.type
    log = RegionLog()
    log.set(setting.key, setting.default)
    assert log.view().settings[setting.key] == setting.default
    if setting.check is not None:
        wrong = "nothing" if setting.type is str else -1
        with pytest.raises(InvalidSetting):
            log.set(setting.key, wrong)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (Message(b""), 0),
        (Message(b"abc"), 3),
        (Message(b"abc", "key"), 6),
        (Message(b"", "ü€"), 5),
        (Message(b"", "", (("h", "ü"), ("hh", ""))), 5),
    ],
)
def test_what_a_message_counts(message: Message, size: int) -> None:
    assert size_of(message) == MESSAGE_OVERHEAD + size
