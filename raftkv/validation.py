"""Checks of arguments at the call: one set of rules for Node, Client, recipes and plugins.

    @checked
    class LockApi:
        async def lock(self, name: str, *, timeout_s: float | None = None) -> int: ...

`checked` reads the rules from the annotations of public methods, so that a node and a client, whose
signatures are equal, refuse the same values with the same words. A wrong type is a TypeError, a
value out of its range a ValueError, both before anything is sent: a wrong type never travels
through the log, and no value is taken for another one.

Rules of this file
1. Only what a caller passes is checked. A default costs nothing.
2. A bool is not an int, an int is a float, a str is not a sequence of str. Structs are checked with
   their fields. An annotation that cannot be checked (Any, a Protocol, a name that
   is imported for type checkers only) checks nothing.
3. A float is not nan. `timeout_s` is greater than 0 and finite; other times (`..._s`) are 0
   or more.
4. An annotation is read once, into functions that look at values only. Reading it for each value
   cost a third of all transactions of queues (`bench/test_parts_bench.py` measures the checks).
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import re
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

import msgspec

__all__ = ["checked", "require", "require_decodable", "require_int64", "require_timeout"]

T = TypeVar("T")

#: Whether a value fits; raises ValueError for one of the right type and out of its range.
Fits = Callable[[Any], bool]
Check = Callable[[Any], None]

INT64: Final = range(-(2**63), 2**63)

_encode = msgspec.msgpack.Encoder().encode

_CALLABLE: Final[Any] = collections.abc.Callable

_PLAIN: Final[dict[Any, tuple[str, Fits]]] = {
    bool: ("True or False", lambda value: type(value) is bool),
    int: ("an int", lambda value: type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float)),
    str: ("a str", lambda value: isinstance(value, str)),
    bytes: ("bytes", lambda value: isinstance(value, bytes)),
    type(None): ("None", lambda value: value is None),
}


def require_timeout(timeout_s: float | None) -> None:
    """Raise TypeError or ValueError unless it is None, or a number of seconds that can pass."""
    if timeout_s is None:
        return
    if type(timeout_s) not in (int, float):
        raise TypeError(f"timeout_s must be a number of seconds, or None, not {timeout_s!r:.60}")
    if not 0 < timeout_s < math.inf:
        raise ValueError(
            f"timeout_s = {timeout_s}: it must be a number of seconds greater than 0 and finite, "
            f"or None for the default"
        )


def require_int64(name: str, value: int, least: int = INT64.start) -> None:
    """Raise TypeError or ValueError unless `value` is an int of 64 bits, at least `least`."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {value!r:.60}")
    if value not in INT64 or value < least:
        raise ValueError(f"{name} = {value!r:.40}: it must be from {least} to {INT64[-1]}")


def require(hint: Any, name: str, value: Any) -> None:
    """Raise TypeError or ValueError unless `value` fits the annotation `hint`."""
    _require(*_kind(hint), name, value)


def _require(words: str, fits: Fits, name: str, value: Any) -> None:
    try:
        fitting = fits(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not fitting:
        raise TypeError(f"{name} must be {words}, not {value!r:.60}")


def require_decodable(
    plugin: str, command: msgspec.Struct, decode: Callable[[bytes], object]
) -> None:
    """Raise TypeError unless `decode` reads the command as every node will. Names the field."""
    kind = type(command)
    try:
        decode(_encode(command))
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise TypeError(f"{plugin}: {_named(kind, str(error))}") from None


def _named(kind: type, error: str) -> str:
    """An error of msgspec with the field's name in place of its number."""
    place = re.search(r"\$\[(\d+)\]", error)
    if place is None or not issubclass(kind, msgspec.Struct):
        return f"{kind.__name__}: {error}"
    # In front of the fields is the command's tag, if it has one.
    number = int(place[1]) - (kind.__struct_config__.tag is not None)
    names = kind.__struct_fields__
    name = names[number] if 0 <= number < len(names) else "?"
    return f"{kind.__name__}.{name}: {error.partition(' - at ')[0]}"


def checked(target: T) -> T:
    """Have a function, or every public method of a class, check its arguments.

    Signatures, docstrings and what is awaited stay as they are.
    """
    if not inspect.isclass(target):
        wrapped: T = _checking(target)
        return wrapped
    for name, member in list(vars(target).items()):
        if not inspect.isfunction(member) or name.startswith("_"):
            continue
        if len(inspect.signature(member).parameters) > 1:
            setattr(target, name, _checking(member))
    return target


def _checking(function: Any) -> Any:
    """The function behind checks of its arguments.

    To take the arguments as `*args, **kwargs` and to look up their rules costs 1.6 us for each
    call, code generated from the signature 0.3 us, while a get that needs no round takes 11 us. The
    first call generates it: for all methods of a client at the import that took 15 ms.
    """
    names: dict[str, Any] = {}
    forward = _forward_awaited if inspect.iscoroutinefunction(function) else _forward
    checks = types.FunctionType(forward.__code__, names)

    def first(*args: Any, **kwargs: Any) -> Any:
        generated = _generate(function, names)
        checks.__defaults__, checks.__kwdefaults__ = (
            generated.__defaults__,
            generated.__kwdefaults__,
        )
        # References to the function stay valid: only its code changes.
        checks.__code__ = generated.__code__
        return checks(*args, **kwargs)

    names["_first"] = first
    return functools.wraps(function)(checks)


# What a checked function does until its first call. The name is in the globals that it is given.
def _forward(*args: Any, **kwargs: Any) -> Any:
    return _first(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


async def _forward_awaited(*args: Any, **kwargs: Any) -> Any:
    return await _first(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


def _generate(function: Any, names: dict[str, Any]) -> types.FunctionType:
    """Make the code of the checks. Its globals are `names`, to which it adds what it uses."""
    parameters = list(inspect.signature(function).parameters.values())
    own = _prefix(parameters)
    names |= {f"{own}function": function, f"{own}type": type}
    taken: list[inspect.Parameter] = []
    lines: list[str] = []
    given: list[str] = []
    for number, parameter in enumerate(parameters):
        default: Any = parameter.default
        if default is not parameter.empty:
            names[f"{own}default_{number}"] = default
            default = _Written(f"{own}default_{number}")
        taken.append(parameter.replace(annotation=parameter.empty, default=default))
        keyword = f"{parameter.name}=" if parameter.kind is parameter.KEYWORD_ONLY else ""
        given.append(f"{keyword}{_STARS.get(parameter.kind, '')}{parameter.name}")
        if parameter.annotation is not parameter.empty:
            rule = _rule_of(function, parameter)
            names[f"{own}quick_{number}"], names[f"{own}rule_{number}"] = rule
            lines += _check_in_words(own, number, parameter)
    head, wait = ("def", "")
    if inspect.iscoroutinefunction(function):
        head, wait = ("async def", "await ")
    lines = [
        f"{head} {own}checks{inspect.Signature(taken)}:",
        *(f"    {line}" for line in lines),
        f"    return {wait}{own}function({', '.join(given)})",
    ]
    code = compile("\n".join(lines), f"<checks of {function.__qualname__}>", "exec")
    exec(code, names)  # noqa: S102  # the source is made of a signature of this program
    generated: types.FunctionType = names[f"{own}checks"]
    return generated


def _prefix(parameters: Iterable[inspect.Parameter]) -> str:
    """What the names of generated code begin with, and no parameter does."""
    prefix = "_"
    while any(parameter.name.startswith(prefix) for parameter in parameters):
        prefix += "_"
    return prefix


class _Written(str):
    """A default as it stands in generated code."""

    __repr__ = str.__str__


_STARS: Final[dict[Any, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def _check_in_words(own: str, number: int, parameter: inspect.Parameter) -> list[str]:
    """The statements that check one argument."""
    name, quick, rule = parameter.name, f"{own}quick_{number}", f"{own}rule_{number}"
    if parameter.kind is parameter.VAR_KEYWORD:
        return []
    if parameter.kind is parameter.VAR_POSITIONAL:
        return [
            f"for {own}each in {name}:",
            f"    if {own}type({own}each) not in {quick}: {rule}({own}each)",
        ]
    unless = f" and {name} is not {own}default_{number}"
    if parameter.default is parameter.empty:
        unless = ""
    return [f"if {own}type({name}) not in {quick}{unless}: {rule}({name})"]


def _rule_of(function: Any, parameter: inspect.Parameter) -> tuple[frozenset[type], Check]:
    """The types whose every value fits, and the check of all other values."""
    name, hint = parameter.name, _hint_of(function, parameter)
    if hint is Any:
        return frozenset(), lambda value: None
    if name == "timeout_s":
        return frozenset({type(None)}), require_timeout
    words, fits = _kind(hint)
    seconds = name.endswith("_s") and float in _parts_of(hint)

    def rule(value: Any) -> None:
        _require(words, fits, name, value)
        if seconds and value is not None and value < 0:
            raise ValueError(f"{name} = {value}: it must be a number of seconds, 0 or more")

    return _quick(hint), rule


def _hint_of(function: Any, parameter: inspect.Parameter) -> Any:
    """The annotation; Any if there is none, or if it cannot be known when the program runs."""
    if parameter.annotation is parameter.empty:
        return Any

    def alone() -> None:
        """One annotation: what cannot be resolved must not hide the others."""

    alone.__annotations__ = {"it": parameter.annotation}
    try:
        return hints_of(alone, function.__globals__)["it"]
    except NameError:
        return Any


def _parts_of(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the one hint."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _quick(hint: Any) -> frozenset[type]:
    """The types whose every value fits: a look at the type is all that most values need."""
    parts = (type(None) if each is None else each for each in _parts_of(hint))
    return frozenset(each for each in parts if each in _PLAIN and each is not float)


@functools.cache
def _kind(hint: Any) -> tuple[str, Fits]:
    """An annotation in words, and whether a value fits it."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is float:
        return "a number", _is_number
    if hint in _PLAIN or hint is None:
        return _PLAIN[type(None) if hint is None else hint]
    if origin is Annotated:
        return _kind(args[0])
    if origin is Literal:
        return " or ".join(map(repr, args)), _fits_choice(args)
    if origin in (Union, types.UnionType):
        kinds = [_kind(arg) for arg in args]
        return " or ".join(words for words, _ in kinds), _fits_any([fits for _, fits in kinds])
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        return f"a {hint.__name__}", functools.partial(_fits_struct, hint)
    kind: Any = origin or hint
    if kind is type or not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
        return "as documented", lambda value: True
    if issubclass(kind, collections.abc.Mapping):
        return "a mapping", _fits_mapping(args)
    if kind is _CALLABLE:
        return "a function", callable
    if issubclass(kind, collections.abc.Iterable) and kind not in (str, bytes):
        items = _kind(args[0])[0] if args else "items"
        return f"a {_plain_name(kind)} of {items}", _fits_items(kind, args)
    return f"a {kind.__name__}", lambda value: isinstance(value, kind)


def _is_number(value: Any) -> bool:
    if type(value) not in (int, float):
        return False
    if math.isnan(value):
        raise ValueError("nan is no number")
    return True


def _fits_choice(choices: tuple[Any, ...]) -> Fits:
    kinds = {type(choice) for choice in choices}

    def fits(value: Any) -> bool:
        if type(value) not in kinds:
            return False
        if value not in choices:
            raise ValueError(f"{value!r:.60} is none of {', '.join(map(repr, choices))}")
        return True

    return fits


def _fits_any(alternatives: list[Fits]) -> Fits:
    def fits(value: Any) -> bool:
        return any(alternative(value) for alternative in alternatives)

    return fits


def _plain_name(kind: type) -> str:
    return "list" if kind in (tuple, collections.abc.Sequence) else kind.__name__.lower()


def _fits_items(kind: type, args: tuple[Any, ...]) -> Fits:
    """Of lists, tuples, sets and other iterables. An iterator is not used up by it."""
    family = kind
    if kind in (tuple, list, collections.abc.Sequence):
        family = collections.abc.Sequence
    inside: Fits | None = None
    if _is_fixed(args):
        inside = _fits_places(args)
    elif args:
        inside = _fits_each(args[0])

    ordered = issubclass(tuple, family)

    def fits(value: Any) -> bool:
        # What nearly every caller passes needs no question to an abstract class.
        if not (ordered and type(value) in (tuple, list)):
            if isinstance(value, str | bytes | bytearray) or not isinstance(value, family):
                return False
            if not isinstance(value, collections.abc.Sequence | collections.abc.Set):
                return True
        return inside is None or inside(value)

    return fits


def _is_fixed(args: tuple[Any, ...]) -> bool:
    """Whether the arguments are those of a tuple of a fixed length."""
    return len(args) > 1 and args[-1] is not Ellipsis


def _fits_places(args: tuple[Any, ...]) -> Fits:
    kinds = [_kind(arg)[1] for arg in args]

    def fits(value: Any) -> bool:
        return len(kinds) == len(value) and all(
            kind(each) for kind, each in zip(kinds, value, strict=True)
        )

    return fits


def _fits_each(hint: Any) -> Fits:
    quick, kind = _quick(hint), _kind(hint)[1]

    def fits(value: Any) -> bool:
        if quick and quick.issuperset(map(type, value)):
            return True
        return all(map(kind, value))

    return fits


def _fits_mapping(args: tuple[Any, ...]) -> Fits:
    # A Counter has one argument.
    key, item = (_kind(arg)[1] for arg in args) if len(args) == 2 else (None, None)

    def fits(value: Any) -> bool:
        if not isinstance(value, collections.abc.Mapping):
            return False
        if key is None or item is None:
            return True
        return all(key(each) and item(value[each]) for each in value)

    return fits


@functools.cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, frozenset[type], Check], ...]:
    """Of each field its name, the types that need no further look, and the look at a value."""
    try:
        fields = msgspec.structs.fields(kind)
    except NameError:
        return ()  # its annotations are for type checkers only
    return tuple(
        (
            field.name,
            _quick(field.type),
            functools.partial(_require, *_kind(field.type), f"{kind.__name__}.{field.name}"),
        )
        for field in fields
    )


def _fits_struct(kind: type[msgspec.Struct], value: Any) -> bool:
    if not isinstance(value, kind):
        return False
    for name, quick, rule in _fields_of(kind):
        each = getattr(value, name)
        if type(each) not in quick:
            rule(each)
    return True
