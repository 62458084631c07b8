"""What lies in a benchmark directory: log files, facts of loads, benchmark files, conditions.

Every Parquet file is read through once before Spark sees it, pages and checksums included. Spark's
own choices are to die at the first damaged page or to skip it without a word
(`ignoreCorruptFiles`); neither can count what was lost. The logs are small enough (a few hundred
megabytes at most) that reading them twice costs less than starting the JVM.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.analysis import AnalysisError
from bench.facts import CallFacts, Facts, LimboFacts, SubscriptionFacts, TxqueueFacts
from bench.schema import arrow_schema

__all__ = ["DamagedFile", "Inputs", "find_inputs", "path_to_read", "path_to_write"]

F = TypeVar("F", Facts, CallFacts, LimboFacts, TxqueueFacts, SubscriptionFacts)

REASON_CHARS_MAX = 200
"""Enough of a library's message to recognise the fault; the file itself is still there."""


@dataclass(frozen=True)
class DamagedFile:
    """A file that was set aside as a whole, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Inputs:
    """The files that can be read, those that cannot, and the conditions of the run."""

    directory: Path
    logs: tuple[Path, ...]
    benchmarks: tuple[Path, ...]
    damaged: tuple[DamagedFile, ...]
    conditions: dict[str, Any]
    loads: tuple[Facts, ...] = ()
    call_loads: tuple[CallFacts, ...] = ()
    limbo_loads: tuple[LimboFacts, ...] = ()
    txqueue_loads: tuple[TxqueueFacts, ...] = ()
    subscription_loads: tuple[SubscriptionFacts, ...] = ()


def path_to_write(path: Path) -> str:
    """A path for Spark: with its scheme, because the default file system may be another."""
    return f"file://{path.resolve()}"


def path_to_read(path: Path) -> str:
    """A path for Spark to read; it would take `[1]` or `*` in a name for a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path_to_write(path))


def find_inputs(directory: Path) -> Inputs:
    """Looks through `directory`. Raises AnalysisError when there is no log to analyse.

    Damaged files are returned, not raised: whether anything is left is known only after the rows
    have been checked too.
    """
    if not directory.is_dir():
        raise AnalysisError(
            f"there is no directory {directory}: give the --out directory of `python -m bench run`"
        )
    paths = sorted((directory / "log").glob("*.parquet"))
    if not paths:
        raise AnalysisError(
            f"there are no log files {directory}/log/*.parquet: "
            f"run `python -m bench run --out {directory}` first"
        )
    objections = {path: _objection(path) for path in paths}
    damaged = [DamagedFile(path, reason) for path, reason in objections.items() if reason]
    conditions, trouble = _conditions(directory / "conditions.json")
    loads, unread = _loads(directory / "loads", Facts)
    call_loads, unread_calls = _loads(directory / "call-loads", CallFacts)
    limbo_loads, unread_limbo = _loads(directory / "limbo-loads", LimboFacts)
    txqueue_loads, unread_txqueue = _loads(directory / "txqueue-loads", TxqueueFacts)
    subscription_loads, unread_subscriptions = _loads(
        directory / "subscription-loads", SubscriptionFacts
    )
    unread_plugins = (*unread_calls, *unread_limbo, *unread_txqueue, *unread_subscriptions)
    return Inputs(
        directory=directory,
        logs=tuple(path for path in paths if not objections[path]),
        benchmarks=tuple(sorted((directory / "benchmark").glob("*.json"))),
        damaged=(*damaged, *trouble, *unread, *unread_plugins),
        conditions=conditions,
        loads=loads,
        call_loads=call_loads,
        limbo_loads=limbo_loads,
        txqueue_loads=txqueue_loads,
        subscription_loads=subscription_loads,
    )


def _objection(path: Path) -> str | None:
    """Why this log file cannot be used; None if it can."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            found = file.schema_arrow
            for field in arrow_schema():
                position = found.get_field_index(field.name)
                if position < 0 and field.nullable:
                    continue  # written before the column was added
                if position < 0:
                    return f"wrong schema: column {field.name} is missing"
                if found.field(position).type != field.type:
                    return (
                        f"wrong schema: column {field.name} is "
                        f"{found.field(position).type}, not {field.type}"
                    )
            known = [name for name in arrow_schema().names if name in found.names]
            for _ in file.iter_batches(columns=known):
                pass
    except (OSError, pyarrow.ArrowException) as error:
        return f"unreadable: {_one_line(error)}"
    return None


def _conditions(path: Path) -> tuple[dict[str, Any], list[DamagedFile]]:
    try:
        conditions = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        return {}, [DamagedFile(path, f"unreadable: {_one_line(error)}")]
    if not isinstance(conditions, dict):
        return {}, [DamagedFile(path, "unreadable: not a JSON object")]
    return conditions, []


def _loads(folder: Path, kind: type[F]) -> tuple[tuple[F, ...], list[DamagedFile]]:
    """The facts of all loads: some dozens, so they are read here and not by Spark."""
    facts, damaged = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            facts.append(msgspec.json.decode(path.read_bytes(), type=kind))
        except (OSError, msgspec.DecodeError) as error:
            damaged.append(DamagedFile(path, f"unreadable: {_one_line(error)}"))
    return tuple(facts), damaged


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:REASON_CHARS_MAX] or type(error).__name__
