"""Histories on disk: who asked for what when, and what came of it, for `python -m bench check`.

    DIR/history/<run>-<name>.parquet     as many files as there are recorders

The benchmark log (bench.schema) has no values, because latencies do not need them and files would
be ten times as large; a history has nothing else. Rules of the format are those of the log. `input`
and `output` are MessagePack, so that bytes, truth and absence stay apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftkv.testing.histories import Operation

if TYPE_CHECKING:
    import pyarrow

__all__ = ["COLUMNS", "FOLDER", "HistoryError", "find_histories", "operation", "write_history"]

FOLDER: Final = "history"

# Name, type, whether it may be null; the meaning is that of the fields of `Operation`.
COLUMNS: Final = (
    ("run", "string", False),
    ("process", "string", False),
    ("op", "string", False),
    ("key", "binary", False),
    ("input", "binary", True),
    ("output", "binary", True),
    ("revision", "int64", True),
    ("start_us", "int64", False),
    ("end_us", "int64", True),
    ("outcome", "string", False),
)

Value = bytes | bool | int | None | tuple[bytes | None, bytes | None]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Value).decode


class HistoryError(Exception):
    """A directory or file cannot be checked. The message is one line and says what to do."""


def arrow_schema() -> pyarrow.Schema:
    """The columns as pyarrow writes and reads them."""
    import pyarrow

    kinds = {"string": pyarrow.string(), "binary": pyarrow.binary(), "int64": pyarrow.int64()}
    return pyarrow.schema([pyarrow.field(n, kinds[t], nullable=null) for n, t, null in COLUMNS])


def write_history(directory: Path, run: str, name: str, history: Iterable[Operation]) -> Path:
    """Writes a history as DIR/history/RUN-NAME.parquet, whole or not at all. Returns its path.

    Keys are bytes and times microseconds of one clock. Raises ValueError for a run or name that
    cannot be part of a file name, FileExistsError if the file is there, OSError.
    """
    import pyarrow
    from pyarrow import parquet

    for part in (run, name):
        if not _NAME.fullmatch(part):
            raise ValueError(f"{part!r} cannot name a file: use letters, digits, '_.+-'")
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run}-{name}.parquet"
    if path.exists():
        raise FileExistsError(f"{path} exists: a history is never overwritten")
    rows = [_row(run, one) for one in history]
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        table = pyarrow.Table.from_pylist(rows, schema=arrow_schema())
        parquet.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _row(run: str, one: Operation) -> dict[str, Any]:
    return {
        "run": run,
        "process": str(one.process),
        "op": one.op,
        "key": one.key,
        "input": None if one.input is None else _encode(one.input),
        "output": None if one.output is None else _encode(one.output),
        "revision": one.revision,
        "start_us": one.start,
        "end_us": one.end,
        "outcome": one.outcome,
    }


def operation(row: Any) -> Operation:
    """A row (anything with the columns as items) as an operation. Raises ValueError if damaged."""
    return Operation(
        process=row["process"],
        op=row["op"],
        key=bytes(row["key"]),
        input=None if row["input"] is None else _decode(bytes(row["input"])),
        output=None if row["output"] is None else _decode(bytes(row["output"])),
        start=row["start_us"],
        end=row["end_us"],
        outcome=row["outcome"],
        revision=row["revision"],
    )


def find_histories(directory: Path) -> list[Path]:
    """The history files of a directory, each read through once, checksums included.

    Raises HistoryError if there are none or one is damaged: a verdict on a part would be none.
    """
    import pyarrow
    from pyarrow import parquet

    if not directory.is_dir():
        raise HistoryError(f"there is no directory {directory}: give one that holds {FOLDER}/")
    paths = sorted((directory / FOLDER).glob("*.parquet"))
    if not paths:
        raise HistoryError(
            f"there are no history files {directory / FOLDER}/*.parquet: write them with "
            "bench.history.write_history, from a raftkv.testing.recorder.HistoryRecorder"
        )
    for path in paths:
        try:
            with parquet.ParquetFile(path, page_checksum_verification=True) as file:
                found = file.schema_arrow
                for field in arrow_schema():
                    place = found.get_field_index(field.name)
                    if place < 0 or found.field(place).type != field.type:
                        raise HistoryError(
                            f"{path} has no column {field.name} of type {field.type}: "
                            "it was not written by bench.history.write_history"
                        )
                for _ in file.iter_batches():
                    pass
        except (OSError, pyarrow.ArrowException) as error:
            why = " ".join(str(error).split())[:200]
            raise HistoryError(f"{path} is damaged ({why}): remove it, or record again") from error
    return paths
