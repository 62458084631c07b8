"""The target's side of one link, on the leader: it fetches from one region, again and again.

Theory. What this region has stands in its tables; a link says so when it opens a stream, and then
proposes what comes. Whatever goes wrong, at either end, the answer is one: hang up, and open anew
from the tables. Nothing that was taken and not proposed is missed by anybody, for the source begins
behind what is in the log. Two leaders that overlap do no harm: the log skips doubles.

Rules of this file
1. Order. Within a topic, messages and markers are proposed one command after the other, so they
   are applied as they came; what has gathered meanwhile goes into the next one. Acknowledgements
   of a subscription have a lane of their own (lanes.py).
2. A proposal without a verdict is repeated: every command of a link may be applied twice. A verdict
   is never repeated.
3. Memory: what waits is bounded by `link_bytes_max`; then the stream is not read, and its source
   stops by itself.
4. A topic that finds no room here (`BacklogFull`), or whose messages are refused, is *paused*: what
   else comes of it is dropped, and soon the stream is opened again without its messages, so that
   it holds up nobody; with them after a while. Others that find no room meanwhile go with it.
5. SILENCE_S without a frame: the connection is given up. While this side does not read, it does not
   judge the silence.
6. No text of an error names more than regions, topics and addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, Refused, Stopped, TooLarge
from raftkv.plugin import Host, View
from raftkv_subscriptions.commands import Delivered, Merged
from raftkv_subscriptions.mapping import vector_of_rows
from raftkv_subscriptions.options import LinkOptions, options_of
from raftkv_subscriptions.refusals import (
    OriginBehind,
    OutOfOrder,
    RegionExcluded,
    UnknownRegion,
    UnknownTopic,
)
from raftkv_subscriptions.rows import Advance, Answer, Request, Sub, Topic, Vector
from raftkv_subscriptions.scope import own_region

from .arrivals import (
    Early,
    Item,
    declaration,
    gathered_messages,
    gathered_state,
    marker_command,
    merge_of,
    news_of,
    takes_states,
)
from .checks import check_name, check_own, check_source
from .errors import LinkBroken, LinkError, LinkRefused
from .frames import (
    SILENCE_S,
    Alive,
    Bye,
    Frame,
    FrameError,
    Hello,
    LinkRequest,
    MarkerFrame,
    MessagesFrame,
    StateFrame,
    TopicFrame,
    decode,
)
from .lanes import Lane, Lanes
from .pausing import PAUSE_MAX_S, Pause, Pauses
from .proposing import Proposals
from .reporting import Reporter
from .transport import LinkStream, LinkTransport
from .updates import Updates

__all__ = ["Pull"]

# Between two tries; a link whose stream has lasted begins with the first again.
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 5.0
LASTED_S: Final = 1.0
# A whole opening, with every endpoint that hangs.
OPEN_S: Final = 10.0
# An answer that came before the messages that it counts: after the first, then ever more rarely.
ANSWER_AGAIN_S: Final = 0.1
ANSWER_AGAIN_MAX_S: Final = 2.0
# From a topic that finds no room to the stream without it, so that others may join it.
DROPPING_S: Final = 0.5
# What a line takes in memory besides its bytes: the frame that is made of it.
FRAME_OVERHEAD: Final = 512
# Subscriptions that were not taken, remembered to see when they are.
REMEMBERED_MAX: Final = 10_000

Work = tuple[str, Item]


class _Reopen(Exception):
    """Hang up and begin anew from the tables, at once."""


class Pull:
    """One link. `run` until it is cancelled. `moved(topic)` is called when messages came here."""

    def __init__(
        self,
        host: Host,
        region: str,
        link: LinkOptions,
        transport: LinkTransport,
        moved: Callable[[str], None],
    ) -> None:
        self.region = region
        self.link = link
        self._host = host
        self._transport = transport
        self._moved = moved
        self._bytes_max = options_of(host).link_bytes_max
        self._propose = Proposals(host).until_verdict
        self._lanes: Lanes[Work] | None = None
        self._asked: LinkRequest | None = None
        self._pauses = Pauses()
        #: Subscriptions whose state is not taken here, and since when one was refused.
        self._ignored: dict[tuple[str, str], None] = {}
        self._refused_at: float | None = None
        #: Topics of which nothing is taken: not replicated here, or not to be had.
        self._local: dict[str, None] = {}
        #: Topics that are dropped until the next stream, which is without them; since when.
        self._dropped: dict[str, None] = {}
        self._dropped_at = 0.0
        self._updates = Updates()
        self.reporter = Reporter(host, region, transport)
        #: What the source has, of each topic.
        self.heads: dict[str, Vector] = {}
        self.state: str = "connecting"
        self.endpoint = ""
        self._error = ""
        self._ended = False
        self.last_contact: float | None = None
        self.last_alive: float | None = None
        self.opened = 0
        self.delivered = 0
        self.merged = 0
        self.bytes = 0
        self.max_bytes_held = 0
        self.faults = 0
        self.source_mode = ""

    # --- looking ---

    @property
    def bytes_in_flight(self) -> int:
        """What has come and is not in the log yet."""
        return 0 if self._lanes is None else self._lanes.size

    @property
    def paused(self) -> tuple[str, ...]:
        """Topics whose messages find no room here."""
        return self._pauses.names

    @property
    def last_error(self) -> str:
        """What is wrong, or was before it was connected last; "": nothing."""
        if self._error or self.state != "connected":
            return self._error
        return self._pauses.why or self.reporter.error or self._mode_error()

    def _mode_error(self) -> str:
        mode, theirs = str(self._host.settings["mode"]), self.source_mode
        if theirs and theirs != mode:
            return (
                f"{self.region} replicates subscriptions in {theirs} mode, this region in {mode} "
                f"mode: set them alike"
            )
        if mode == "snapshot" and self.link.want == "all":
            return (
                'snapshot mode needs a mesh: this link has want = "all", so no snapshot is built. '
                'Link every region with every other one, with want = "own", or use vector mode'
            )
        return ""

    def is_up(self) -> bool:
        """Connected, and the source has shown itself within SILENCE_S."""
        now = self._host.runtime.monotonic()
        return (
            self.state == "connected"
            and self.last_alive is not None
            and now - self.last_alive <= SILENCE_S
        )

    def _failed(self, text: str) -> None:
        self._error = text[:500]

    # --- again and again ---

    def end(self) -> None:
        """Before its task is cancelled: an error at the same moment would swallow that."""
        self._ended = True

    async def run(self) -> None:
        """Until it is cancelled, or its node stops; hangs up then."""
        delay_s = RETRY_FIRST_S
        runtime = self._host.runtime
        try:
            while not self._ended:
                began, done = runtime.monotonic(), self.delivered + self.merged
                try:
                    await self._once()
                except Stopped:
                    return
                except Exception as error:
                    if self._judge(error):
                        return
                if runtime.monotonic() - began > LASTED_S or self.delivered + self.merged > done:
                    delay_s = RETRY_FIRST_S
                await runtime.sleep(delay_s * runtime.rng.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, RETRY_MAX_S)
        finally:
            self.state = "stopped"
            await self._transport.close()

    def _judge(self, error: Exception) -> bool:
        """Why a stream has ended; whether the node stops."""
        found = _leaves(error)
        self.state = "connecting"
        for each in found:
            if isinstance(each, Stopped):
                return True
            if isinstance(each, LinkRefused | Refused):
                self.state = "stopped"
                self._failed(str(each))
            elif isinstance(each, _Reopen | LinkError | FrameError | NotApplied | OutcomeUnknown):
                self._failed(str(each))
            else:
                self.faults += 1
                self._failed(f"internal error ({type(each).__name__}), see the log of the node")
                self._host.log.error("the link to %s failed", self.region, exc_info=each)
        return False

    async def _once(self) -> None:
        request = self._asked = self._request()
        try:
            async with asyncio.timeout(OPEN_S):
                stream = await self._transport.open(request)
        except TimeoutError:
            raise LinkBroken(f"{self.region} did not answer in {OPEN_S:g} s") from None
        self.endpoint = stream.endpoint
        self._ignored.clear()
        self._refused_at = None
        self._local.clear()
        self._dropped.clear()
        self.reporter.begin()
        try:
            async with asyncio.TaskGroup() as group:
                self._lanes = Lanes(group, self._work, self._bytes_max)
                group.create_task(self.reporter.run())
                await self._read(stream)
        finally:
            self._lanes = None
            stream.close()

    def _request(self) -> LinkRequest:
        view = self._host.view()
        topics: dict[str, Vector] = {}
        topic: Topic
        for name, topic in view.table("topics").scan():
            if topic.replicated:
                topics[name] = vector_of_rows(view, topic.id)
        return LinkRequest(
            region=own_region(view),
            want=self.link.want,
            direct=self._direct(view),
            topics=topics,
            paused=self._pauses.waiting(self._host.runtime.monotonic()),
        )

    def _direct(self, view: View) -> tuple[str, ...]:
        """The regions that are fetched from: the source need not pass on what is theirs."""
        links = options_of(self._host).links
        rows = view.table("regions").scan()
        return tuple(name for name, row in rows if row.state == "active" and name in links)

    # --- reading ---

    async def _read(self, stream: LinkStream) -> None:
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    line = await stream.next()
            except TimeoutError:
                raise LinkBroken(f"{stream.endpoint} was silent for {SILENCE_S:g} s") from None
            frame = decode(line)
            self.last_contact = self._host.runtime.monotonic()
            self.bytes += len(line)
            await self._take(frame, len(line) + FRAME_OVERHEAD)

    async def _take(self, frame: Frame, size: int) -> None:
        assert self._lanes is not None
        match frame:
            case MessagesFrame() | StateFrame() | MarkerFrame() if frame.topic in self._local:
                pass
            case MessagesFrame() | StateFrame() | MarkerFrame() if self._drops(frame.topic, frame):
                pass
            case MessagesFrame():
                await self._put(("m", frame.topic), (frame.topic, frame), size)
            case StateFrame():
                topic = frame.topic
                # Behind the declaration, if the topic is still to be made.
                known = topic in self._host.view().table("topics")
                key = ("s", topic, frame.sub) if known else ("m", topic)
                await self._put(key, (topic, frame), size)
            case MarkerFrame():
                await self._put(("m", frame.topic), (frame.topic, frame.what), size)
            case TopicFrame():
                await self._topic(frame, size)
            case Alive():
                self.heads.update(frame.heads)
                for name in frame.gone:
                    self.heads.pop(name, None)
                self.source_mode = frame.mode
                self.last_alive = self._host.runtime.monotonic()
                self._look_again()
            case Hello():
                self._greeted(frame)
            case Bye():
                raise LinkBroken(f"{self.endpoint} ended the link: {frame.text or frame.reason}")

    async def _put(self, key: tuple[str, ...], work: Work, size: int) -> None:
        assert self._lanes is not None
        await self._lanes.put(key, work, size)
        self.max_bytes_held = max(self.max_bytes_held, self._lanes.size)

    def _greeted(self, hello: Hello) -> None:
        check_name(hello, self.region, self.endpoint)
        self.reporter.open(hello.link)
        self.state = "connected"
        self.opened += 1
        self._error = ""
        self.heads.clear()

    async def _topic(self, frame: TopicFrame, size: int) -> None:
        assert self._asked is not None
        check_source(frame, self._asked, self.region)
        await check_own(self._host, frame, self.region)
        self.heads[frame.topic] = frame.head
        topic: Topic | None = self._host.view().table("topics").get(frame.topic)
        if topic is None and frame.topic in self._asked.paused:
            self._local[frame.topic] = None
        elif topic is None:
            await self._put(("m", frame.topic), (frame.topic, frame), size)
        elif not topic.replicated:
            self._local[frame.topic] = None
            self._failed(f"the topic {frame.topic!r} is replicated there, and not here")

    def _look_again(self) -> None:
        """Reasons to begin anew, seen once a second."""
        view = self._host.view()
        now = self._host.runtime.monotonic()
        assert self._asked is not None
        if self._asked.region != own_region(view) or self._asked.direct != self._direct(view):
            raise _Reopen("the regions have changed")
        self._look_at_pauses(now)
        for name in self._local:
            topic: Topic | None = view.table("topics").get(name)
            if topic is not None and topic.replicated:
                raise _Reopen(f"the topic {name!r} is replicated now")
        if self._refused_at is not None and now - self._refused_at > PAUSE_MAX_S:
            raise _Reopen("subscriptions that were refused are tried again")
        if self._ignored and takes_states(view):
            for name, sub in self._ignored:
                topic = view.table("topics").get(name)
                row: Sub | None = None
                if topic is not None:
                    row = view.table("subs").get((topic.id, sub))
                if row is None or row.replicate:
                    raise _Reopen(f"subscriptions of {name!r} are replicated now")

    def _look_at_pauses(self, now: float) -> None:
        assert self._asked is not None
        assert self._lanes is not None
        if self._dropped and now - self._dropped_at >= DROPPING_S:
            raise _Reopen(f"the messages of {next(iter(self._dropped))!r} find no room")
        for name in self._pauses.names:
            if not self._pauses.is_due(name, now):
                continue
            if name in self._asked.paused:
                raise _Reopen(f"the messages of {name!r} are tried again")
            if not self._lanes.busy(("m", name)):
                # It was tried with this stream, and nothing of it was refused.
                self._pauses.remove(name)

    # --- working ---

    def _drops(self, topic: str, item: Item | MarkerFrame) -> bool:
        """Whether it is left out: nothing may come behind what was. But an acknowledgement is true
        by itself, where the topic is."""
        if topic not in self._dropped:
            return False
        return not isinstance(item, StateFrame) or topic not in self._host.view().table("topics")

    async def _work(self, lane: Lane[Work]) -> None:
        found = lane.peek()
        assert found is not None
        if self._drops(*found):
            lane.take()
            return
        try:
            await self._do(lane, *found)
        except Pause as pause:
            now = self._host.runtime.monotonic()
            self._pauses.add(pause, now)
            if not self._dropped:
                self._dropped_at = now
            self._dropped[pause.topic] = None

    async def _do(self, lane: Lane[Work], topic: str, item: Item) -> None:
        match item:
            case MessagesFrame():
                await self._deliver(lane)
            case StateFrame():
                await self._merge(gathered_state(lane))
            case TopicFrame():
                lane.take()
                await self._declare(item)
            case Early():
                lane.take()
                await self._host.runtime.sleep(item.delay_s)
                await self._mark(topic, item.what, min(2 * item.delay_s, ANSWER_AGAIN_MAX_S))
            case Request() | Answer() | Advance():
                lane.take()
                await self._mark(topic, item)

    async def _declare(self, frame: TopicFrame) -> None:
        try:
            await self._propose(declaration(frame))
        except Refused as refusal:
            raise Pause(frame.topic, str(refusal)) from refusal

    async def _deliver(self, lane: Lane[Work]) -> None:
        command = news_of(self._host.view(), gathered_messages(lane, self.region))
        if command is None:
            return
        try:
            done: Delivered = await self._propose(command)
        except OutOfOrder as refusal:
            raise _Reopen(f"{command.topic!r}: {refusal}") from None
        except UnknownTopic as refusal:
            raise LinkBroken(f"{command.topic!r} was deleted here: {refusal}") from None
        except (OriginBehind, RegionExcluded, UnknownRegion):
            raise
        except (Refused, TooLarge) as refusal:
            raise Pause(command.topic, str(refusal)) from refusal
        self.delivered += done.appended
        self._pauses.remove(command.topic)
        self._moved(command.topic)

    async def _merge(self, frame: StateFrame) -> None:
        command = merge_of(self._host.view(), frame, self.region)
        if command is None:
            return
        if command == "gone":
            raise _Reopen(f"a subscription of {frame.topic!r} was deleted here")
        if isinstance(command, str):
            self._ignore(frame.topic, frame.sub)
            return
        await self._propose_for(frame.topic, frame.sub, command)

    async def _propose_for(self, topic: str, sub: str, command: msgspec.Struct) -> bool:
        """A `Merge` or `Update`; whether all of it was taken."""
        try:
            merged: Merged = await self._propose(command)
        except (RegionExcluded, UnknownRegion):
            raise
        except Refused as refusal:
            self._failed(f"a subscription of {topic!r} is not followed: {refusal}")
            self._refused_at = self._refused_at or self._host.runtime.monotonic()
            return False
        if merged.ignored and merged.ignored != "too many ranges":
            self._ignore(topic, sub)
            return False
        self.merged += 1
        if merged.ignored:
            # What fitted was taken; the rest is told again later.
            self._refused_at = self._refused_at or self._host.runtime.monotonic()
        return not merged.ignored

    def _ignore(self, topic: str, sub: str) -> None:
        if len(self._ignored) < REMEMBERED_MAX:
            self._ignored[topic, sub] = None

    async def _mark(
        self, topic: str, what: Request | Answer | Advance, again_s: float = ANSWER_AGAIN_S
    ) -> None:
        view = self._host.view()
        command = marker_command(view, topic, what, self.region)
        if command is None:
            return
        if isinstance(what, Advance):
            await self._update(view, topic, what, command)
            return
        try:
            await self._propose(command)
        except OutOfOrder:
            # It counts messages of another origin, which other links are still to bring; it waits
            # for them in a lane of its own.
            assert isinstance(what, Answer)
            assert self._lanes is not None
            self._lanes.put_now(("a", topic), (topic, Early(what, again_s)), FRAME_OVERHEAD)
        except (RegionExcluded, UnknownRegion):
            raise
        except Refused as refusal:
            self._failed(f"a snapshot of {topic!r} is not answered: {refusal}")

    async def _update(self, view: View, topic: str, what: Advance, command: msgspec.Struct) -> None:
        if self._updates.is_known(view, topic, what):
            return
        if await self._propose_for(topic, what.sub, command):
            self._updates.taken(self._host.view(), topic, what)


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group of tasks, and of groups within."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in _leaves(each)]
