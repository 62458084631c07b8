"""Several development clusters in one directory, which are told where the others are.

    DIR/clusters.json           their names, in order; written last
    DIR/lock                    held while a command starts or stops them
    DIR/<name>/                 a cluster, as `raftkv cluster up --dir DIR/<name>` makes it

For plugins whose clusters speak to each other. Every cluster has ports of its own before the first
one starts, so that `options` can say, of each, what its plugins shall know of the others. A cluster
may be started and stopped alone, with its own directory.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from raftkv.errors import ConfigError
from raftkv.security.ownership import make_directory, open_own

from . import processes
from .devcluster import ClusterStatus, DevCluster
from .layout import Fsync, several_path

__all__ = ["LocalClusters", "Options"]

#: What the plugins of one cluster shall know: its name, and the endpoints of all by name.
Options = Callable[[str, Mapping[str, Sequence[str]]], Mapping[str, Mapping[str, Any]]]

# They share one machine.
CLUSTERS_MAX: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class _Listed(msgspec.Struct, frozen=True):
    """What clusters.json holds."""

    names: tuple[str, ...]


class LocalClusters:
    """The clusters in `directory`. Making the object touches nothing; `up` creates and starts.

    `command` starts the `raftkv` command, as for `DevCluster`.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, command: Sequence[str] | None = None
    ) -> None:
        self.directory = os.path.abspath(directory)
        self._command = command

    @property
    def exists(self) -> bool:
        """Whether the directory has been laid out."""
        return os.path.exists(several_path(self.directory))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the clusters; `ConfigError` if there are none in the directory."""
        path = several_path(self.directory)
        try:
            with open(path, "rb") as file:
                return msgspec.json.decode(file.read(), type=_Listed).names
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(f"there are no clusters in {self.directory}: start some") from None
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path} cannot be used: {error}") from None

    def cluster(self, name: str) -> DevCluster:
        """One of them."""
        return DevCluster(self._path(name), command=self._command)

    def up(
        self,
        names: Sequence[str],
        options: Options,
        *,
        cores: int | None = None,
        replicants: int | None = None,
        fsync: Fsync | None = None,
        timeout_s: float = 60.0,
        progress: Callable[[str], None] | None = None,
    ) -> tuple[str, ...]:
        """Create if need be, start what does not run, return when all nodes take writes.

        What is left out is as `DevCluster.up` has it, and the names of an existing directory when
        `names` is empty. The options are written again, and read by the nodes that start. Returns
        the names. Raises `ConfigError` when the directory holds others, and `NodeFault`.
        """
        make_directory(self.directory)
        with self._locked():
            found = self._create(names, cores, replicants, fsync)
            endpoints = {name: self.cluster(name).endpoints() for name in found}
            for name in found:
                self.cluster(name).set_options(options(name, endpoints))

            def start(name: str) -> None:
                def told(line: str) -> None:
                    if progress is not None:
                        progress(f"{name}: {line}")

                self.cluster(name).up(timeout_s=timeout_s, progress=told)

            with ThreadPoolExecutor(len(found)) as pool:
                list(pool.map(start, found))
        return found

    def down(self) -> list[str]:
        """Stop all nodes and leave their data; those that ran, as "cluster/node"."""
        names = self.names
        with self._locked(), ThreadPoolExecutor(len(names)) as pool:
            stopped = pool.map(lambda name: self.cluster(name).down(), names)
            return [
                f"{name}/{node}"
                for name, nodes in zip(names, stopped, strict=True)
                for node in nodes
            ]

    def statuses(self) -> list[tuple[str, ClusterStatus]]:
        """Every node of every cluster, asked at the same time."""
        names = self.names

        def look(name: str) -> ClusterStatus:
            return self.cluster(name).status()

        with ThreadPoolExecutor(len(names)) as pool:
            return list(zip(names, pool.map(look, names), strict=True))

    def _create(
        self,
        names: Sequence[str],
        cores: int | None,
        replicants: int | None,
        fsync: Fsync | None,
    ) -> tuple[str, ...]:
        found = self.names if self.exists else tuple(names)
        if names and tuple(names) != found:
            raise ConfigError(
                f"the clusters in {self.directory} are {', '.join(found)}: leave the names out, or "
                "choose another directory"
            )
        self._check(found)
        for name in found:
            self.cluster(name).create(cores=cores, replicants=replicants, fsync=fsync)
        path = several_path(self.directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(open_own(f"{path}.new", flags), "wb") as file:
            file.write(msgspec.json.encode(_Listed(found)))
        os.rename(f"{path}.new", path)
        return found

    def _check(self, names: tuple[str, ...]) -> None:
        if not 1 <= len(names) <= CLUSTERS_MAX or len(set(names)) < len(names):
            raise ConfigError(f"say 1 to {CLUSTERS_MAX} names, each once, not {', '.join(names)}")
        for name in names:
            if not _NAME.fullmatch(name) or name == "lock":
                raise ConfigError(
                    f"{name!r} cannot be the name of a cluster here: take 1 to 32 of the "
                    "characters A-Z a-z 0-9 _ - with a letter or a digit in front"
                )

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return processes.exclusive(self._path("lock"), timeout_s=120.0)

    def _path(self, *parts: str) -> str:
        return os.path.join(self.directory, *parts)
