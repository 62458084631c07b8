"""Replacing functions of real classes for the time of a test, and putting them back.

The observer listens through such replacements, and planted bugs are made of them: production code
needs no hooks and no switches for either. A name that does not exist is an error, so that a rename
in the code under test cannot silently switch a check off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["around", "replaced"]


@contextlib.contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """`owner.name` is `replacement`. The owner itself must define the name, not a base of it."""
    try:
        before = vars(owner)[name]
    except KeyError:
        raise AttributeError(f"{owner!r} does not define {name}: it was renamed") from None
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)


def around(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> contextlib.AbstractContextManager[None]:
    """`owner.name` is `wrap(what it was)`; for plain functions of a class or module."""
    original = vars(owner).get(name)
    if original is None:
        raise AttributeError(f"{owner!r} does not define {name}: it was renamed")
    return replaced(owner, name, wrap(original))
