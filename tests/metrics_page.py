"""The metrics of docs/metrics.md with their types, for tests that compare them with nodes."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["documented"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| (`raftkv_\w+`(?:, `raftkv_\w+`)*) \| (\S.*) \|$", re.M)


def documented(prefix: str = "raftkv_") -> dict[str, str]:
    """Return name and type of each listed metric whose name begins with `prefix`."""
    listed: dict[str, str] = {}
    for names, meaning in _ROW.findall(PAGE.read_text("utf-8")):
        for name in re.findall(r"\w+", names):
            assert name not in listed, f"{name} is listed twice"
            listed[name] = _kind(name, meaning)
    return {name: kind for name, kind in listed.items() if name.startswith(prefix)}


def _kind(name: str, meaning: str) -> str:
    if name.endswith("_total"):
        return "counter"
    return "histogram" if meaning.startswith("histogram: ") else "gauge"
