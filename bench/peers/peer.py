"""What a peer offers to `python -m bench peers`: its options, its measurement, its last words."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.arguments import positive_int
from bench.peers.figures import Comparison

__all__ = ["Peer", "PeerFailed", "Step", "numbers"]

Step = Callable[[str], None]
"""Told what is measured next."""


class PeerFailed(Exception):
    """The peer did not do what it should. The message says what, and has its last words."""


@dataclass(frozen=True)
class Peer:
    """One that raftkv is measured beside.

    `add_arguments` adds what only this peer has; the parser has the common options already.
    `steps` is how often `compare` will call its `Step`. `compare` is given an empty directory and
    the conditions of the run, starts both sides, and has ended both when it returns or raises.
    `notes` are the lines below the table.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    steps: Callable[[argparse.Namespace], int]
    compare: Callable[[argparse.Namespace, Path, Step, dict[str, Any]], Awaitable[Comparison]]
    notes: Callable[[Comparison], list[str]]


def numbers(text: str) -> list[int]:
    """A list of whole numbers above 0, for the command line."""
    return [positive_int(part) for part in text.split(",") if part]
