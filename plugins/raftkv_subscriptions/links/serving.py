"""The source's side of links, on any node of the region, replicants too.

Theory. A stream reads this node's tables, which hold nothing but what is committed, and says what
the target lacks. It needs no authority: what it says is checked by the target's log, and the target
keeps what it has. But a node that is cut off from its own cluster would look like a region in which
nothing happens; so a stream begins with a linearizable read, repeats it every ALIVE_S, and ends
when none succeeds: the target then tries the next node.

Rules of this file
1. Idle costs next to nothing: rows are listened to only while a stream is open, one linearizable
   read a second serves all streams, and what was applied wakes them at once.
2. Nothing is buffered: a frame is made when the one before has been taken. A target that reads
   slowly stops its stream, and what it lacks stays in the tables.
3. Under load frames are at least GATHER_S apart, so that many small entries share a line.
4. At most STREAMS_PER_REGION streams of one region, the oldest ends first: one that is half-open
   must not stand in the way of its successor.
5. A report counts only over an open link of its region, which it names by a secret that only the
   target of that link got, and of what this link carries only up to what it has sent, or an earlier
   report had said. Else any client could have messages deleted that the region never got. So it is
   only taken by the node that serves the link: no other one knows what it has sent.
6. What is reported is proposed only if it says something new: the same again costs no entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from raftkv.errors import RaftkvError, Stopped
from raftkv.plugin import Change, Host, View
from raftkv_subscriptions.commands import Report
from raftkv_subscriptions.mapping import as_vector, covers, number_in, vector_of_rows
from raftkv_subscriptions.options import options_of
from raftkv_subscriptions.refusals import OriginBehind
from raftkv_subscriptions.rows import ROWS_MAX, Region, Topic, Vector
from raftkv_subscriptions.scope import own_region

from .acknowledged import States
from .errors import NOT_SENT, LinkRefused
from .feed import TopicFeed, wanted_by
from .frames import (
    ALIVE_S,
    FRAME_BYTES,
    PROTOCOL,
    Alive,
    Bye,
    Hello,
    LinkReport,
    LinkRequest,
    encode,
)

__all__ = ["STREAMS_MAX", "STREAMS_PER_REGION", "Serving"]

#: Streams of one node: two for each region that a cluster may know.
STREAMS_MAX: Final = 32
STREAMS_PER_REGION: Final = 2
# A linearizable read of a node that is well takes one round trip within its region.
BARRIER_S: Final = 2.0
GATHER_S: Final = 0.003
# Heads in one alive frame, in letters of names, roughly.
HEADS_CHARS: Final = 128 * 1024
# Topics in one alive frame that are gone.
GONE_TOPICS: Final = 500
# Topics in one report.
REPORT_TOPICS: Final = ROWS_MAX // 2


class Serving:
    """The streams of one node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._streams: dict[_Stream, None] = {}
        self._unlisten: Callable[[], None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._stopped = False
        #: How many streams were begun, and how many frames and bytes they gave.
        self.begun = 0
        self.frames = 0
        self.bytes = 0

    def __len__(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    async def open(self, request: LinkRequest) -> AsyncGenerator[bytes, None]:
        """The lines for a target; close it with `aclose`. Raises LinkRefused, and NotApplied kinds
        when this node cannot say how things stand."""
        self._check(request.region)
        if request.protocol != PROTOCOL:
            raise LinkRefused(
                "protocol", f"this region speaks protocol {PROTOCOL}, not {request.protocol}"
            )
        await self._host.barrier("linearizable", timeout_s=BARRIER_S)
        self._check(request.region)
        return _Stream(self, self._host, request).lines()

    def _check(self, region: str) -> None:
        if self._stopped:
            raise Stopped("this node stops")
        if len(self._streams) >= STREAMS_MAX:
            raise LinkRefused(
                "overloaded", f"{STREAMS_MAX} links are served here: try another node"
            )
        check_region(self._host.view(), region)

    async def report(self, report: LinkReport) -> None:
        """Take what another region has, as far as it counts.

        Raises LinkRefused, with NOT_SENT when some of it does not count: it is to be reported again
        later. Raises `OriginBehind` for more messages of this region than there are, and what
        `Host.propose` does.
        """
        view = self._host.view()
        check_region(view, report.region)
        stream = self._stream_of(report)
        own = own_region(view)
        new: list[tuple[str, Vector]] = []
        beyond: list[str] = []
        for name, told in sorted(report.topics.items()):
            topic: Topic | None = view.table("topics").get(name)
            if topic is None:
                continue
            if number_in(told, own) > topic.seq:
                raise OriginBehind(own, number_in(told, own), topic.seq)
            vector = stream.counted_of(name, told, vector_of_rows(view, topic.id))
            if vector != as_vector(dict(told)):
                beyond.append(name)
                if not vector:
                    continue
            known: Vector | None = view.table("fetched").get((report.region, topic.id))
            if known is None or not covers(known, vector):
                new.append((name, vector))
        for start in range(0, len(new), REPORT_TOPICS):
            await self._host.propose(
                Report(report.region, tuple(new[start : start + REPORT_TOPICS]))
            )
        if beyond:
            raise LinkRefused(
                NOT_SENT,
                f"{report.region!r} claims more of {beyond[0]!r} than it was sent over this link: "
                "report what came, or again later",
            )

    def _stream_of(self, report: LinkReport) -> _Stream:
        for stream in self._streams:
            if stream.region == report.region and stream.link == report.link:
                return stream
        raise LinkRefused(
            "no_link",
            f"{report.region!r} has no such link here: a region reports over the link that it "
            f"fetches by, to the node that serves it (upgrade it, if it is of an older version)",
        )

    # --- streams ---

    def enter(self, stream: _Stream) -> None:
        """It has begun to be read."""
        self.begun += 1
        of_region = [each for each in self._streams if each.region == stream.region]
        for old in of_region[: max(0, len(of_region) - STREAMS_PER_REGION + 1)]:
            old.end("replaced", "a newer link of the same region was opened")
            # It may never be read again: it counts no longer.
            self._streams.pop(old)
        self._streams[stream] = None
        if self._unlisten is None:
            self._unlisten = self._host.listen(self._heard)
        if self._beating is None or self._beating.done():
            self._beating = self._host.spawn(self._beat(), "links alive")

    def leave(self, stream: _Stream) -> None:
        """It has ended."""
        self._streams.pop(stream, None)
        if not self._streams:
            self._rest()

    def _rest(self) -> None:
        unlisten, self._unlisten = self._unlisten, None
        if unlisten is not None:
            unlisten()
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()

    def _heard(self, index: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table in ("topics", "subs", "regions"):
                for stream in self._streams:
                    stream.heard(change)

    async def _beat(self) -> None:
        """One linearizable read a second, for all."""
        failed_since: float | None = None
        while True:
            runtime = self._host.runtime
            await runtime.sleep(ALIVE_S)
            try:
                await self._host.barrier("linearizable", timeout_s=BARRIER_S)
            except RaftkvError as error:
                failed_since = failed_since or runtime.monotonic()
                if runtime.monotonic() - failed_since >= ALIVE_S:
                    text = f"this node cannot reach its cluster: {type(error).__name__}"
                    for stream in list(self._streams):
                        stream.end("cut_off", text)
                continue
            failed_since = None
            for stream in list(self._streams):
                stream.alive()

    def restored(self) -> None:
        """A snapshot replaced the state: streams begin anew."""
        for stream in list(self._streams):
            stream.end("restored", "this node took over a snapshot")

    def stop(self) -> None:
        """The node stops."""
        self._stopped = True
        for stream in list(self._streams):
            stream.end("stopping", "this node stops")


def check_region(view: View, region: str) -> None:
    """Whether that region may have something from here. Raises LinkRefused."""
    own = own_region(view)
    if region == own:
        raise LinkRefused(
            "own_region", f"this region is called {own!r}, too: give each a name of its own"
        )
    row: Region | None = view.table("regions").get(region)
    if row is None:
        raise LinkRefused(
            "unknown_region",
            f"this region ({own}) does not know {region!r}: add it there, by a link or by hand",
        )
    if row.state == "excluded":
        raise LinkRefused("region_excluded", f"{region!r} is excluded in {own}: include it there")


class _Stream:
    """One target that is served. Made on the loop; `lines` runs wherever it is read."""

    def __init__(self, serving: Serving, host: Host, request: LinkRequest) -> None:
        self.region = request.region
        #: By which its target reports: who cannot read the link does not know it.
        self.link = host.runtime.token(8).hex()
        self._serving = serving
        self._host = host
        self._request = request
        self._own = own_region(host.view())
        self._wanted = wanted_by(request.region, request.want, self._own, frozenset(request.direct))
        self._paused = frozenset(request.paused)
        self._feeds: dict[str, TopicFeed] = {}
        self._states = self._fresh_states()
        self._saying_states = False
        self._news = asyncio.Event()
        #: Topics with something to say, and those whose head is to be told.
        self._dirty: dict[str, None] = {}
        self._grown: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._alive = False
        self._bye: Bye | None = None

    def counted_of(self, name: str, told: Vector, here: Vector) -> Vector:
        """What counts of a report for one topic, of which that much is `here`."""
        feed = self._feeds.get(name)
        return () if feed is None else feed.counted_of(told, here)

    # --- what happens here ---

    def heard(self, change: Change) -> None:
        """A row was changed."""
        if change.table == "topics":
            self._dirty[change.key] = None
        elif change.table == "subs":
            if not self._saying_states:
                return
            self._states.touch(change.key, self._host.runtime.monotonic())
        elif change.key == self.region:
            row: Region | None = self._host.view().table("regions").get(self.region)
            if row is None or row.state != "active":
                self.end("excluded", f"{self.region!r} was excluded here")
            return
        self._news.set()

    def alive(self) -> None:
        """A linearizable read has succeeded."""
        if own_region(self._host.view()) != self._own:
            self.end("renamed", "this region was given another name")
        self._alive = True
        self._news.set()

    def end(self, reason: str, text: str) -> None:
        self._bye = self._bye or Bye(reason, text)
        self._news.set()

    def _fresh_states(self) -> States:
        return States(options_of(self._host).state_ms / 1000)

    def _ends(self) -> bool:
        return self._bye is not None

    # --- what is said ---

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Registers when it is read first, and leaves when it is closed."""
        self._serving.enter(self)
        try:
            view = self._host.view()
            yield self._line(encode(Hello(self._own, self._host.name, link=self.link)))
            self._alive = True
            for name, topic in view.table("topics").scan():
                if topic.replicated:
                    self._dirty[name] = None
            full = False
            while not self._ends():
                began = self._host.runtime.monotonic()
                self._news.clear()
                full = False
                for name in list(self._dirty):
                    for line in self._topic_lines(name):
                        full = full or len(line) > FRAME_BYTES
                        yield self._line(line)
                    self._were_taken(name)
                    if self._states.next_due() == 0.0:
                        for line in self._state_lines():
                            yield self._line(line)
                    if self._ends():
                        break
                for line in self._state_lines():
                    yield self._line(line)
                if self._alive:
                    for line in self._alive_lines():
                        yield self._line(line)
                await self._rest(began, full)
            assert self._bye is not None
            yield self._line(encode(self._bye))
        finally:
            self._serving.leave(self)

    def _line(self, line: bytes) -> bytes:
        self._serving.frames += 1
        self._serving.bytes += len(line)
        return line

    async def _rest(self, began: float, full: bool) -> None:
        """Until there is something to say; and a moment, if that was just done."""
        runtime = self._host.runtime
        if not self._ends() and not self._dirty and not self._alive:
            due = self._states.next_due()
            timer = None
            if due is not None:
                delay_s = max(0.0, due - runtime.monotonic())
                timer = runtime.call_later(delay_s, self._news.set)
            try:
                await self._news.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        left_s = began + GATHER_S - runtime.monotonic()
        if left_s > 0 and not full:
            await runtime.sleep(left_s)
        else:
            # Reading tables is work: others have their turn.
            await asyncio.sleep(0)

    def _were_taken(self, name: str) -> None:
        feed = self._feeds.get(name)
        if feed is not None:
            feed.was_taken()

    def _topic_lines(self, name: str) -> list[bytes]:
        """One frame of messages at most; the topic stays dirty while there is more."""
        view = self._host.view()
        self._dirty.pop(name, None)
        lines: list[bytes] = []
        feed = self._feed(view, name, lines)
        if feed is None:
            return lines
        topic: Topic = view.table("topics")[name]
        frame, more = feed.messages(view, topic)
        if frame is not None:
            lines.append(encode(frame))
            self._grown[name] = None
        again, owes = (None, False) if more else feed.again(view)
        if again is not None:
            lines.append(encode(again))
        if more or owes:
            self._dirty[name] = None
        lines.extend(encode(marker) for marker in feed.markers(view))
        return lines

    def _feed(self, view: View, name: str, lines: list[bytes]) -> TopicFeed | None:
        """The topic's feed, announced in `lines` if it is new; None: it is not replicated."""
        topic: Topic | None = view.table("topics").get(name)
        feed = self._feeds.get(name)
        if topic is None or not topic.replicated:
            if self._feeds.pop(name, None) is not None:
                self._gone[name] = None
            return None
        if feed is None or feed.id != topic.id:
            asked = self._request.topics.get(name, ()) if feed is None else ()
            feed = self._feeds[name] = TopicFeed(
                view,
                name,
                topic,
                asked,
                self._wanted,
                own=self._own,
                target=self.region,
                markers=self._request.want == "own",
                paused=name in self._paused,
                counted=view.table("fetched").get((self.region, topic.id), ()),
            )
            self._gone.pop(name, None)
            lines.append(encode(feed.head))
            if self._saying_states:
                self._states.walk(topic.id)
        return feed

    def _state_lines(self) -> list[bytes]:
        view = self._host.view()
        if not self._speaks_states(view):
            return []
        lines: list[bytes] = []
        for topic, frames in self._states.take(view, self._host.runtime.monotonic()):
            if self._feed(view, topic, lines) is not None:
                lines.extend(encode(frame) for frame in frames)
        return lines

    def _speaks_states(self, view: View) -> bool:
        """Vector mode; when it begins, everything is said, and when it ends nothing is left."""
        speaks = bool(view.settings["enabled"]) and view.settings["mode"] == "vector"
        if self._saying_states and not speaks:
            self._states = self._fresh_states()
        if speaks and not self._saying_states:
            for feed in self._feeds.values():
                self._states.walk(feed.id)
        self._saying_states = speaks
        return speaks

    def _alive_lines(self) -> list[bytes]:
        self._alive = False
        view = self._host.view()
        mode = str(view.settings["mode"])
        lines: list[bytes] = []
        heads: dict[str, Vector] = {}
        chars = 0
        grown, self._grown = self._grown, {}
        for name in grown:
            feed = self._feeds.get(name)
            if feed is None:
                continue
            heads[name] = vector_of_rows(view, feed.id)
            chars += len(name) + sum(len(origin) + 20 for origin, _ in heads[name])
            if chars > HEADS_CHARS:
                lines.append(encode(Alive(self._host.now_ms(), mode, heads)))
                heads, chars = {}, 0
        gone, self._gone = tuple(self._gone), {}
        for start in range(0, len(gone), GONE_TOPICS):
            some = gone[start : start + GONE_TOPICS]
            lines.append(encode(Alive(self._host.now_ms(), mode, gone=some)))
        lines.append(encode(Alive(self._host.now_ms(), mode, heads)))
        return lines
