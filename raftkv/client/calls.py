"""One call of a client: which endpoint, how long, and whether again.

Rules of this file
1. Every call has a deadline; a try at one endpoint gets a share of what is left, so that one that
   hangs leaves time for the others.
2. Endpoints are used in the order given, the first one that works; one that failed rests, longer
   each time. So a client stays with a node, and sees its own writes there in local reads.
3. A read may be repeated anywhere. A write carries its session and number, so it may be repeated
   as well: the cluster applies it once. A verdict (`Refused`) ends the call, for it would be the
   same everywhere.
4. A deadline is never a decision. When it passes, the caller hears `Timeout` if the write may have
   reached a node, and a `NotApplied` only if it provably did not.
5. `SessionExpired` at the first delivery means that the write was not applied: it goes on under a
   new session. After a delivery whose answer was lost the first one may have been applied before
   the session ended, and the table that would tell is gone: `Timeout`, never a silent second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from raftkv.errors import (
    ASK_CLIENT,
    ConfigError,
    NoLeader,
    NotApplied,
    OutcomeExpired,
    Overloaded,
    PeerUnreachable,
    RaftkvError,
    ReadTimeout,
    Refused,
    SequenceTooFar,
    SessionExpired,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv.read_errors import ReadErrors

from .failures import error_of, is_own_word
from .http import ANSWER_BYTES_MAX, Answer, Broken, Excess, HttpEndpoint, LineStream, Unsent
from .sessions import Numbered, Session, Sessions

__all__ = ["CONNECTIONS_MAX", "Caller", "DoorAnswer", "Place", "Unusable", "door_answer"]

# Calls at once, each on a connection of its own; further ones wait for a place.
CONNECTIONS_MAX: Final = 256
# A try at one endpoint gets at least this, or what is left.
TRY_S_MIN: Final = 0.25
# How long an endpoint rests that failed; doubled each time.
REST_S_MIN: Final = 0.05
REST_S_MAX: Final = 2.0
# Doubled no more often than that: by then it is far above REST_S_MAX.
_DOUBLED_MAX: Final = 16
# Who cancels a call that was not answered for so long tells of an endpoint that hangs.
PATIENCE_S: Final = 1.0

_SESSIONS: Final = b"/v1/sessions"


T = TypeVar("T")
#: From the body of a good answer to what it says.
Decode = Callable[[bytes], T]


class _TooMuch(Timeout):
    """There was an answer, and it exceeds `answer_bytes_max`."""


class _NoRoom(Overloaded):
    """The deadline passed before there was a place for the call in this client."""


class Unusable(Stopped):
    """The client was closed, or is used where it cannot be."""


class DoorAnswer(msgspec.Struct, frozen=True):
    """The HTTP status and the decoded body of what a node answered."""

    status: int
    body: Any

    @property
    def good(self) -> bool:
        """Whether it is a result, not an error."""
        return self.status < 400


class _NoVerdict(Refused):
    """An answer to a numbered request that is not the number's verdict: that of a proxy, of a node
    that has no such route, or of one that does not know numbers there, and has passed it over."""

    def __init__(self, answer: DoorAnswer) -> None:
        super().__init__(f"status {answer.status}")
        self.answer = answer


class _Opened(msgspec.Struct):
    session: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}-[0-9A-Za-z]+$")]


_opened = msgspec.json.Decoder(_Opened).decode


class Place:
    """An endpoint and how it has behaved."""

    def __init__(self, http: HttpEndpoint) -> None:
        self.http = http
        self.failures = 0
        self.rests_until = 0.0


#: From an answer of that endpoint to what it says; raises what it stands for.
Judge = Callable[[Place, Answer], T]


class _Tries:
    """What the tries of one request have come to, if repeating it may not be harmless."""

    def __init__(self) -> None:
        self.last: RaftkvError | None = None
        self._unknown: RaftkvError | None = None

    def failed(self, error: RaftkvError) -> None:
        self.last = error
        if not isinstance(error, NotApplied):
            self._unknown = error  # it may have been carried out, whatever comes after

    def end(self, otherwise: RaftkvError) -> RaftkvError:
        """What the request ends with when it is tried no more."""
        return self._unknown or otherwise


class Caller:
    """Carries the calls of one client, on the event loop of its first call."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 5.0,
        exactly_once: bool = True,
        connections_max: int = CONNECTIONS_MAX,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        if not endpoints:
            raise ConfigError("a client needs at least one endpoint: http://HOST:PORT")
        made = [HttpEndpoint(url, tls, answer_bytes_max=answer_bytes_max) for url in endpoints]
        self._places = [Place(http) for http in made]
        self._current = 0
        self._exactly_once = exactly_once
        self._slots = asyncio.Semaphore(connections_max)
        self._connections_max = connections_max
        self.timeout_s = timeout_s
        self._pid = os.getpid()
        self._bound: dict[str, asyncio.AbstractEventLoop] = {}
        self.sessions = Sessions(self._open_session)
        self.closed = False
        self.retries = 0

    @property
    def endpoint(self) -> str:
        """The endpoint that is used now."""
        return self._places[self._current].http.url

    def deadline(self, timeout_s: float | None) -> float:
        """The end of a call, on the loop's clock."""
        self.check_usable()
        return self._now() + (self.timeout_s if timeout_s is None else timeout_s)

    def check_usable(self) -> None:
        """Raise Unusable for a client that is closed, or not this process's and event loop's."""
        if self.closed:
            raise Unusable("the client is closed")
        if os.getpid() != self._pid:
            # Its numbers are the parent's, too: one of two writes would get the other's answer.
            raise Unusable("a forked process cannot use its parent's client: make another one")
        running = asyncio.get_running_loop()
        # The first use binds; of two threads that are first one wins.
        if self._bound.setdefault("loop", running) is not running:
            raise Unusable(
                "a client belongs to the event loop on which it was first used: make one for each "
                "loop, or use raftkv.blocking.Client, which serves any thread"
            )

    def close(self) -> None:
        """End all connections; calls under way end with an error."""
        loop = self._bound.get("loop")
        if loop is not None and not loop.is_closed() and not self.closed:
            self.check_usable()
        self.closed = True
        if loop is None or not loop.is_closed():
            for place in self._places:
                place.http.close()

    # -- reads

    async def read(
        self,
        path: bytes,
        body: bytes,
        decode: Decode[T],
        *,
        method: bytes = b"POST",
        deadline: float,
    ) -> T:
        """The answer from any endpoint. Raises Refused, or a NotApplied when there was none."""
        last: RaftkvError | None = None
        errors = ReadErrors()
        while True:
            place = await self._next_place(deadline, last)
            if place is None:
                raise _read_failed(last)
            try:
                answer = await self._try(place, method, path, body, b"", deadline)
                return self._said(place, path, answer, decode)
            except (Refused, TooLarge):
                raise
            except _NoRoom as error:
                raise Overloaded(str(error)) from None
            except _TooMuch as error:
                raise TooLarge(str(error)) from None  # it would be as much elsewhere
            except RaftkvError as error:
                last = errors.latest(place.http.url, error)
                self.failed(place)

    async def read_at(self, url: str, path: bytes, decode: Decode[T], *, deadline: float) -> T:
        """GET from this very endpoint, tried once."""
        for place in self._places:
            if place.http.url == url.rstrip("/"):
                try:
                    answer = await self._try(
                        place, b"GET", path, b"", b"", deadline, whole=True, alone=True
                    )
                    return self._said(place, path, answer, decode)
                except _NoRoom as error:
                    raise Overloaded(str(error)) from None
                except Timeout as error:
                    raise _read_failed(error) from None
        raise ConfigError(f"{url!r} is not an endpoint of this client")

    async def stream(
        self, path: bytes, body: bytes, *, deadline: float, last: RaftkvError | None = None
    ) -> tuple[Place, LineStream]:
        """A stream of lines, and the endpoint it is from, chosen as `read` would.

        Whoever finds it broken says so by `failed(place)`, and by `last`, why another is needed.
        """
        while True:
            place = await self._next_place(deadline, last)
            if place is None:
                raise _read_failed(last)
            limit = self._try_until(deadline)
            try:
                with self._heeding(place):
                    answer, lines = await place.http.open_stream(path, body, deadline=limit)
            except (Unsent, Broken) as error:
                last = PeerUnreachable(str(error))
                self.failed(place)
                continue
            if answer.status == 200:
                self._worked(place)
                return place, lines
            last = error_of(place.http.url, answer.status, answer.body)
            if isinstance(last, Refused):
                raise last
            self.failed(place)

    # -- writes

    async def write(self, path: bytes, body: bytes, decode: Decode[T], *, deadline: float) -> T:
        """The answer to a write, applied once. Raises Refused, NotApplied or Timeout."""
        request, judge = Numbered(b"POST", path, body), self._reading(path, decode)
        if not self._exactly_once:
            return await self._write(None, 0, request, judge, deadline)
        return await self._under_session(request, judge, deadline)

    async def ask_once(
        self, method: bytes, path: bytes, body: bytes, *, deadline: float
    ) -> DoorAnswer:
        """As `ask`, for a route that takes numbers: done once, however often it is sent."""
        try:
            return await self._under_session(Numbered(method, path, body), self._whatever, deadline)
        except _NoVerdict as answered:
            return answered.answer

    async def _under_session(self, request: Numbered, judge: Judge[T], deadline: float) -> T:
        renewed = 0
        while True:
            session = await self.sessions.current(deadline)
            seq = session.take()
            unknown = False
            try:
                return await self._write(session, seq, request, judge, deadline)
            except SessionExpired:
                # Nothing was delivered before (`_write` sees to that): under a new session.
                # The first time at once. Each is an entry in the log, and may end another client's.
                rest = _rest_s(renewed) if renewed else 0.0
                renewed += 1
                if self._now() + rest >= deadline:
                    raise Overloaded(
                        f"{renewed} sessions ended before the write arrived: the cluster has more "
                        f"clients than its table of sessions has room for, or the endpoints are "
                        f"of several clusters"
                    ) from None
                await asyncio.sleep(rest)
            except Timeout:
                unknown = True
                raise
            finally:
                if unknown:
                    session.give_up(seq, request)
                else:
                    session.done(seq)

    async def repeat(
        self,
        session: Session,
        seq: int,
        request: Numbered,
        decode: Decode[Any] | None,
        *,
        deadline: float,
    ) -> Any:
        """The answer of a write that is known to have been applied: the first one's.

        Without `decode` as it is: that of a plugin's route.
        """
        judge: Judge[Any] = (
            self._whatever if decode is None else self._reading(request.path, decode)
        )
        return await self._write(session, seq, request, judge, deadline, delivered=True)

    async def _write(
        self,
        session: Session | None,
        seq: int,
        request: Numbered,
        judge: Judge[T],
        deadline: float,
        *,
        delivered: bool = False,
    ) -> T:
        """`delivered`: a node may have got it. From then on nothing but a verdict is certain."""
        last: RaftkvError | None = None
        while True:
            try:
                place = await self._next_place(deadline, last)
            except Stopped:
                if not delivered:
                    raise
                place = None
            if place is None:
                raise _write_failed(last, session, seq, delivered=delivered)
            headers = b"" if session is None else session.headers(seq)
            try:
                answer = await self._try(
                    place,
                    request.method,
                    request.path,
                    request.body,
                    headers,
                    deadline,
                    whole=session is None,
                )
                return judge(place, answer)
            except _TooMuch as error:
                # It would be as much at every node.
                raise _write_failed(error, session, seq, delivered=True) from None
            except (SessionExpired, OutcomeExpired, SequenceTooFar) as error:
                if session is not None and isinstance(error, SessionExpired):
                    session.ended = True
                if delivered:
                    raise _write_failed(error, session, seq, delivered=True) from None
                raise
            except Refused as error:
                if delivered and type(error) in (Refused, _NoVerdict):
                    # No verdict that is known here: a proxy's word, or a node's that serves no
                    # sessions. It says nothing about what was delivered before.
                    raise _write_failed(error, session, seq, delivered=True) from None
                raise
            except _NoRoom as error:
                last = Overloaded(str(error))
                continue  # the endpoint is not to blame, and the deadline has passed
            except (NotApplied, ConfigError) as error:
                # A ConfigError: turned away by its host or origin, before the body was looked at.
                if isinstance(error, TooLarge) and not delivered:
                    raise
                last = error
            except RaftkvError as error:
                last = error
                delivered = True
                if session is None:
                    self.failed(place)
                    raise _write_failed(last, None, 0, delivered=True) from None
            self.failed(place)

    async def _open_session(self, deadline: float) -> str:
        return (await self.read(_SESSIONS, b"{}", _opened, deadline=deadline)).session

    # -- requests of any kind

    async def ask(
        self,
        method: bytes,
        path: bytes,
        body: bytes,
        *,
        url: str | None,
        repeat: bool,
        deadline: float,
    ) -> Answer:
        """Whatever a node says to it, refusals too; from the one at `url` only, tried once.

        Without `repeat` nothing is sent again that may have been carried out. Raises NotApplied,
        or Timeout when that is not known.
        """
        tries = _Tries()
        while True:
            place = await self._place_for(url, tries, deadline)
            try:
                await self._slot(deadline)
            except Overloaded as error:
                raise tries.end(error) from None
            connect_by, limit = self._limits(url, repeat, deadline)
            try:
                with self._heeding(place):
                    answer = await place.http.request(
                        method, path, body, deadline=limit, connect_by=connect_by
                    )
            except Unsent as error:
                tries.failed(PeerUnreachable(str(error)))
            except Broken as error:
                tries.failed(Timeout(f"{place.http.url}: {error}"))
            else:
                failed = _no_answer(place.http.url, answer)
                if failed is None:
                    self._worked(place)
                    return answer
                tries.failed(failed)
            finally:
                self._slots.release()
            self._go_on(place, tries, url, repeat)

    async def ask_stream(
        self,
        method: bytes,
        path: bytes,
        body: bytes,
        *,
        url: str | None,
        repeat: bool,
        deadline: float,
    ) -> tuple[Place, Answer, LineStream]:
        """As `ask`, for an answer of lines; without any if its status is not 200.

        It holds a connection for as long as it lasts, and none of the places of calls.
        """
        tries = _Tries()
        while True:
            place = await self._place_for(url, tries, deadline)
            connect_by, limit = self._limits(url, repeat, deadline)
            try:
                with self._heeding(place):
                    answer, lines = await place.http.open_stream(
                        path, body, deadline=limit, connect_by=connect_by, method=method
                    )
            except Unsent as error:
                tries.failed(PeerUnreachable(str(error)))
            except Broken as error:
                tries.failed(Timeout(f"{place.http.url}: {error}"))
            else:
                failed = _no_answer(place.http.url, answer)
                if failed is None:
                    self._worked(place)
                    return place, answer, lines
                tries.failed(failed)
            self._go_on(place, tries, url, repeat)

    async def _place_for(self, url: str | None, tries: _Tries, deadline: float) -> Place:
        """Where to try next. Raises what the request ends with if it is tried no more."""
        if url:
            return self._place(url)
        try:
            place = await self._next_place(deadline, tries.last)
        except Stopped as stopped:
            raise tries.end(stopped) from None
        if place is None:
            none = NoLeader("the deadline passed before the request could be sent")
            raise tries.end(tries.last or none)
        return place

    def _limits(self, url: str | None, repeat: bool, deadline: float) -> tuple[float, float]:
        """Until when one try may connect, and until when it may be answered.

        Before there is a connection nothing was sent: that may be tried elsewhere in any case.
        """
        share = self._try_until(deadline)
        return deadline if url else share, deadline if url or not repeat else share

    def _go_on(self, place: Place, tries: _Tries, url: str | None, repeat: bool) -> None:
        """After a try that has failed. Raises it if there must not be another."""
        self.failed(place)
        last = tries.last
        assert last is not None
        if url or not (repeat or isinstance(last, NotApplied)):
            raise last

    def _place(self, url: str) -> Place:
        for place in self._places:
            if place.http.url == url.rstrip("/"):
                return place
        raise ConfigError(f"{url!r} is not an endpoint of this client")

    # -- one try

    async def _try(
        self,
        place: Place,
        method: bytes,
        path: bytes,
        body: bytes,
        headers: bytes,
        deadline: float,
        *,
        whole: bool = False,
        alone: bool = False,
    ) -> Answer:
        """One try at one endpoint: an answer of any status, or an error of raftkv's tree.

        `whole`: it may take the time of the whole call to answer; `alone`: to be reached, too.
        """
        try:
            await self._slot(deadline)
        except Overloaded as error:
            raise _NoRoom(str(error)) from None
        share = self._try_until(deadline)
        try:
            with self._heeding(place):
                return await place.http.request(
                    method,
                    path,
                    body,
                    headers,
                    deadline=deadline if whole else share,
                    connect_by=deadline if alone else share,
                )
        except Unsent as error:
            raise PeerUnreachable(str(error)) from None
        except Excess as error:
            raise _TooMuch(f"{place.http.url}: {error}") from None
        except Broken as error:
            raise Timeout(f"{place.http.url}: {error}") from None
        finally:
            self._slots.release()

    def _said(self, place: Place, path: bytes, answer: Answer, decode: Decode[T]) -> T:
        """What a good answer says; any other one is raised as what it stands for."""
        if answer.status == 200:
            try:
                decoded = decode(answer.body)
            except (msgspec.DecodeError, ValueError, LookupError) as error:
                raise Timeout(
                    f"{place.http.url}: the answer to {path.decode()} cannot be understood: {error}"
                ) from None
            self._worked(place)
            return decoded
        raise error_of(place.http.url, answer.status, answer.body)

    def _reading(self, path: bytes, decode: Decode[T]) -> Judge[T]:
        return lambda place, answer: self._said(place, path, answer, decode)

    def _whatever(self, place: Place, answer: Answer) -> DoorAnswer:
        """The answer of a plugin's route to a number, which says that it is its verdict.

        Any other one is raised: as the error it stands for, or as `_NoVerdict`.
        """
        if not answer.numbered and answer.status != 200:
            error = error_of(place.http.url, answer.status, answer.body)
            if not isinstance(error, Refused | TooLarge):
                raise error
        found = door_answer(answer)
        self._worked(place)
        if not answer.numbered:
            raise _NoVerdict(found)
        if not found.good:
            refused = error_of(place.http.url, answer.status, answer.body)
            if isinstance(refused, SessionExpired | OutcomeExpired | SequenceTooFar):
                raise refused
        return found

    async def _slot(self, deadline: float) -> None:
        try:
            if self._slots.locked():
                async with asyncio.timeout_at(deadline):
                    await self._slots.acquire()
            else:
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(
                f"{self._connections_max} calls of this client are under way (connections_max), "
                f"and none ended before the deadline"
            ) from None

    def _try_until(self, deadline: float) -> float:
        now = self._now()
        if len(self._places) == 1:
            return deadline
        rested = sum(1 for place in self._places if place.rests_until <= now)
        return min(deadline, now + max(TRY_S_MIN, (deadline - now) / max(2, rested)))

    # -- endpoints

    async def _next_place(self, deadline: float, last: RaftkvError | None) -> Place | None:
        """The endpoint to try next, once one has rested; None when the deadline comes first.

        A call that has not tried any (`last` is None) does not wait for that: it may be the one
        that finds an endpoint well again.
        """
        while True:
            self.check_usable()
            now = self._now()
            if now >= deadline:
                return None
            places = self._places
            for step in range(len(places)):
                number = (self._current + step) % len(places)
                if places[number].rests_until <= now:
                    self._current = number
                    return places[number]
            soonest = min(range(len(places)), key=lambda number: places[number].rests_until)
            if last is None:
                self._current = soonest
                return places[soonest]
            if places[soonest].rests_until < deadline:
                await asyncio.sleep(places[soonest].rests_until - now)
                continue
            # The last try of this call comes before the rest has ended.
            if deadline - TRY_S_MIN <= now:
                return None
            await asyncio.sleep(deadline - TRY_S_MIN - now)
            last = None

    @contextlib.contextmanager
    def _heeding(self, place: Place) -> Iterator[None]:
        """Whoever gives a call up himself, sooner than it would, has waited in vain all the same:
        else a node that hangs would be asked again and again by callers who are less patient."""
        began = self._now()
        try:
            yield
        except asyncio.CancelledError:
            if self._now() - began >= PATIENCE_S:
                self.failed(place)
            raise

    def _worked(self, place: Place) -> None:
        place.failures, place.rests_until = 0, 0.0

    def failed(self, place: Place) -> None:
        """Let an endpoint rest, after a call or in the middle of a stream."""
        self.retries += 1
        now = self._now()
        if self._places[self._current] is place:
            # Its rest may be over before the next call, which has another endpoint to begin with.
            self._current = (self._current + 1) % len(self._places)
        if place.rests_until <= now:  # not already for a call that failed at the same time
            place.rests_until = now + _rest_s(place.failures)
            place.failures += 1

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _rest_s(failures: int) -> float:
    doubled: int = 2 ** min(_DOUBLED_MAX, failures)
    return min(REST_S_MAX, REST_S_MIN * doubled)


def door_answer(answer: Answer) -> DoorAnswer:
    """The answer of a plugin's route. Raises Timeout if it is none."""
    try:
        return DoorAnswer(answer.status, msgspec.json.decode(answer.body or b"null"))
    except (msgspec.DecodeError, ValueError):
        raise Timeout("the answer is not JSON: a proxy's?") from None


def _no_answer(url: str, answer: Answer) -> RaftkvError | None:
    """What is wrong with it if it is no answer to the question, but word of the way there.

    A plugin's own words come with any status and a reason that is not known here.
    """
    if answer.status < 500 and answer.status not in (408, 429):
        return None
    if is_own_word(answer.body):
        return None
    return error_of(url, answer.status, answer.body)


def _read_failed(last: RaftkvError | None) -> RaftkvError:
    """What a read ends with. It changes nothing, so it was not applied in any case."""
    if last is None:
        return ReadTimeout("the deadline passed before an endpoint could be asked")
    if isinstance(last, NotApplied):
        return last
    return ReadTimeout(f"no endpoint answered before the deadline; the last: {last}")


def _write_failed(
    last: RaftkvError | None, session: Session | None, seq: int, *, delivered: bool
) -> RaftkvError:
    if delivered:
        # Only a write under a session has a number to ask for.
        advice = "Read what it changes before it is repeated" if session is None else ASK_CLIENT
        return Timeout(
            f"the outcome is unknown, the write may still be applied; the last: {last}. {advice}",
            session=0 if session is None else session.id,
            seq=seq,
        )
    if last is None:
        return NoLeader("the deadline passed before the write could be sent")
    return last
