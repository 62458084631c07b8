"""How a development cluster lies in its directory: the shape, the names, the files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from raftkv.config import load_config
from raftkv.errors import ConfigError
from raftkv.security.ownership import make_directory, open_own

from .ports import free_ports

__all__ = [
    "ClusterShape",
    "Fsync",
    "lay_out",
    "read_shape",
    "set_options",
    "several_path",
    "shape_path",
]

Fsync = Literal["on", "off"]

HOST: Final = "127.0.0.1"
CLUSTER: Final = "dev"
# Where the authority and all certificates are, below the cluster's directory.
CERTIFICATES: Final = "certs"
# All nodes share one machine; more of them show nothing that fewer do not.
NODES_MAX: Final = 31
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
# What stands below it in a node.toml is written anew by each `set_options`.
OPTIONS_MARK: Final = "# What plugins know locally."


class ClusterShape(msgspec.Struct, frozen=True, kw_only=True):
    """What cluster.json holds: the arguments with which the directory was laid out."""

    cores: int
    replicants: int
    fsync: Fsync = "on"
    tls: bool = False

    @property
    def names(self) -> list[str]:
        """All nodes, cores first."""
        cores = [f"core{n}" for n in range(1, self.cores + 1)]
        return cores + [f"replicant{n}" for n in range(1, self.replicants + 1)]


def shape_path(directory: str) -> str:
    """The file whose presence says that the directory is laid out completely."""
    return os.path.join(directory, "cluster.json")


def several_path(directory: str) -> str:
    """The file whose presence says that there are several clusters (localclusters.py)."""
    return os.path.join(directory, "clusters.json")


def read_shape(directory: str) -> ClusterShape:
    """The shape of the cluster in `directory`; `ConfigError` if there is none."""
    path = shape_path(directory)
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=ClusterShape)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.exists(several_path(directory)):
            raise ConfigError(
                f"there are several clusters in {directory}: name the directory of one, below it"
            ) from None
        raise ConfigError(
            f"there is no cluster in {directory}: start one with "
            f"raftkv cluster up --dir {directory}"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be used: {error}") from None


def lay_out(directory: str, shape: ClusterShape, plugins: Sequence[str] | None) -> None:
    """Write all configurations, with free ports, and then the shape.

    An interrupted attempt leaves no shape, so that the next one begins anew: no node can have been
    started from it.
    """
    names = shape.names
    if shape.cores < 1 or shape.replicants < 0 or len(names) > NODES_MAX:
        raise ConfigError(
            f"a cluster needs at least 1 core and 0 replicants, and at most {NODES_MAX} nodes"
        )
    ports = free_ports(2 * len(names), HOST)
    peers = {name: f"{HOST}:{ports[2 * n]}" for n, name in enumerate(names)}
    doors = {name: f"{HOST}:{ports[2 * n + 1]}" for n, name in enumerate(names)}
    cores = {name: peers[name] for name in names[: shape.cores]}
    if shape.tls:
        # Imported late: most clusters of one machine need no `cryptography`.
        from raftkv.security.directory import certify

        certify(os.path.join(directory, CERTIFICATES), CLUSTER, names, [HOST])
    for name in names:
        text = _toml(name, peers[name], doors[name], cores, shape, plugins)
        path = os.path.join(directory, name, "node.toml")
        make_directory(os.path.dirname(path))
        with open(open_own(path, _WRITE), "w", encoding="utf-8") as file:
            file.write(text)
        load_config(path)
    temporary = shape_path(directory) + ".new"
    with open(open_own(temporary, _WRITE), "wb") as binary:
        binary.write(msgspec.json.encode(shape))
    os.rename(temporary, shape_path(directory))


def _toml(
    name: str,
    peer_address: str,
    http_address: str,
    cores: dict[str, str],
    shape: ClusterShape,
    plugins: Sequence[str] | None,
) -> str:
    """The text of node.toml. JSON's strings and arrays of strings are TOML's, too."""
    lines = [
        f"name = {json.dumps(name)}",
        f"role = {json.dumps('core' if name in cores else 'replicant')}",
        f"cluster = {json.dumps(CLUSTER)}",
        'dir = "data"',
        f"peer_address = {json.dumps(peer_address)}",
        f"http_address = {json.dumps(http_address)}",
        f"fsync = {json.dumps(shape.fsync)}",
    ]
    if plugins is not None:
        lines.append(f"plugins = {json.dumps(list(plugins))}")
    lines += ["", "[cores]"]
    lines += [f"{core} = {json.dumps(address)}" for core, address in cores.items()]
    if shape.tls:
        lines += ["", "[tls]", f'ca = "../{CERTIFICATES}/ca.pem"']
        lines.append(f'certificate = "../{CERTIFICATES}/{name}.pem"')
        lines.append(f'key = "../{CERTIFICATES}/{name}.key"')
    return "\n".join(lines) + "\n"


def set_options(path: str, options: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the options of plugins into a node's file; what was written before is replaced.

    Values are texts, numbers, truth values, arrays of them, and mappings. Raises `ConfigError` if
    the node could not read the result; the file is as it was then.
    """
    with open(path, encoding="utf-8") as file:
        text, _, _ = file.read().partition(f"\n{OPTIONS_MARK}\n")
    lines = [line for name, given in options.items() for line in _table(("options", name), given)]
    temporary = f"{path}.new"
    with open(open_own(temporary, _WRITE), "w", encoding="utf-8") as file:
        file.write("\n".join([text, OPTIONS_MARK, *lines, ""]) if lines else text)
    try:
        load_config(temporary)
    except ConfigError:
        os.unlink(temporary)
        raise
    os.rename(temporary, path)


def _table(path: tuple[str, ...], given: Mapping[str, Any]) -> Iterator[str]:
    """A table of TOML with its sub-tables, which come last there."""
    yield f"[{'.'.join(map(_key, path))}]"
    for key, value in given.items():
        if not isinstance(value, Mapping):
            yield f"{_key(key)} = {_quoted(value)}"
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield ""
            yield from _table((*path, key), value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(value: Any) -> str:
    """JSON's values are TOML's, but for letters beyond 16 bits written in two escapes."""
    return json.dumps(value, ensure_ascii=False)
