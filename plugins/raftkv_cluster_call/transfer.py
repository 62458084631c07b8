"""Copying the states of a node to another: as of one id, in pages, checked, and from the beginning.

    source:  state.open -> as_of, size, crc, token       one dump, made between two calls
    copier:  state.page(token, offset) -> bytes, crc     256 KiB each, until all is there

Rules of this file
1. A copy is whole or there is none. A page that is lost is asked for again; a source that is gone
   or has forgotten the token is left, and the next copy begins at its first byte.
2. A source speaks for itself only: it follows, and its states are settled. Whom to ask is decided
   in joining.py, from the replicated cursors.
3. Nothing newer is read: a dump in a format that this node does not know is refused, not guessed.
4. An item's value appears in no message and no log line, nor does the text of what a state raised:
   it may quote one. Class and place are enough to find it.

A dump is kept for some time after it was made, because a copier takes several calls to fetch it. It
is used for further joiners as long as it is new enough for them; `fix`, which compares, always gets
a fresh one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import ClassVar, Final, TypeVar

import msgspec

from raftkv.errors import (
    NotApplied,
    PeerUnreachable,
    RaftkvError,
    Timeout,
)
from raftkv.plugin import Host, Metric

from .functions import cause_of
from .states import STATE_BYTES_MAX, Dump, States
from .views import cursor_of

__all__ = ["Copied", "CopyFailed", "NotASource", "Transfer"]

_T = TypeVar("_T")

FORMAT: Final = 1
OPEN: Final = "state.open"
PAGE: Final = "state.page"

# Far below a frame, so that heartbeats get through between two of them.
PAGE_BYTES = 256 * 1024
PAGE_TIMEOUT_S = 5.0
# Tries for one page. A link that breaks is dialled again by the second; a third is for bad luck.
PAGE_TRIES = 3
PAGE_RETRY_S = 0.1
# A dump that is kept: longer than 64 MiB take at 2 MiB a second and half a minute of reserve.
KEEP_S = 60.0
# Dumps that are kept at once: one for joiners, one for `fix`. Each is up to `bytes_max`.
DUMPS_MAX = 2


class CopyFailed(NotApplied):
    """The states of a node could not be copied; nothing was changed. The text says why."""

    code = "calls_copy_failed"


class NotASource(RaftkvError):
    """This node does not follow, so its states are as of no id: ask another."""

    code: ClassVar[str] = "calls_not_a_source"


class Copied(msgspec.Struct, frozen=True):
    """The states of a node: name -> key -> value. They are what calls up to `as_of` have made."""

    as_of: int
    states: Dump


class Open(msgspec.Struct, frozen=True, array_like=True):
    """Make a dump, or with `fresh` False give one that is kept and as of `least` or later."""

    format: int
    fresh: bool
    least: int


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """What is ready to be fetched. `crc` is that of the whole."""

    format: int
    as_of: int
    token: bytes
    size: int
    crc: int


class AskPage(msgspec.Struct, frozen=True, array_like=True):
    token: bytes
    offset: int


class Page(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    crc: int


class _Kept:
    __slots__ = ("content", "made_s", "opened")

    def __init__(self, opened: Opened, content: bytes, made_s: float) -> None:
        self.opened = opened
        self.content = content
        self.made_s = made_s


class Transfer:
    """Both ends of the copying, on one node."""

    def __init__(self, host: Host, states: States, bytes_max: int = STATE_BYTES_MAX) -> None:
        self._host = host
        self._states = states
        self._bytes_max = bytes_max
        self._kept: dict[bytes, _Kept] = {}
        self._shared = asyncio.Lock()
        self.dumps = 0
        self.copies = 0
        self.failures = 0
        self.bytes_copied = 0

    def register(self) -> None:
        """Answer other nodes. Once, when the service starts."""
        self._host.rpc.register(OPEN, self._on_open)
        self._host.rpc.register(PAGE, self._on_page)

    # --- the source ---

    async def _on_open(self, sender: str, payload: bytes) -> bytes:
        asked = msgspec.msgpack.decode(payload, type=Open)
        try:
            opened = await self._open(asked)
        except RaftkvError:
            raise
        except Exception as error:
            # Its text may quote a value, and would be sent and logged.
            raise CopyFailed(f"a state of {self._host.name} failed: {cause_of(error)}") from None
        return msgspec.msgpack.encode(opened)

    async def _open(self, asked: Open) -> Opened:
        if asked.fresh:
            return await self._dumped()
        # Those that wait behind a long call find the dump of the first of them.
        async with self._shared:
            self._forget_old()
            for kept in reversed(self._kept.values()):
                if kept.opened.as_of >= asked.least:
                    return kept.opened
            return await self._dumped()

    async def _dumped(self) -> Opened:
        self._forget_old()
        async with self._states.lock:
            cursor = cursor_of(self._host.view(), self._host.name)
            if cursor is None or cursor.state != "following":
                raise NotASource(f"{self._host.name} does not follow the calls itself")
            # Aborted ids may move the cursor meanwhile, and change no data.
            states = await self._states.dump(self._bytes_max)
        content, crc = await self._host.runtime.offload_bulk(_packed, states)
        runtime = self._host.runtime
        opened = Opened(FORMAT, cursor.id, runtime.token(16), len(content), crc)
        self.dumps += 1
        self._kept[opened.token] = _Kept(opened, content, runtime.monotonic())
        while len(self._kept) > DUMPS_MAX:
            del self._kept[next(iter(self._kept))]
        runtime.call_later(KEEP_S, self._forget_old)
        return opened

    async def _on_page(self, sender: str, payload: bytes) -> bytes:
        asked = msgspec.msgpack.decode(payload, type=AskPage)
        kept = self._kept.get(asked.token)
        if kept is None or not 0 <= asked.offset <= len(kept.content):
            raise CopyFailed(f"{self._host.name} keeps this dump no more: open another")
        content = kept.content[asked.offset : asked.offset + PAGE_BYTES]
        return msgspec.msgpack.encode(Page(content, zlib.crc32(content)))

    def _forget_old(self) -> None:
        now = self._host.runtime.monotonic()
        for token, kept in list(self._kept.items()):
            # The timer that calls this was set for exactly KEEP_S.
            if now - kept.made_s >= KEEP_S * 0.999:
                del self._kept[token]

    # --- the copier ---

    async def fetch(
        self, node: str, *, timeout_s: float, fresh: bool = True, least: int = 0
    ) -> Copied:
        """The states of `node`, which may be this one; as of `least` or later unless `fresh`.

        Raises CopyFailed, PeerUnreachable (nothing was changed by either), Timeout or RemoteFailed.
        """
        try:
            copied = await self._fetch(node, timeout_s, Open(FORMAT, fresh, least))
        except Exception:
            self.failures += 1
            raise
        self.copies += 1
        return copied

    async def _fetch(self, node: str, timeout_s: float, question: Open) -> Copied:
        runtime = self._host.runtime
        deadline = runtime.monotonic() + timeout_s
        reply = await self._host.rpc.call(node, OPEN, msgspec.msgpack.encode(question), timeout_s)
        opened = _decode(reply, Opened, node)
        if opened.format > FORMAT:
            raise CopyFailed(
                f"{node} gives its states in format {opened.format}, this node reads up to "
                f"{FORMAT}: copy from a node of this version, or update this one"
            )
        if opened.size > self._bytes_max:
            raise CopyFailed(
                f"the states of {node} have {opened.size} bytes, more than {self._bytes_max}: keep "
                f"large data in the keyspace"
            )
        content = bytearray()
        while len(content) < opened.size:
            remaining_s = deadline - runtime.monotonic()
            if remaining_s <= 0:
                raise Timeout(f"{node} has not sent all of its states in {timeout_s:g} s")
            page = await self._page(node, AskPage(opened.token, len(content)), remaining_s)
            content += page
            self.bytes_copied += len(page)
        states = await runtime.offload_bulk(_unpacked, bytes(content), opened)
        if states is None:
            raise CopyFailed(f"the states of {node} arrived damaged: they do not fit their crc")
        return Copied(opened.as_of, states)

    async def _page(self, node: str, question: AskPage, timeout_s: float) -> bytes:
        """One page, asked for again when it is lost or damaged."""
        runtime = self._host.runtime
        deadline = runtime.monotonic() + timeout_s
        failure: RaftkvError = Timeout(f"{node} did not send a page in time")
        for _ in range(PAGE_TRIES):
            wait_s = min(PAGE_TIMEOUT_S, deadline - runtime.monotonic())
            if wait_s <= 0:
                break
            try:
                payload = msgspec.msgpack.encode(question)
                reply = await self._host.rpc.call(node, PAGE, payload, wait_s)
                page = _decode(reply, Page, node)
            except (PeerUnreachable, Timeout) as error:
                failure = error
            else:
                if page.content and zlib.crc32(page.content) == page.crc:
                    return page.content
                failure = CopyFailed(f"a page from {node} arrived damaged")
            await runtime.sleep(PAGE_RETRY_S)
        raise failure

    def metrics(self) -> Sequence[Metric]:
        return (
            Metric("state_dumps", "counter", self.dumps, "Dumps that were made for other nodes."),
            Metric("state_copies", "counter", self.copies, "States that were copied whole."),
            Metric("state_copies_failed", "counter", self.failures, "Copies that were given up."),
            Metric("state_bytes_copied", "counter", self.bytes_copied, "Bytes of copied states."),
        )


def _packed(states: Dump) -> tuple[bytes, int]:
    content = msgspec.msgpack.encode(states)
    return content, zlib.crc32(content)


def _unpacked(content: bytes, opened: Opened) -> Dump | None:
    if len(content) != opened.size or zlib.crc32(content) != opened.crc:
        return None
    try:
        return msgspec.msgpack.decode(content, type=Dump)
    except msgspec.DecodeError:
        return None


def _decode(reply: bytes, kind: type[_T], node: str) -> _T:
    try:
        return msgspec.msgpack.decode(reply, type=kind)
    except msgspec.DecodeError:
        raise CopyFailed(f"{node} answered in words that this node does not know") from None
