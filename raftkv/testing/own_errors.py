"""Errors of an injected bug's own code: a run that ends in one has not found the bug.

    with watched("lose-tail", patch, files):
        ...                               # raises BugFailed if the code of the bug has failed

A bug names functions and attributes of the code under test. After a rename it ends in an
AttributeError of its own, which a simulation would report like any other fault. So every function
that a bug puts in place is guarded (patching.py): an error that it raises in its own code is noted
here, also when the code under test catches it, and `watched` ends with it. An error that the code
under test raises below the bug is what the bug was made for, and is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final

from raftkv.errors import RaftkvError

# What code raises that names, calls or unpacks what is not there or not so any more. The typed
# errors of raftkv are none of them: a bug may raise one on purpose.
OWN_ERRORS: Final = (AttributeError, ImportError, LookupError, NameError, TypeError, ValueError)


class BugFailed(Exception):
    """The code of an injected bug failed itself."""


class _Watch:
    """What is known of the bug that is injected now."""

    def __init__(self, files: Collection[str]) -> None:
        # The wrappers below fail in place of a function that cannot take what it is called with.
        self.files = {*files, __file__}
        # The first failure, in words.
        self.failure = ""

    def note(self, error: BaseException) -> None:
        """Remember the error if it, or what caused it, was raised in the code of the bug."""
        cause: BaseException | None = error
        while cause is not None and not self.failure:
            if isinstance(cause, OWN_ERRORS) and not isinstance(cause, RaftkvError):
                for frame, line in list(walk_tb(cause.__traceback__))[-1:]:
                    file = frame.f_code.co_filename
                    if file in self.files:
                        at = f"{Path(file).name}:{line}"
                        self.failure = f"{type(cause).__name__} at {at}: {cause}"
            cause = cause.__cause__

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """What is raised while this is entered is noted, and goes on."""
        try:
            yield
        except Exception as error:
            self.note(error)
            raise


_watches: list[_Watch] = []


@contextlib.contextmanager
def watched(
    name: str,
    patch: Callable[[], contextlib.AbstractContextManager[object]],
    files: Collection[str],
) -> Iterator[None]:
    """What `patch` makes is entered. The bug's code is that of these files.

    Raises BugFailed at the end if that code has failed, whatever else was found or raised.
    """
    watch = _Watch(files)
    _watches.append(watch)
    try:
        with watch.noting(), patch():
            yield
    finally:
        _watches.remove(watch)
        if watch.failure:
            raise BugFailed(f"the injected bug itself failed: {name}: {watch.failure}")


def note(error: BaseException) -> None:
    """An error has escaped from the code under test: the code of a bug may have raised it."""
    for watch in _watches:
        watch.note(error)


def guarded(replacement: Any) -> Any:
    """The same replacement, watched if it is code of the bug that is injected now."""
    for watch in _watches:
        replacement = _guarded(replacement, watch)
    return replacement


def file_of(function: Callable[..., Any]) -> str:
    """The file in which it is written."""
    return str(inspect.unwrap(function).__code__.co_filename)


def _guarded(replacement: Any, watch: _Watch) -> Any:
    if isinstance(replacement, property):
        get, put, remove = (
            each and _guarded(each, watch)
            for each in (replacement.fget, replacement.fset, replacement.fdel)
        )
        return property(get, put, remove)
    if isinstance(replacement, staticmethod | classmethod):
        return type(replacement)(_guarded(replacement.__func__, watch))
    if isinstance(replacement, tuple) and type(replacement) is tuple:
        return tuple(_guarded(each, watch) for each in replacement)
    if inspect.isfunction(replacement) and replacement.__code__.co_filename in watch.files:
        return _guarded_function(replacement, watch)
    return replacement


def _guarded_function(function: Callable[..., Any], watch: _Watch) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        with watch.noting():
            result = function(*given, **named)
        if inspect.iscoroutine(result) and result.cr_code.co_filename in watch.files:
            return _awaited(result, watch)
        if inspect.isgenerator(result) and result.gi_code.co_filename in watch.files:
            return _iterated(result, watch)
        return result

    return call


async def _awaited(coroutine: Coroutine[Any, Any, Any], watch: _Watch) -> Any:
    with watch.noting():
        return await coroutine


def _iterated(generator: Generator[Any, Any, Any], watch: _Watch) -> Generator[Any, Any, Any]:
    with watch.noting():
        return (yield from generator)
