"""Figures that others bring: the plugins' services, the door.

Whoever brings figures gives `Metric`s (raftkv/plugin.py). They are gathered by name, checked, and
bounded, for a scrape must not fail because of one of them: a source that raises is counted and
logged once until it works again, a figure with an impossible name or labels is left out and
counted, and so is what a source gives beyond SAMPLES_MAX.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from raftkv.plugin import Metric

from .family import Family, counter

__all__ = ["SAMPLES_MAX", "Sources"]

log = logging.getLogger("raftkv.metrics")

#: Samples of one source. A figure per client or per key would make any number of them, and with
#: them time on the loop of the node and memory wherever they are collected.
SAMPLES_MAX: Final = 1_000

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]")

Source = Callable[[], Sequence[Metric]]


class Sources:
    """What others bring, by the word that stands before their names."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._failing: set[str] = set()
        self.faults = 0
        self.dropped = 0

    def add(self, name: str, source: Source) -> Callable[[], None]:
        """Ask `source` at every scrape; its figures are called raftkv_<name>_... Ends by a call."""
        self._sources[name] = source

        def remove() -> None:
            if self._sources.get(name) is source:
                del self._sources[name]

        return remove

    def families(self, also: Mapping[str, Source], taken: set[str]) -> Iterator[Family]:
        """Of all sources, and of `also`, but for names in `taken`; then what went wrong."""
        for name, source in sorted({**also, **self._sources}.items()):
            for family in self._of(name, source):
                if family.name in taken:
                    self.dropped += len(family.samples)
                else:
                    taken.add(family.name)
                    yield family
        yield counter("metrics_faults_total", self.faults, "Times a source of figures failed.")
        yield counter(
            "metrics_dropped_total", self.dropped, "Samples left out: ill-formed, or too many."
        )

    def _of(self, name: str, source: Source) -> list[Family]:
        try:
            metrics = list(source())
            found = self._gathered(_NOT_IN_NAMES.sub("_", name.lower()), metrics)
        except Exception:
            self.faults += 1
            if name not in self._failing:
                self._failing.add(name)
                log.exception("the figures of %s cannot be had", name)
            return []
        self._failing.discard(name)
        return found

    def _gathered(self, prefix: str, metrics: list[Metric]) -> list[Family]:
        kept = metrics[:SAMPLES_MAX]
        self.dropped += len(metrics) - len(kept)
        first: dict[str, Metric] = {}
        samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for metric in kept:
            name = _name_of(metric)
            leader = first.setdefault(name, metric)
            labels = tuple(sorted((key, str(value)) for key, value in metric.labels.items()))
            known = samples.setdefault(name, {})
            if _usable(metric, leader) and labels not in known:
                known[labels] = metric.value
            else:
                self.dropped += 1
        return [
            Family(
                f"{prefix}_{name}",
                first[name].kind,
                first[name].doc,
                tuple((dict(labels), value) for labels, value in known.items()),
            )
            for name, known in samples.items()
            if known
        ]


def _usable(metric: Metric, leader: Metric) -> bool:
    """Whether a figure can be shown, beside the first of its name. Nobody has checked its types."""
    value: object = metric.value
    return (
        _NAME.fullmatch(metric.name) is not None
        and all(_NAME.fullmatch(label) for label in metric.labels)
        and isinstance(value, int | float)
        and metric.kind == leader.kind
        and metric.kind in ("counter", "gauge")
        and metric.labels.keys() == leader.labels.keys()
    )


def _name_of(metric: Metric) -> str:
    """A counter is called so: Prometheus adds the ending where it is missing."""
    name = metric.name
    return f"{name.removesuffix('_total')}_total" if metric.kind == "counter" else name
