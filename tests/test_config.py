"""The constructor of `NodeConfig` checks what `load_config` checks, by the same code."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv import ConfigError, Limits, NodeConfig, RaftTimes, TlsFiles, load_config
from raftkv.config import HttpLimits, HttpTls
from raftkv.frozen_dict import FrozenDict
from raftkv.node import Node

HERE = "127.0.0.1:7001"
BASE: dict[str, Any] = {"name": "a", "dir": "d", "peer_address": HERE, "cores": {"a": HERE}}

# A value of a wrong type for each kind of field, and one of the right type that is none of those.
WRONG: dict[str, tuple[Any, ...]] = {
    "name": (5, b"a", None, "-a", ""),
    "dir": ("", 5, b"d", None, "a\0b"),
    "peer_address": (7001, None, "nowhere", "h:99999"),
    "cores": ([], None, {"a": 7}, {7: HERE}, {}),
    "cluster": (5, None, "a b"),
    "role": (True, "leader", None, []),
    "listen_address": (7001, "x"),
    "http_address": (4001, "x"),
    "http_listen_address": (4001, "x", "h:4001"),
    "host_whitelist": ("a.example", (5,), None),
    "cors": ("https://a.example", (5,)),
    "fsync": (True, False, "ON", "yes", None, 1, []),
    "tls": ("certs", {}, {"ca": 1, "certificate": "c", "key": "k"}),
    "http_tls": ("certs", {}),
    "insecure": (1, "yes", None),
    "plugins": ("lcr", (5,), None, ("lcr", "lcr"), ["conf", "lcr", "conf"]),
    "options": ([], {"lcr": 5}, {5: {}}, None),
    "timeout_s": ("5", None, True, 0, -1, math.nan, math.inf),
    "format_raise": (True, "never"),
    "format_raise_after_s": ("5", True, 0, math.nan),
    "corruption_check_s": ("5", True, -1, math.nan, math.inf),
    "on_corruption": (True, "ignore"),
    "raft": (5, {"heartbeat_ms": "60"}, {"unknown": 1}),
    "limits": (5, {"key_bytes_max": 1.5}),
    "http": (5, {"requests_max": True}),
}


def test_d1_every_field_has_a_wrong_value_here() -> None:
    assert set(WRONG) == {field.name for field in msgspec.structs.fields(NodeConfig)}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values], ids=str
)
def test_d1_the_constructor_refuses_a_wrong_value_and_names_the_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        NodeConfig(**{**BASE, key: value})
    with pytest.raises(ConfigError, match=key):
        msgspec.structs.replace(NodeConfig(**BASE), **{key: value})


GROUPS: list[tuple[type[msgspec.Struct], str]] = [
    (RaftTimes, "raft"),
    (Limits, "limits"),
    (HttpLimits, "http"),
    (TlsFiles, "tls"),
    (HttpTls, "http_tls"),
]


@pytest.mark.parametrize(("kind", "group"), GROUPS)
def test_d1_every_field_of_a_group_is_checked(kind: type[msgspec.Struct], group: str) -> None:
    for field in msgspec.structs.fields(kind):
        wrong: list[Any] = [True, b"x", [], -1, math.nan, math.inf]
        wrong += [5, 1.5] if field.type not in (int, float) else ["5"]
        for value in wrong:
            rest = {
                each.name: "file"
                for each in msgspec.structs.fields(kind)
                if each.required and each is not field
            }
            with pytest.raises(ConfigError, match=rf"{group}\.{field.name} "):
                kind(**{**rest, field.name: value})


def test_d1_a_file_is_refused_with_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        f'name = "a"\ndir = "d"\npeer_address = "{HERE}"\nfsync = "ON"\n[cores]\na = "{HERE}"\n'
    )
    with pytest.raises(ConfigError) as of_file:
        load_config(file)
    with pytest.raises(ConfigError) as of_constructor:
        NodeConfig(**BASE, fsync="ON")  # type: ignore[arg-type]
    assert "fsync" in str(of_constructor.value)
    assert str(file) in str(of_file.value)


def test_d1_lists_and_paths_are_taken_for_what_they_are(tmp_path: Path) -> None:
    config = NodeConfig(**{**BASE, "dir": tmp_path, "plugins": ["lcr"], "timeout_s": 5})
    assert (config.dir, config.plugins, config.timeout_s) == (str(tmp_path), ("lcr",), 5.0)


def test_d1_a_node_takes_a_configuration_and_nothing_else() -> None:
    with pytest.raises(ConfigError, match="NodeConfig"):
        Node(BASE)  # type: ignore[arg-type]


def test_d1_the_mappings_of_a_configuration_are_copies_and_read_only() -> None:
    """What the constructor has checked is what the node uses."""
    inner = {"k": 1}
    cores, options = {"a": HERE}, {"lcr": {"names": ["x"], "deep": {"k": 1}, "some": (inner,)}}
    config = NodeConfig(**{**BASE, "cores": cores}, options=options)
    inner["k"] = 2
    assert config.options["lcr"]["some"] == ({"k": 1},)
    cores["b"] = "nowhere"
    options["lcr"]["deep"]["k"] = 2  # type: ignore[index]
    assert config.cores == {"a": HERE}
    assert config.options["lcr"]["deep"] == {"k": 1}
    mappings: tuple[Any, ...] = (config.cores, config.options, config.options["lcr"]["deep"])
    for mapping in (*mappings, NodeConfig(**BASE).options):
        for change in (
            lambda m: m.__setitem__("b", HERE),
            lambda m: m.__delitem__("a"),
            lambda m: m.__ior__({"b": HERE}),
            lambda m: m.update(b=HERE),
            lambda m: m.setdefault("b", HERE),
            lambda m: m.pop("a"),
            lambda m: m.popitem(),
            lambda m: m.clear(),
        ):
            with pytest.raises(TypeError, match="read-only"):
                change(mapping)
    for same in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert same == config
        with pytest.raises(TypeError, match="read-only"):
            same.cores["b"] = HERE
    assert msgspec.to_builtins(config)["cores"] == {"a": HERE}
    assert msgspec.structs.replace(config, fsync="off").options == config.options
    assert {**config.cores, "b": HERE} == {"a": HERE, "b": HERE}


def test_d1_every_mapping_of_a_configuration_is_read_only() -> None:
    """Also those of fields that are added later."""
    made = NodeConfig(**{**BASE, "cores": {"a": HERE}}, options={"lcr": {"k": 1}})
    for name in made.__struct_fields__:
        value = getattr(made, name)
        assert not isinstance(value, dict) or isinstance(value, FrozenDict), name


def test_a4_a_core_that_moved_may_keep_its_old_line_in_cores() -> None:
    """docs/operations.md, "Moving a node": only its own `peer_address` changes."""
    moved = NodeConfig(**{**BASE, "peer_address": "127.0.0.1:7002"})
    assert moved.cores == {"a": HERE}
