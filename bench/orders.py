"""In which order callers choose among many keys: that decides what of them stays in a cache.

- `uniform`: each key as likely as any other. Nothing is ever warm; no program does this.
- `zipf`: a few keys are asked for most, as the well-known benchmark YCSB has it by default: the
  key of rank r is chosen in proportion to 1 / r^0.99, and neighbours in rank are not neighbours in
  the keyspace. Of a million keys a thousand then get half of the calls.
- `sequential`: one key after the other in key order, all callers together, from a random one on.

The ranks are drawn as in Gray et al., "Quickly generating billion-record synthetic databases"
(SIGMOD 1994): one power, no table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import count
from typing import Final, Literal, get_args

__all__ = ["ORDERS", "Order", "chooser", "zeta"]

Order = Literal["uniform", "zipf", "sequential"]
ORDERS: Final[tuple[str, ...]] = get_args(Order)

THETA: Final = 0.99
# Terms that are added one by one; the rest is an integral, right to ten digits.
_ZETA_TERMS: Final = 1000
# Scatters the ranks: the golden ratio's share of 2^64, odd.
_SCATTER: Final = 0x9E3779B97F4A7C15


def chooser(order: Order, keys: int) -> Callable[[], Callable[[], int]]:
    """For each caller what gives the number of its next key, at least 0 and below `keys`."""
    if order == "zipf":
        return lambda: _zipf(keys)
    if order == "sequential":
        numbers = count(random.randrange(keys))
        return lambda: lambda: next(numbers) % keys
    return lambda: _uniform(keys)


def _uniform(keys: int) -> Callable[[], int]:
    draw = random.Random().random
    return lambda: int(draw() * keys)


def _zipf(keys: int) -> Callable[[], int]:
    draw = random.Random().random
    step = _coprime(keys)
    total = zeta(keys)
    second = 1 + 0.5**THETA
    power = 1 / (1 - THETA)
    eta = 1.0 if keys < 3 else (1 - (2 / keys) ** (1 - THETA)) / (1 - second / total)

    def number() -> int:
        chance = draw()
        point = chance * total
        if point < 1:
            rank = 0
        elif point < second:
            rank = 1 % keys
        else:
            rank = min(keys - 1, int(keys * (eta * chance - eta + 1) ** power))
        return rank * step % keys

    return number


def zeta(keys: int) -> float:
    """The sum of 1 / r^THETA for r from 1 to `keys`."""
    exact = min(keys, _ZETA_TERMS)
    found = math.fsum(r**-THETA for r in range(1, exact + 1))
    if keys > exact:
        # Euler and Maclaurin, to the first derivative.
        found += (keys ** (1 - THETA) - exact ** (1 - THETA)) / (1 - THETA)
        found += (keys**-THETA - exact**-THETA) / 2
        found += THETA * (exact ** (-THETA - 1) - keys ** (-THETA - 1)) / 12
    return found


def _coprime(keys: int) -> int:
    """A step that reaches every key before it comes back to the first."""
    step = _SCATTER % keys or 1
    while math.gcd(step, keys) != 1:
        step += 1
    return step
