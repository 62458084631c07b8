"""The leader's links: naming this region, making the others known, one `Pull` for each.

Rules of this file
1. The options say how regions are reached, the log which there are. A region of the options that
   the log does not know is put into it; one that is excluded is left alone, and not fetched from.
2. Only the leader fetches. Whoever stops leading hangs up at once; what it still proposes does no
   harm.
3. Nothing here is polled: it looks again when the rows of regions have changed.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, Refused, Stopped
from raftkv.plugin import AGAIN, Host
from raftkv_subscriptions.commands import PutRegion, SetRegion
from raftkv_subscriptions.mapping import number_in, vector_of_rows
from raftkv_subscriptions.options import LinkOptions, options_of
from raftkv_subscriptions.rows import Region, Topic
from raftkv_subscriptions.scope import meta_of, own_region
from raftkv_subscriptions.status import LAG_ROWS, LinkStatus

from .pulling import Pull
from .transport import DoorTransport, TransportFactory

__all__ = ["Links"]

RETRY_S: Final = 0.25


class Links:
    """Of one node; at work between `start` and `stop`."""

    def __init__(self, host: Host, factory: TransportFactory | None) -> None:
        self._host = host
        self._factory: TransportFactory = factory or _door
        self._running: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._seen: object = None
        #: The links that are at work.
        self.pulls: dict[str, Pull] = {}
        #: Why this region could not be named, or another one not be added.
        self.errors: dict[str, str] = {}

    def start(self) -> None:
        """This node leads."""
        if self._running is None:
            self._running = self._host.spawn(self._run(), "links")

    def stop(self) -> None:
        """It does no longer."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        for name in list(self._tasks):
            self._hang_up(name)
        self._seen = None

    def look(self) -> None:
        """Something was applied."""
        if self._running is not None:
            seen = self._rows()
            if seen != self._seen:
                self._seen = seen
                self._wake.set()

    def _rows(self) -> tuple[str, tuple[tuple[str, Region], ...]]:
        view = self._host.view()
        return meta_of(view).region, tuple(view.table("regions").scan())

    # --- at work ---

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._seen = self._rows()
            try:
                again = await self._introduce()
            except Stopped:
                return
            self._adjust()
            if again:
                await self._host.runtime.sleep(RETRY_S)
            else:
                await self._wake.wait()

    async def _introduce(self) -> bool:
        """Name this region, and the others; whether that has to be tried again."""
        options = options_of(self._host)
        view = self._host.view()
        wanted: list[tuple[str, msgspec.Struct]] = []
        if options.region and options.region != meta_of(view).region:
            wanted.append((options.region, SetRegion(options.region)))
        wanted += [
            (name, PutRegion(name, if_missing=True))
            for name in sorted(options.links)
            if name not in view.table("regions")
        ]
        self.errors = {}
        for name, command in wanted:
            try:
                await self._host.propose(command)
            except Stopped:
                raise
            except (NotApplied, OutcomeUnknown, *AGAIN) as error:
                self._host.log.debug("links wait for a majority: %s", type(error).__name__)
                return True
            except Refused as refusal:
                # Told in the status; tried again when the rows of regions change.
                self.errors[name] = str(refusal)
                self._host.log.warning("the region %r: %s", name, refusal)
        return False

    def _adjust(self) -> None:
        """A `Pull` for each active region with options."""
        view = self._host.view()
        wanted = {
            name: link
            for name, link in sorted(options_of(self._host).links.items())
            if _is_active(view.table("regions").get(name))
        }
        for name in list(self._tasks):
            if name not in wanted or self._tasks[name].done():
                self._hang_up(name)
        for name, link in wanted.items():
            if name not in self._tasks:
                transport = self._factory(self._host, name, link)
                pull = self.pulls[name] = Pull(self._host, name, link, transport, self._moved)
                self._tasks[name] = self._host.spawn(pull.run(), "link")

    def _hang_up(self, name: str) -> None:
        self.pulls.pop(name).end()
        self._tasks.pop(name).cancel()

    def _moved(self, topic: str) -> None:
        for pull in self.pulls.values():
            pull.reporter.moved(topic)

    # --- looking ---

    def all_up(self) -> bool:
        """Whether snapshots can be built: every active region is fetched from, and well."""
        rows = self._host.view().table("regions").scan()
        active = [name for name, row in rows if row.state == "active"]
        return bool(active) and all(self._is_well(name) for name in active)

    def _is_well(self, name: str) -> bool:
        pull = self.pulls.get(name)
        return (
            pull is not None
            and pull.link.want == "own"
            and pull.source_mode == "snapshot"
            and pull.is_up()
        )

    def statuses(self) -> tuple[LinkStatus, ...]:
        """Of all regions that the options name."""
        found: list[LinkStatus] = []
        for name, link in sorted(options_of(self._host).links.items()):
            pull = self.pulls.get(name)
            if pull is None:
                error = self.errors.get(name, "")
                found.append(LinkStatus(name, "stopped", want=link.want, last_error=error))
            else:
                found.append(self._status(pull))
        return tuple(found)

    def _status(self, pull: Pull) -> LinkStatus:
        contact = pull.last_contact
        if contact is not None:
            contact = self._host.runtime.monotonic() - contact
        own = options_of(self._host).region
        return LinkStatus(
            region=pull.region,
            state=pull.state,
            endpoint=pull.endpoint,
            want=pull.link.want,
            last_contact_ms=None if contact is None else int(contact * 1000),
            last_error=self.errors.get(own, "") or pull.last_error,
            opened=pull.opened,
            bytes=pull.bytes,
            bytes_in_flight=pull.bytes_in_flight,
            delivered=pull.delivered,
            merged=pull.merged,
            reports=pull.reporter.sent,
            paused=pull.paused,
            lag=self._lag(pull),
        )

    def _lag(self, pull: Pull) -> tuple[tuple[str, str, int], ...]:
        view = self._host.view()
        own = own_region(view)
        found: list[tuple[str, str, int]] = []
        for name, head in sorted(pull.heads.items()):
            topic: Topic | None = view.table("topics").get(name)
            here = () if topic is None else vector_of_rows(view, topic.id)
            for origin, seq in head:
                missing = seq - number_in(here, origin)
                if missing > 0 and origin != own:
                    found.append((name, origin, missing))
            if len(found) >= LAG_ROWS:
                break
        return tuple(found)


def _is_active(row: Region | None) -> bool:
    return row is not None and row.state == "active"


def _door(host: Host, region: str, link: LinkOptions) -> DoorTransport:
    return DoorTransport(link)
