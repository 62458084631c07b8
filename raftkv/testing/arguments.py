"""What the arguments of the testing commands may be."""

from __future__ import annotations

import argparse

__all__ = ["positive"]


def positive(text: str) -> float:
    """A number greater than 0, for argparse."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} must be greater than 0")
    return number
