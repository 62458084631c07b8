"""Which functions ran on a node: a file that a killed process leaves behind whole.

Rows of the log stay in memory while a load runs, and a process that is killed takes them along. For
callers that is what happens to callers. But whether a node ran a call twice, or not at all, must be
known of the killed node, too. So every run of a function is written to a file as soon as it is
over, 31 bytes with one `write` of the operating system (a few microseconds, part of every figure):
SIGKILL does not undo it, and a power cut is not what the benchmark does.

Each life of a process has a file of its own, so that a run again after a restart, which is allowed,
is told from a run again without one. The coordinator makes rows of all files at the end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from bench.clock import Clock
from bench.schema import ROLES, Row

__all__ = ["Execution", "Executions", "LoadName", "rows_of_executions"]

_RECORD = struct.Struct("<IQBBBIQI")
"""Load, id, kind, whether it succeeded, role, attempt, start in us since 1970, duration in us."""

_KINDS = ("initiate", "replicate")
_SUFFIX = ".executions"
_DURATION_US_MAX = 2**32 - 1

LoadName = tuple[str, str]
"""What the log calls a load of that number, and its scenario."""


class Executions:
    """Writes down what ran in this life of the node's process."""

    def __init__(
        self, directory: Path, run: str, node: str, role: Callable[[], str] = lambda: "follower"
    ) -> None:
        """Begins the file of the next life below `directory`. Raises OSError."""
        life = 0
        while True:
            path = directory / f"{run}~{node}~{life}{_SUFFIX}"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._descriptor = os.open(path, flags, 0o600)
            except FileExistsError:
                life += 1
            else:
                break
        self.path = path
        self._role = role

    def note(
        self, load: int, id_: int, kind: str, attempt: int, ok: bool, start_us: int,
        duration_us: int,
    ) -> None:  # fmt: skip
        """One run that is over. It is in the file when this returns."""
        duration_us = min(max(0, duration_us), _DURATION_US_MAX)
        role = ROLES.index(self._role())
        record = _RECORD.pack(
            load, id_, _KINDS.index(kind), ok, role, attempt, start_us, duration_us
        )
        os.write(self._descriptor, record)

    def close(self) -> None:
        """Nothing can be noted any more. A process that ends need not say so."""
        os.close(self._descriptor)


class Execution:
    """One run of a function: a context that notes it when it is left, in whatever way."""

    def __init__(
        self, executions: Executions, load: int, id_: int, kind: str, attempt: int, clock: Clock
    ) -> None:
        self._what = (executions, load, id_, kind, attempt, clock)

    def __enter__(self) -> None:
        clock = self._what[-1]
        self._start_us, self._began = clock.wall_us(), clock.now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        executions, load, id_, what, attempt, clock = self._what
        duration_us = round((clock.now() - self._began) * 1e6)
        executions.note(load, id_, what, attempt, error is None, self._start_us, duration_us)


def rows_of_executions(
    directory: Path, run: str, layout: str, loads: Mapping[int, LoadName]
) -> Iterator[Row]:
    """The rows of all runs that the files of this run hold, and removes each file that was read.

    Half a record at the end of a file would be a write that SIGKILL cut: it is passed over.
    """
    for path in sorted(directory.glob(f"{run}~*{_SUFFIX}")):
        _, node, life = path.name.removesuffix(_SUFFIX).split("~")
        data = path.read_bytes()
        whole = len(data) - len(data) % _RECORD.size
        for record in _RECORD.iter_unpack(data[:whole]):
            yield _row(record, (run, layout, node), int(life), loads)
        path.unlink()


def _row(
    record: tuple[int, ...],
    where: tuple[str, str, str],
    life: int,
    loads: Mapping[int, LoadName],
) -> Row:
    number, id_, kind, ok, role, attempt, start_us, duration_us = record
    run, layout, node = where
    load, scenario = loads[number]
    return Row(
        run, layout, scenario, "load", "none", node, ROLES[role], _KINDS[kind], node, attempt,
        start_us, duration_us, "ok" if ok else "error:failed", index=id_, load=load, life=life,
    )  # fmt: skip
