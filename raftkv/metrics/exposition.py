"""From families to Prometheus' text: the only module that imports prometheus_client.

It is imported at the first scrape, or by `Metrics.prepare`: it takes some 50 ms, and a program that
never shows its figures does not pay for it.

The figures of the process (memory, processor time, open files, the garbage collector) are the
process's, and several nodes may share one. Only one of them shows these: the first that is asked
holds them until it is stopped, so that a sum over all nodes counts nothing twice. A node in the
simulated world never does: they come from the real system.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from raftkv.histogram import Histogram

from .family import Family

if TYPE_CHECKING:
    from . import Metrics

__all__ = ["encode", "registry_of"]

# Chosen here and not by prometheus_client's own reading of the header: that comes from the network.
TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _NodeCollector(Collector):
    """What a registry asks at every scrape."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Nothing is said in advance: what a node has depends on its role and its plugins."""
        return []

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            yield _shown(family)


class _ProcessFigures(Collector):
    """The figures of this process, for the node that holds them."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)
        GCCollector(registry=own)
        self._own = own
        self._holder: weakref.ref[Metrics] | None = None

    def holds(self, metrics: Metrics) -> bool:
        holder = None if self._holder is None else self._holder()
        if holder is None or holder.stopped:
            self._holder = weakref.ref(metrics)
            return True
        return holder is metrics

    def collect(self) -> Iterable[Metric]:
        return self._own.collect()


_process: _ProcessFigures | None = None


class _HeldProcess(Collector):
    """The figures of the process in one node's registry, while it holds them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = weakref.ref(metrics)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        global _process
        metrics = self._metrics()
        if metrics is None or metrics.stopped:
            return []
        if _process is None:
            _process = _ProcessFigures()
        return _process.collect() if _process.holds(metrics) else []


def registry_of(metrics: Metrics, *, with_process: bool) -> CollectorRegistry:
    """A registry of this node alone."""
    registry = CollectorRegistry()
    registry.register(_NodeCollector(metrics.families))
    if with_process:
        registry.register(_HeldProcess(metrics))
    return registry


def encode(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """(content type, body) in the form that the Accept header asks for."""
    if "application/openmetrics-text" in accept:
        # prometheus_client gives this function no types.
        body: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return OPENMETRICS_TYPE, body
    return TEXT_TYPE, generate_latest(registry)


def _shown(family: Family) -> Metric:
    name = f"raftkv_{family.name}"
    labels = list(family.samples[0][0]) if family.samples else []
    shown: Metric
    if family.kind == "histogram":
        shown = histogram = HistogramMetricFamily(name, family.doc, labels=labels)
        for values, value in family.samples:
            assert isinstance(value, Histogram)
            histogram.add_metric([values[label] for label in labels], _buckets(value), value.total)
        return shown
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    shown = plain = kind(name, family.doc, labels=labels)
    for values, value in family.samples:
        assert not isinstance(value, Histogram)
        plain.add_metric([values[label] for label in labels], value)
    return shown


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulated, as Prometheus wants them. The disk's thread may be counting meanwhile."""
    counts, total, found = tuple(histogram.counts), 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), counts, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
    return found
