"""The table of what commands may cost (docs/internals/log.md) against what the plugins declare."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from raftkv.kv import KV
from raftkv.plugin import Plugin, Setting
from raftkv_cluster_call.plugin import Calls
from raftkv_conf.plugin import Conf
from raftkv_lcr.plugin import LCR
from raftkv_limbo.plugin import Limbo
from raftkv_subscriptions.plugin import Subscriptions
from raftkv_txqueue.plugin import TxQueue

PAGE = Path(__file__).resolve().parent.parent / "docs" / "internals" / "log.md"
PLUGINS: tuple[type[Plugin[Any]], ...] = (
    KV,
    Calls,
    Conf,
    LCR,
    Limbo,
    Subscriptions,
    TxQueue,
)
SETTINGS: dict[str, Setting] = {
    f"{plugin.name}.{setting.key}": setting for plugin in PLUGINS for setting in plugin.settings
}


def section() -> str:
    page = PAGE.read_text("utf-8")
    return page.split("### What one command may cost")[1].split("\n#")[0]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def listed() -> list[tuple[str, int, int]]:
    """Each setting in the table, with the default and the highest value that stand there."""
    found = re.findall(r"`(\w+\.\w+_max)` \(([\d,]+), ([\d,]+)\)", section())
    return [(name, number(default), number(highest)) for name, default, highest in found]


@pytest.mark.parametrize(("name", "default", "highest"), listed())
def test_the_bounds_are_those_of_the_settings(name: str, default: int, highest: int) -> None:
    setting = SETTINGS[name]
    assert setting.default == default
    assert setting.check is not None
    assert setting.check(highest) is None
    assert setting.check(highest + 1) is not None


def test_every_plugin_stands_in_the_table() -> None:
    assert len(listed()) >= 10
    for plugin in PLUGINS[1:]:
        assert re.search(rf"^\| `{plugin.name}`", section(), re.M), plugin.name


def test_no_setting_is_one_nodes_configuration() -> None:
    """Every name in the table is a setting of the cluster."""
    names = set(re.findall(r"`(\w+\.\w+_max)`", section()))
    assert names <= SETTINGS.keys()
