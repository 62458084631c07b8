"""A dict that cannot be changed: for the mappings of a frozen configuration."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

__all__ = ["FrozenDict", "frozen"]

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict whose methods that would change it raise TypeError. `dict(it)` is an ordinary one.

    Unlike `types.MappingProxyType` it can be pickled, copied and encoded.
    """

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "a mapping of a configuration is read-only: make another configuration, as with "
            "msgspec.structs.replace"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict[K, V]], tuple[dict[K, V]]]:
        return type(self), (dict(self),)


def frozen(value: Any) -> Any:
    """A copy of `value` with FrozenDict for each dict in it. Lists and tuples are copied, too."""
    if isinstance(value, dict):
        return FrozenDict({key: frozen(each) for key, each in value.items()})
    if isinstance(value, list):
        return [frozen(each) for each in value]
    if isinstance(value, tuple):
        return tuple(map(frozen, value))
    return value
