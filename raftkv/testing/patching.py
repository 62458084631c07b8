"""Replacing functions of real classes for the time of a test, and putting them back.

The observer listens through such replacements, and planted bugs are made of them: production code
needs no hooks and no switches for either. A name that does not exist is an error, so that a rename
in the code under test cannot silently switch a check off; so are parameters that the replacement
does not take, which would be found as a bug of their own. Functions that belong to an injected bug
are watched for errors of their own (own_errors.py).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from raftkv.testing.own_errors import guarded

__all__ = ["around", "around_entry", "replaced"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@contextlib.contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """`owner.name` is `replacement`. The owner itself must define the name, not a base of it, and a
    function must take the parameters of the function that it replaces."""
    try:
        before = vars(owner)[name]
    except KeyError:
        raise AttributeError(f"{owner!r} does not define {name}: it was renamed") from None
    if inspect.isfunction(before) and inspect.isfunction(replacement):
        _require_parameters(before, replacement)
    setattr(owner, name, guarded(replacement))
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


@contextlib.contextmanager
def around_entry(
    table: MutableMapping[Any, Callable[..., Any]],
    key: Any,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    """`table[key]` is `wrap(what it was)`: a plugin has a function for each of its commands."""
    before = table[key]
    table[key] = guarded(wrap(before))
    try:
        yield
    finally:
        table[key] = before


def _require_parameters(before: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Raises TypeError if the replacement cannot be called with all parameters of what it replaces,
    or with only those that have no default. The wrapper of an observer takes any, so it is
    not checked."""
    parameters = inspect.signature(before).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return
    takes = inspect.signature(replacement)
    for given in (parameters, [each for each in parameters if each.default is each.empty]):
        positional = [each for each in given if each.kind in _POSITIONAL]
        named = [each.name for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY]
        try:
            takes.bind(*positional, **dict.fromkeys(named))
        except TypeError as error:
            text = f"the replacement of {before.__qualname__} takes other parameters: {error}"
            raise TypeError(text) from None
