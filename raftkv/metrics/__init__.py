"""What a node tells of itself in numbers: `node.metrics`, `/metrics` at its door.

Rules of this package
1. Reading is done when somebody asks, counting where things happen: plain integers on the objects
   that do the work, histograms (raftkv/histogram.py) only where something happens once per entry,
   write or message. Nothing here runs between two scrapes.
2. Time comes from the runtime; there is no clock, no timer and no chance here, so a node in the
   simulated world counts the same in every run of a seed.
3. A scrape changes nothing and never fails: see plugins.py for what others bring.
4. Labels only where their values are bounded: members, plugins, tables, limits, fixed sets.
5. docs/metrics.md lists every figure; a test holds it against what nodes show.

`families` gives plain data and needs nothing else; prometheus_client is imported by `registry` and
`render` (exposition.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from raftkv.parts import CorePart, ReplicantPart
from raftkv.plugin import Metric
from raftkv.runtime import OsRuntime

from . import calls, consensus, replicating, state
from .family import Family
from .keyspace import keyspace
from .plugins import Sources

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

    from raftkv.node import Node

__all__ = ["Family", "Metrics"]


class Metrics:
    """The figures of one node, which must have been started. All methods belong to its loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sources = Sources()
        self._registry: CollectorRegistry | None = None
        self._began_s = node.runtime.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether the node does nothing any more."""
        node = self._node
        return not node._running and (node.withdrawn is None or node._fault.done())

    def add(self, name: str, source: Callable[[], Sequence[Metric]]) -> Callable[[], None]:
        """Show also what `source()` gives at each scrape, as raftkv_<name>_<metric>.

        For what stands beside a node, as its door does. A plugin has `Service.metrics`, which is
        asked anyway. Returns a function that ends it.
        """
        return self._sources.add(name, source)

    def families(self) -> Iterator[Family]:
        """Everything this node has to tell now, as plain data. No name comes twice."""
        names = set()
        for family in self._own():
            names.add(family.name)
            yield family
        # Nothing of a state that is corrupt.
        services = {} if self._node.withdrawn is not None else self._node.hosting.services
        plugins = {name: service.metrics for name, service in services.items()}
        yield from self._sources.families(plugins, names)

    def _own(self) -> Iterator[Family]:
        node = self._node
        yield from state.identity(node, node.runtime.monotonic() - self._began_s)
        yield from calls.proposals(node.outbox)
        yield from calls.clients(node.foreign)
        yield from calls.reads(node.reader)
        yield from calls.streams(node._peering.hub)
        yield from calls.handshakes(node._peering)
        yield from state.applying(node)
        part = node._part
        if isinstance(part, CorePart):
            yield from consensus.core(part)
        elif isinstance(part, ReplicantPart):
            yield from replicating.replicant(part)
        yield from state.state(node)
        if node.withdrawn is None:
            yield from keyspace(node.machine.view("kv"))

    @property
    def registry(self) -> CollectorRegistry:
        """A prometheus_client registry of this node alone, to push it or to add to it.

        The figures of the process are in it too, for one node of the process.
        """
        if self._registry is None:
            from .exposition import registry_of

            real = isinstance(self._node.runtime, OsRuntime)
            self._registry = registry_of(self, with_process=real)
        return self._registry

    def prepare(self) -> None:
        """Import now what `render` needs: the first scrape then takes no longer than others."""
        _ = self.registry

    def render(self, accept: str = "") -> tuple[str, bytes]:
        """(content type, body) of a scrape, in the form that an Accept header asks for.

        Prometheus' text format, or OpenMetrics. Takes about as long as a tick with a large batch:
        some milliseconds of the node's loop.
        """
        from .exposition import encode

        return encode(self.registry, accept)
