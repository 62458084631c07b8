"""Files of what runs gave: the version of Python that made it, and a line for each run."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


class StoredRuns(msgspec.Struct, frozen=True):
    """The content of a file. `python` is the version that made it, without its patch."""

    python: str
    runs: dict[str, Any]


def read(path: Path) -> StoredRuns:
    """The content of a file; no runs, of this version, if there is none."""
    if not path.exists():
        return StoredRuns(python_version(), {})
    return msgspec.json.decode(path.read_bytes(), type=StoredRuns)


def write(runs: Mapping[str, object], path: Path) -> None:
    """Write a line for each run, so that two branches with other runs merge."""
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(msgspec.to_builtins(given))}"
        for name, given in runs.items()
    )
    head = json.dumps({"python": python_version()})[1:-1]
    path.write_text(f'{{{head}, "runs": {{\n{lines}\n}}}}\n', encoding="utf-8")


def python_version() -> str:
    """Of this interpreter, without the patch: asyncio schedules alike in all patches of one."""
    return ".".join(platform.python_version_tuple()[:2])
