"""What a store promises when one operation comes after another: the sequential models.

A model is a pure function `step(state, operation)`: the state after the operation, or `REFUSED` if
the operation cannot have answered what it did in that state. An operation of unknown outcome has no
answer, and is never refused for one. States are immutable and hashable.

Three further questions let the search (linearizability.py) cut branches. They must be answered with
the safe value when in doubt; an answer that is wrong makes the search wrong:

    reads(operation)     with this answer it changes no state, in whatever state it comes: a get, a
                         compare-and-set that failed. Safe: False. Never True without an answer.
    demands(operation)   the only state in which it can come. Safe: ANY.
    makes(operation)     the only state it can lead to if it changes the state; NOTHING if it
                         changes none. Safe: ANY, which turns looking ahead off for the history.

    register     read () -> value; write value
    CAS register the same, and cas (expected, new) -> whether it matched
    key-value    get () -> value or None; put value; append suffix; delete -> whether the key
                 existed (None: it did not say); cas (expected, new) -> whether it matched, where
                 None stands for a key that does not exist
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Final, Protocol

from raftkv.testing.histories import Operation

__all__ = [
    "ANY",
    "NOTHING",
    "REFUSED",
    "CasRegister",
    "KeyValueStore",
    "Model",
    "Product",
    "Register",
    "State",
]

State = Hashable


class _Word:
    """A value that equals itself alone and says what it is."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __repr__(self) -> str:
        return self._word


REFUSED: Final = _Word("refused")
ANY: Final = _Word("any state")
NOTHING: Final = _Word("no state")


class Model(Protocol):
    """See the module's text. An `op` that the model does not know is a ValueError."""

    @property
    def initial(self) -> State: ...

    def step(self, state: Any, operation: Operation) -> State: ...

    def reads(self, operation: Operation) -> bool: ...

    def demands(self, operation: Operation) -> State: ...

    def makes(self, operation: Operation) -> State: ...


class KeyValueStore:
    """One key of a key-value store. `initial` None: the key does not exist at first.

    `append` to a key that does not exist puts its suffix.
    """

    kinds: ClassVar[Mapping[str, str]] = {
        "get": "get",
        "put": "put",
        "append": "append",
        "delete": "delete",
        "cas": "cas",
    }

    def __init__(self, initial: State = None) -> None:
        self.initial = initial

    def step(self, state: Any, operation: Operation) -> State:
        kind = self.kinds.get(operation.op)
        answered = operation.outcome == "ok"
        if kind == "get":
            return REFUSED if answered and operation.output != state else state
        if kind == "put":
            return operation.input
        if kind == "cas":
            expected, new = _pair(operation)
            matches = bool(state == expected)
            if answered and operation.output != matches:
                return REFUSED
            return new if matches else state
        if kind == "delete":
            existed = state is not None
            return REFUSED if answered and operation.output not in (None, existed) else None
        if kind == "append":
            longer: State = operation.input if state is None else state + operation.input
            return longer
        raise self._unknown(operation)

    def reads(self, operation: Operation) -> bool:
        if self.kinds.get(operation.op) == "get":
            return True
        return operation.outcome == "ok" and operation.output is False

    def demands(self, operation: Operation) -> State:
        kind = self.kinds.get(operation.op)
        if kind is None:
            raise self._unknown(operation)
        if operation.outcome != "ok":
            return ANY
        if kind == "get":
            return operation.output
        if kind == "cas" and operation.output is True:
            return _pair(operation)[0]
        return None if kind == "delete" and operation.output is False else ANY

    def makes(self, operation: Operation) -> State:
        if self.reads(operation):
            return NOTHING
        kind = self.kinds.get(operation.op)
        if kind == "put":
            return operation.input
        if kind == "cas":
            return _pair(operation)[1]
        return None if kind == "delete" else ANY

    def _unknown(self, operation: Operation) -> ValueError:
        return ValueError(
            f"{type(self).__name__} knows no operation {operation.op!r}: "
            f"it knows {', '.join(self.kinds)}"
        )


class CasRegister(KeyValueStore):
    """One register with read, write and cas. `initial` is its value at first."""

    kinds: ClassVar[Mapping[str, str]] = {"read": "get", "write": "put", "cas": "cas"}


class Register(KeyValueStore):
    """One register with read and write. `initial` is its value at first."""

    kinds: ClassVar[Mapping[str, str]] = {"read": "get", "write": "put"}


class Product:
    """Many objects of one model as a single object: its state holds the state of every key.

    Checking a history against it gives what checking each key apart gives (`by_key`), only more
    slowly; it is here so that a test can say so.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.initial: State = frozenset()

    def step(self, state: Any, operation: Operation) -> State:
        old = dict(state).get(operation.key, self._model.initial)
        new = self._model.step(old, operation)
        if new is REFUSED or new == old:
            return new if new is REFUSED else state
        states: frozenset[tuple[State, State]] = state
        return (states - {(operation.key, old)}) | {(operation.key, new)}

    def reads(self, operation: Operation) -> bool:
        return self._model.reads(operation)

    def demands(self, operation: Operation) -> State:
        return ANY

    def makes(self, operation: Operation) -> State:
        return ANY


def _pair(operation: Operation) -> tuple[State, State]:
    pair = operation.input
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"the input of {operation} is not (expected, new)")
    return pair
