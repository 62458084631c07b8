"""Saying to a source what this region has of its topics, so that its retention need not wait."""

from __future__ import annotations

import asyncio
from typing import Final

from raftkv.plugin import Host
from raftkv_subscriptions.mapping import vector_of_rows
from raftkv_subscriptions.options import options_of
from raftkv_subscriptions.rows import Topic, Vector
from raftkv_subscriptions.scope import own_region

from .errors import NOT_SENT, LinkError, LinkRefused
from .frames import LinkReport
from .transport import LinkTransport

__all__ = ["Reporter"]

# Topics in one report, some 100 KiB with long names.
TOPICS_MAX: Final = 200


class Reporter:
    """Of one link. What is not said is said later: a report only ever says more."""

    def __init__(self, host: Host, region: str, transport: LinkTransport) -> None:
        self._host = host
        self._region = region
        self._transport = transport
        self._topics: dict[str, None] = {}
        self._news = asyncio.Event()
        # Of the link, from its first frame.
        self._link = ""
        self._greeted = asyncio.Event()
        self.sent = 0
        #: Why the last report was not taken; "": it was.
        self.error = ""

    def begin(self) -> None:
        """A link is opened; `open` follows with its first frame."""
        self._greeted.clear()

    def open(self, link: str) -> None:
        """The link has begun, and `link` is what a report names it by."""
        self._link = link
        self._greeted.set()

    def moved(self, topic: str) -> None:
        """Messages came here, over whichever link."""
        self._topics[topic] = None
        self._news.set()

    async def run(self) -> None:
        """While the link is there. Begins with everything: who led before may have said less."""
        self.error = ""
        topic: Topic
        for name, topic in self._host.view().table("topics").scan():
            if topic.replicated:
                self._topics[name] = None
        self._news.set()
        every_s = options_of(self._host).report_s
        await self._greeted.wait()
        while True:
            await self._news.wait()
            await self._host.runtime.sleep(every_s)
            self._news.clear()
            # What moves from now on is for the next report.
            names, self._topics = list(self._topics), {}
            for start in range(0, len(names), TOPICS_MAX):
                some = names[start : start + TOPICS_MAX]
                if not await self._say(some):
                    self._topics.update(dict.fromkeys(some))
                    self._news.set()

    async def _say(self, names: list[str]) -> bool:
        view = self._host.view()
        topics: dict[str, Vector] = {}
        for name in names:
            topic: Topic | None = view.table("topics").get(name)
            if topic is not None and topic.replicated:
                topics[name] = vector_of_rows(view, topic.id)
        if not topics:
            return True
        try:
            await self._transport.report(LinkReport(own_region(view), topics, self._link))
        except LinkError as error:
            if isinstance(error, LinkRefused) and error.reason == NOT_SENT:
                # It came over another link or by another node, and this link has yet to send it.
                self.error = ""
            else:
                self.error = f"{self._region} was not told what is here: {error}"[:500]
            return False
        self.error = ""
        self.sent += 1
        return True
