"""Which types may stand in a table or in a command, decided once when a plugin is registered.

Two dangers are kept out here rather than checked on every write:

- **Mutable values in tables.** Undo, changes and snapshots share values instead of copying them.
- **Unbounded nesting in commands.** Decoding recurses with the nesting of the data, and how deep
  Python may recurse depends on who called, so a deeply nested command could be applied on one node
  and raise RecursionError on another. A type without `Any` and without recursion bounds the depth.

Sets are refused everywhere, because their order differs between two runs of Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import inspect

__all__ = ["require_bounded", "require_frozen"]

_SCALARS = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.EnumType,
    inspect.LiteralType,
)

# Types of commands, results and rows: the plugins of this repository have 300.
_TYPES_MAX: Final = 1024


def require_frozen(annotation: Any, where: str) -> None:
    """Raise TypeError unless every value of the type is immutable and of bounded depth.

    Allowed: None, bool, int (64 bits), float, str, bytes, enums, literals, tuples and unions of
    allowed types, and Structs declared `frozen=True`.
    """
    _walk(_info(annotation), where, frozen=True, above=())


def require_bounded(annotation: Any, where: str) -> None:
    """Raise TypeError unless values of the type have bounded depth and a fixed order.

    As `require_frozen`, and also lists, dicts and Structs that are not frozen.
    """
    _walk(_info(annotation), where, frozen=False, above=())


def _info(annotation: Any) -> inspect.Type:
    try:
        return _info_of_hashable(annotation)
    except TypeError:  # it cannot be hashed, or is wrong, which is then said once more
        return inspect.type_info(annotation)


# To read the types took three quarters of the time in which a state machine is made, and a
# simulation makes one at each start of a node.
@lru_cache(_TYPES_MAX)
def _info_of_hashable(annotation: Any) -> inspect.Type:
    return inspect.type_info(annotation)


def _walk(info: inspect.Type, where: str, *, frozen: bool, above: tuple[type, ...]) -> None:
    if isinstance(info, inspect.Metadata):
        _walk(info.type, where, frozen=frozen, above=above)
    elif isinstance(info, _SCALARS):
        return
    elif isinstance(info, inspect.UnionType):
        for member in info.types:
            _walk(member, where, frozen=frozen, above=above)
    elif isinstance(info, inspect.VarTupleType):
        _walk(info.item_type, where, frozen=frozen, above=above)
    elif isinstance(info, inspect.TupleType):
        for member in info.item_types:
            _walk(member, where, frozen=frozen, above=above)
    elif isinstance(info, inspect.StructType):
        _walk_struct(info, where, frozen=frozen, above=above)
    elif isinstance(info, inspect.ListType) and not frozen:
        _walk(info.item_type, where, frozen=frozen, above=above)
    elif isinstance(info, inspect.DictType) and not frozen:
        _walk(info.key_type, where, frozen=frozen, above=above)
        _walk(info.value_type, where, frozen=frozen, above=above)
    else:
        kind = type(info).__name__.removesuffix("Type").lower()
        allowed = "scalars, tuples and frozen Structs" if frozen else "no Any, Raw or sets"
        raise TypeError(f"{where} uses the type {kind!r}, which is not allowed here: {allowed}")


def _walk_struct(
    info: inspect.StructType, where: str, *, frozen: bool, above: tuple[type, ...]
) -> None:
    cls = info.cls
    if cls in above:
        raise TypeError(f"{where}: {cls.__name__} contains itself, so its depth is unbounded")
    config: msgspec.structs.StructConfig = cls.__struct_config__
    if frozen and not config.frozen:
        raise TypeError(f"{where}: declare {cls.__name__} with frozen=True")
    for field in info.fields:
        _walk(field.type, f"{where}.{field.name}", frozen=frozen, above=(*above, cls))
