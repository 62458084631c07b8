"""What can be called: functions by name and version, and what one run of them is told.

The wire names a function, it never brings one: no module path, no pickled code. A node that does
not know a name or version fails that call like any other failure, loudly and until it is mended; it
never takes "unknown" for "nothing to do".

A version is the meaning of the arguments. A new one is registered beside the old one, on all nodes,
before anybody calls it; the old one is dropped when no record of it is left.

Arguments are msgpack, decoded as the type that the function declares. They are never logged, nor
shown: of a failure the class and the place leave the node. Its text goes to the caller alone.
"""

from __future__ import annotations

import inspect
import os.path
import re
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Literal, TypeVar, get_type_hints

import msgspec

from .commands import CAUSE_CHARS_MAX, FUNCTION_CHARS_MAX
from .reports import FunctionInfo

__all__ = [
    "Call",
    "CallError",
    "Function",
    "Functions",
    "Handler",
    "UnknownFunction",
    "cause_of",
    "error_of",
    "logged_cause",
    "place_of",
    "raised_in",
]

Handler = TypeVar("Handler", bound=Callable[[Any, Any], Any])

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
# What a caller is shown of an error's own words, and of its stack: a page.
REASON_CHARS_MAX: Final = 2_000
STACK_CHARS_MAX: Final = 8_000
VERSION_MAX: Final = 2**31 - 1


class UnknownFunction(Exception):
    """This node has no function of this name, or not in this version."""


class Call(msgspec.Struct, frozen=True):
    """What a function is told of its run.

    `kind`: "initiate" on the node that was asked, where it may refuse by raising; "replicate" on
    all others, where the call is committed and has to be brought about, also if it seems done
    already. `attempt` counts from 1 since this node has started. `token`, "id@node", is the same in
    every repetition, and never used for anything else: for effects outside, which can happen twice.
    """

    id: int
    kind: Literal["initiate", "replicate"]
    node: str
    initiator: str
    created_ms: int
    attempt: int

    @property
    def token(self) -> str:
        return f"{self.id}@{self.node}"


class CallError(msgspec.Struct, frozen=True):
    """Why a function failed: the error's class, its own words, and where it came from.

    Given to the caller only. The log of the node and the cluster see `kind` and the place.
    """

    kind: str
    reason: str = ""
    stack: str = ""


class Function:
    """One registered function."""

    __slots__ = ("decoder", "effect", "handler", "name", "type", "version")

    def __init__(
        self, name: str, version: int, handler: Callable[[Any, Any], Any], effect: bool, type_: Any
    ) -> None:
        self.name = name
        self.version = version
        self.handler = handler
        self.effect = effect
        self.type = type_
        self.decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(type_)

    def decode(self, args: bytes) -> Any:
        """The arguments. Raises msgspec.MsgspecError (a ValidationError mostly)."""
        return self.decoder.decode(args)

    def run(self, args: Any, call: Call) -> Any | Awaitable[Any]:
        return self.handler(args, call)


class Functions:
    """The functions of one node."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, Function]] = {}

    def __len__(self) -> int:
        return sum(len(versions) for versions in self._by_name.values())

    def __iter__(self) -> Iterator[Function]:
        for _, versions in sorted(self._by_name.items()):
            for _, function in sorted(versions.items()):
                yield function

    def add(
        self,
        name: str,
        version: int,
        handler: Callable[[Any, Any], Any],
        *,
        effect: bool = False,
        type_: Any = None,
    ) -> None:
        """Register. Raises ValueError (name, version) or TypeError (the type of the arguments)."""
        if not NAME.fullmatch(name) or len(name) > FUNCTION_CHARS_MAX:
            raise ValueError(
                f"{name!r} cannot name a function: take letters, digits and _ . : -, at most "
                f"{FUNCTION_CHARS_MAX}"
            )
        if not 1 <= version <= VERSION_MAX:
            raise ValueError(f"the version of {name!r} is {version}: count from 1")
        versions = self._by_name.setdefault(name, {})
        if version in versions:
            raise ValueError(
                f"{name!r} version {version} is registered already: a change of what its arguments "
                f"mean is a new version"
            )
        type_ = _type_of_args(name, handler) if type_ is None else type_
        versions[version] = Function(name, version, handler, effect, type_)

    def get(self, name: str, version: int | None = None) -> Function:
        """The function in this version, or its newest. Raises UnknownFunction."""
        versions = self._by_name.get(name, {})
        if version is None and versions:
            return versions[max(versions)]
        if version in versions:
            return versions[version]
        if not versions:
            raise UnknownFunction(
                f"this node has no function {name!r}: register it with calls.function on every node"
            )
        known = ", ".join(map(str, sorted(versions)))
        raise UnknownFunction(f"this node has {name!r} in version {known} and not in {version}")

    def infos(self) -> tuple[FunctionInfo, ...]:
        """What is registered, by name and version, for people."""
        return tuple(
            FunctionInfo(
                function.name,
                function.version,
                function.effect,
                getattr(function.type, "__name__", None) or str(function.type),
                (inspect.getdoc(function.handler) or "").partition("\n")[0],
            )
            for function in self
        )


def _type_of_args(name: str, handler: Callable[[Any, Any], Any]) -> Any:
    """The annotation of the first parameter. Raises TypeError if that says nothing."""
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) != 2:
        raise TypeError(f"the function for {name!r} takes (args, call), not {len(parameters)}")
    annotation = parameters[0].annotation
    if annotation is inspect.Parameter.empty:
        raise TypeError(f"say the type of the arguments of {name!r}: annotate them, or give type=")
    if not isinstance(annotation, str):
        return annotation
    try:
        return get_type_hints(handler)[parameters[0].name]
    except (NameError, TypeError) as error:
        raise TypeError(
            f"the annotation {annotation!r} of {name!r} cannot be resolved ({error}): give type="
        ) from None


# --- failures -------------------------------------------------------------------------------------


def place_of(error: BaseException) -> str:
    """Where an error was raised, "dir/file.py:12 in name"; "" if it was not raised anywhere."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    directory, file = os.path.split(last.filename)
    short = os.path.join(os.path.basename(directory), file)
    return f"{short}:{last.lineno} in {last.name}"


def logged_cause(error: BaseException) -> str:
    """The class and the place, for this node's log alone: it names a file."""
    place = place_of(error)
    text = type(error).__name__ + (f" at {place}" if place else "")
    return text[:CAUSE_CHARS_MAX]


def raised_in(error: BaseException) -> str:
    """The function that raised an error, "in name"; "" if it was not raised anywhere."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name}" if frames else ""


def cause_of(error: BaseException) -> str:
    """The class and the function: all that the cluster, and a client, get to see of an error."""
    return f"{type(error).__name__} {raised_in(error)}".strip()[:CAUSE_CHARS_MAX]


def error_of(error: BaseException) -> CallError:
    """What the caller gets to see of an error."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    try:
        reason = str(error)
    except Exception:
        # Users' code as well. What it ends must not be the answer to the call.
        reason = "(its own text cannot be had)"
    return CallError(type(error).__name__, reason[:REASON_CHARS_MAX], stack[-STACK_CHARS_MAX:])
