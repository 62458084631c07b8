"""A figure with its name, meaning and values, before anybody has decided how to show it.

Names follow the Prometheus conventions: `raftkv_` first, the unit last, `_total` at the end of what
only grows. Sources give families; exposition.py makes text of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from raftkv.histogram import Histogram

__all__ = ["NO_LABELS", "Family", "Kind", "counter", "gauge", "gauge_by", "histogram", "outcomes"]

Kind = Literal["counter", "gauge", "histogram"]

NO_LABELS: Mapping[str, str] = {}

Value = float | Histogram


class Family(msgspec.Struct, frozen=True):
    """One figure of a node. `name` is without the prefix; `samples` are (labels, value).

    Every sample has the same label names. A family without samples is shown by its name alone: the
    figure exists, and this node has none at the moment.
    """

    name: str
    kind: Kind
    doc: str
    samples: tuple[tuple[Mapping[str, str], Value], ...] = ()


def counter(name: str, value: float, doc: str) -> Family:
    """What only grows while the node runs. `name` ends in _total."""
    return Family(name, "counter", doc, ((NO_LABELS, value),))


def gauge(name: str, value: float | None, doc: str) -> Family:
    """What is so at the moment; None: this node has no such figure now."""
    return Family(name, "gauge", doc, () if value is None else ((NO_LABELS, value),))


def gauge_by(name: str, label: str, values: Mapping[str, float], doc: str) -> Family:
    """A gauge for each of a bounded set: members, plugins, limits."""
    return Family(name, "gauge", doc, tuple(({label: key}, values[key]) for key in sorted(values)))


def outcomes(name: str, label: str, values: Mapping[str, float], doc: str) -> Family:
    """A counter for each of a fixed set."""
    return Family(name, "counter", doc, tuple(({label: key}, values[key]) for key in values))


def histogram(name: str, values: Histogram | Iterable[Histogram], doc: str) -> Family:
    """How often a value was how large; of several histograms the one that stands first."""
    found = values if isinstance(values, Histogram) else next(iter(values), None)
    return Family(name, "histogram", doc, () if found is None else ((NO_LABELS, found),))
