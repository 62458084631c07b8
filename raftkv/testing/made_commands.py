"""Commands of any plugin, made from the types that it declares.

A value of chance alone is nearly always refused: no such queue, no such ticket. So values are taken
from what the state and the answers have shown, the latest ones first. What was seen in a field
named `ticket` goes into fields named `ticket`; a whole Struct that was seen goes where its class is
wanted. And often a command *follows* one Struct, an answer, a row or another command: it takes all
fields that it shares with it, so that a ticket comes with the id that it was given for, and from
whom it was given to. The rest are a few short words, small numbers, and neighbours of numbers seen.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import msgspec.inspect as mi

__all__ = ["CommandMaker"]

# Values that are remembered under one name: the last ones, of which most are still true.
SEEN_MAX: Final = 24
FOLLOWED_MAX: Final = 32
# Attempts at a value that its type allows.
MADE_MAX: Final = 50
ITEMS_MAX: Final = 3
WORDS: Final = ("a", "b", "c")
# How deep into a value one looks for what could be used again.
DEPTH_MAX: Final = 4


class CommandMaker:
    """Makes commands of these classes by `rng`, from what it was told to `learn`."""

    def __init__(self, commands: Sequence[type[msgspec.Struct]], rng: random.Random) -> None:
        self._rng = rng
        self._infos: dict[type, Any] = {command: mi.type_info(command) for command in commands}
        # By (type, name of the field); the name "" has those of all fields.
        self._seen: defaultdict[tuple[type, str], deque[Any]] = defaultdict(
            lambda: deque(maxlen=SEEN_MAX)
        )
        # (what may be followed, who sent it or was answered with it; "": nobody)
        self._followed: deque[tuple[dict[str, Any], str]] = deque(maxlen=FOLLOWED_MAX)

    def learn(self, value: Any, name: str = "", sender: str = "") -> None:
        """Remember a value and what it consists of. `name`: of the field that it was seen in."""
        if isinstance(value, msgspec.Struct):
            self._followed.append((msgspec.structs.asdict(value), sender))
        self._learn(value, name, DEPTH_MAX)

    def _learn(self, value: Any, name: str, depth: int) -> None:
        if depth == 0 or value is None or isinstance(value, bool):
            return
        if isinstance(value, msgspec.Struct):
            self._remember(value, name)
            for field in value.__struct_fields__:
                self._learn(getattr(value, field), field, depth - 1)
        elif isinstance(value, (tuple, list)):
            for item in value[:ITEMS_MAX]:
                self._learn(item, name, depth - 1)
        elif isinstance(value, (int, str, bytes)):
            self._remember(value, name)

    def _remember(self, value: Any, name: str) -> None:
        name = name.rstrip("s")  # one of `seqs` is a `seq`
        for each in (name, "") if name else ("",):
            seen = self._seen[type(value), each]
            if value in seen:
                seen.remove(value)
            seen.append(value)

    def make(self, command: type[msgspec.Struct]) -> tuple[msgspec.Struct, str]:
        """One of this class, within the bounds of its types, and who sends it ("": anybody)."""
        for _ in range(MADE_MAX):
            made, sender = self._try(self._infos[command])
            try:
                msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=command)
            except (msgspec.MsgspecError, OverflowError, UnicodeError, ValueError):
                continue  # another thing under the same name, or a pattern that nothing meets
            return made, sender
        raise TypeError(
            f"no {command.__name__} can be made from its types: name it in `by_hand`, and let "
            f"`commands` give it"
        )

    def _try(self, info: Any) -> tuple[Any, str]:
        rng, values, sender = self._rng, {}, ""
        if self._followed and rng.random() < 0.7:
            pattern, sender = self._late(self._followed)
            shared = [field for field in info.fields if field.name in pattern]
            values = {field.name: pattern[field.name] for field in shared if rng.random() < 0.9}
        follows = bool(values) and rng.random() < 0.8
        try:
            return self._struct(info, "", values), sender if follows else ""
        except (TypeError, ValueError):  # by __post_init__
            return None, ""

    def _late(self, seen: Sequence[Any]) -> Any:
        """One of these, rather one of the last."""
        return seen[int(len(seen) * self._rng.random() ** 0.4)]

    def value(self, of: Any) -> Any:
        """A value of any type that a command or a setting may have."""
        return self._value(mi.type_info(of), "")

    def _value(self, info: Any, name: str) -> Any:
        rng = self._rng
        if isinstance(info, mi.Metadata):
            return self._value(info.type, name)
        if isinstance(info, mi.UnionType):
            return self._value(rng.choice(info.types), name)
        if isinstance(info, mi.LiteralType):
            return rng.choice(info.values)
        if isinstance(info, mi.StructType):
            return self._struct(info, name)
        if isinstance(info, mi.EnumType):
            return rng.choice(list(info.cls))
        if isinstance(info, mi.BoolType):
            return rng.random() < 0.5
        if isinstance(info, mi.NoneType):
            return None
        if isinstance(info, mi.IntType):
            return self._int(info, name)
        if isinstance(info, mi.FloatType):
            return float(self._int(mi.IntType(), name))
        if isinstance(info, mi.StrType):
            return self._text(info, name)
        if isinstance(info, mi.BytesType):
            return self._bytes(info, name)
        return self._many(info, name)

    def _many(self, info: Any, name: str) -> Any:
        if isinstance(info, mi.TupleType):
            return tuple(self._value(item, name) for item in info.item_types)
        least = info.min_length or 0
        count = self._rng.randint(least, max(least, ITEMS_MAX))
        if info.max_length is not None:
            count = min(count, info.max_length)
        if isinstance(info, mi.DictType):
            return {
                self._value(info.key_type, name): self._value(info.value_type, name)
                for _ in range(count)
            }
        if isinstance(info, (mi.VarTupleType, mi.ListType)):
            items = [self._value(info.item_type, name) for _ in range(count)]
            return tuple(items) if isinstance(info, mi.VarTupleType) else items
        raise TypeError(f"no values of the type {type(info).__name__} can be made: give `commands`")

    def _struct(self, info: Any, name: str, values: dict[str, Any] | None = None) -> Any:
        """One of this class: one that was seen, or one with these values."""
        rng = self._rng
        seen = self._seen.get((info.cls, ""))
        if values is None:
            if seen and rng.random() < 0.7:
                return self._late(seen)
            values = {}
        for field in info.fields:
            if field.name not in values and (field.required or rng.random() < 0.5):
                values[field.name] = self._value(field.type, field.name)
        return info.cls(**values)

    def _known(self, kind: type, name: str) -> Any:
        """What was seen under this name, or else anywhere; None: nothing."""
        for each, share in ((name.rstrip("s"), 0.8), ("", 0.3)):
            seen = self._seen.get((kind, each))
            if seen and self._rng.random() < share:
                return self._late(seen)
        return None

    def _int(self, info: mi.IntType, name: str) -> int:
        rng = self._rng
        low = info.ge if info.ge is not None else -1 if info.gt is None else info.gt + 1
        high = info.le if info.le is not None else 2**62 if info.lt is None else info.lt - 1
        known = self._known(int, name)
        if known is None:
            found = low + rng.randint(0, 4)
        else:
            found = known + rng.choice((0, 0, 0, 0, 1, 1, -1))
        return int(min(max(found, low), high))

    def _text(self, info: mi.StrType, name: str) -> str:
        known = self._known(str, name)
        text: str = self._rng.choice(WORDS) if known is None else known
        return text.ljust(info.min_length or 0, "x")[: info.max_length]

    def _bytes(self, info: mi.BytesType, name: str) -> bytes:
        known = self._known(bytes, name)
        data: bytes = self._rng.choice(WORDS).encode() if known is None else known
        return data.ljust(info.min_length or 0, b"x")[: info.max_length]
