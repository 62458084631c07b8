"""Kinds of numbers on the command line, refused in words that say what is wanted."""

from __future__ import annotations

import argparse
import contextlib

__all__ = ["not_negative", "positive", "positive_int"]


def positive(text: str) -> float:
    """A number above 0."""
    value = not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def not_negative(text: str) -> float:
    """A number of at least 0."""
    with contextlib.suppress(ValueError):
        value = float(text)
        if 0 <= value < 1e9:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1e9")


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    with contextlib.suppress(ValueError):
        value = int(text)
        if 1 <= value <= 1_000_000_000:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
