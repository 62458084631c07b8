"""A program that has no node of its own: sessions and branches over the door of a cluster.

    client = raftkv.Client(["http://10.0.0.1:7501", "http://10.0.0.2:7501"])
    session = await DoorSession.open(client, "tx")
    await session.publish("orders", b"17")
    done = await session.commit()                    # TransactionAborted, TransactionUnknown

    resource = DoorResource(client)                  # what a `Coordinator` commits and rolls back
    session = await DoorSession.open(client, "dtx")

A session stays with the endpoint that it was opened at; branches are decided at whichever answers.
A request is repeated only if that is safe. Operations are counted (`at`), so that those of a
repeated request are done once. A commit that nobody answered is asked after by its id, at any
endpoint. A branch that is gone when it is committed again was committed if its outcome says so.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError, Refused

from .commands import Kind, Message, SettlingVerb, State
from .errors import TransactionAborted, TransactionUnknown
from .transaction import messages_of
from .xa import XaError, XaStatus, Xid, xid_from_text

if TYPE_CHECKING:
    from raftkv import Client

__all__ = [
    "DoorBranch",
    "DoorCommitted",
    "DoorDelivery",
    "DoorResource",
    "DoorSession",
    "RefusedAtDoor",
]

#: Of calls that do not say how long they wait. Votes may take prepare_timeout_ms.
TIMEOUT_S: Final = 15.0
# What an answer takes beyond the time that the door was told.
ANSWER_S: Final = 2.0

Method = Literal["GET", "POST", "DELETE"]


class RefusedAtDoor(Refused):
    """What a door refused. `word`: its stable reason; `xa`: XA's code if it has one.

    `fields`: what else it said for programs.
    """

    code = "txqueue_refused_at_door"

    def __init__(self, word: str, text: str, fields: Mapping[str, Any]) -> None:
        super().__init__(word, text)
        self.word = word
        self.text = text
        self.fields = fields
        xa = fields.get("xa")
        self.xa = None if xa is None else XaError(xa)

    def __str__(self) -> str:
        return f"{self.text} ({self.word})"


class DoorBranch(msgspec.Struct, frozen=True):
    """A branch as `recover` shows it."""

    xid: Xid
    state: State


class DoorDelivery(msgspec.Struct, frozen=True):
    """A message that the session holds."""

    queue: str
    seq: int
    body: bytes
    headers: tuple[tuple[str, str], ...]
    deliveries: int

    @property
    def redelivered(self) -> bool:
        return self.deliveries > 1


class DoorCommitted(msgspec.Struct, frozen=True):
    """A transaction that is committed. `spans`: (queue, first seq, last seq) that it published."""

    txid: str
    spans: tuple[tuple[str, int, int], ...] = ()


class DoorResource:
    """The branches of one cluster, for a coordinator. Its methods are XA's verbs.

    They raise RefusedAtDoor with XA's code, NotApplied kinds, and OutcomeUnknown kinds: ask again.
    """

    def __init__(self, client: Client, *, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def prepare(self, xid: Xid) -> XaStatus:
        return await self._verb(xid, "prepare", self._patience())

    async def commit(self, xid: Xid, one_phase: bool = False) -> XaStatus:
        body = {"one_phase": one_phase, **self._patience()}
        return await self._verb(xid, "commit", body, done="committed")

    async def rollback(self, xid: Xid) -> XaStatus:
        return await self._verb(xid, "rollback", self._patience(), done="rolled back")

    async def forget(self, xid: Xid) -> XaStatus:
        return await self._verb(xid, "forget", self._patience())

    async def recover(self) -> Sequence[DoorBranch]:
        """Prepared branches, and those that an operator has decided."""
        path = "/v1/txqueue/dtx/recover"
        found = await _call(self._client, "GET", path, repeat=True, timeout_s=self._timeout_s)
        return [DoorBranch(xid_from_text(each["xid"]), each["state"]) for each in found["branches"]]

    async def outcome(self, xid: Xid) -> str:
        """One of "committed", "rolled back", "unknown", or the state of one that is not decided."""
        found = await _call(
            self._client, "GET", _branch(xid), repeat=True, timeout_s=self._timeout_s
        )
        state: str = found["state"]
        return state

    def _patience(self) -> dict[str, float]:
        return {"timeout_s": max(0.1, self._timeout_s - ANSWER_S)}

    async def _verb(self, xid: Xid, verb: str, body: Any, done: str = "") -> XaStatus:
        """`done`: what the outcome of a branch that is gone has to be for this to be OK."""
        path = f"{_branch(xid)}/{verb}"
        try:
            answer = await _call(
                self._client, "POST", path, body, repeat=True, timeout_s=self._timeout_s
            )
        except RefusedAtDoor as error:
            # A request that was repeated may have been heard the first time.
            if error.xa == XaError.NOT_FOUND and done and await self.outcome(xid) == done:
                return XaStatus.OK
            raise
        return XaStatus(answer["status"])


class DoorSession:
    """A session at one door; `await session.close()` when it is not needed any more.

    It ends by itself when nobody has used it for `idle_s`. To be used by one task at a time.
    """

    def __init__(self, client: Client, endpoint: str, opened: Any, timeout_s: float) -> None:
        self._client = client
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self.id: str = opened["session"]
        self.kind: Kind = opened["kind"]
        self.idle_s: float = opened["idle_s"]
        #: Of the transaction that runs, or the next one; of a session of kind "tx".
        self.txid: str = opened["txid"]
        #: The branch that it is attached to.
        self.branch: Xid | None = None
        self._sent = 0
        # The transaction whose commit was sent, and not answered.
        self._in_doubt = ""
        # Operations of which the door has not said that it has them.
        self._waiting: list[dict[str, Any]] = []

    @classmethod
    async def open(
        cls, client: Client, kind: Kind = "plain", *, timeout_s: float = TIMEOUT_S
    ) -> DoorSession:
        """A session at the first endpoint of the client that opens one.

        An answer that is lost leaves one behind that its door closes. Raises RefusedAtDoor, or the
        last endpoint's error.
        """
        last: RaftkvError | None = None
        body = {"kind": kind, "timeout_s": timeout_s}
        for endpoint in client.endpoints:
            try:
                opened = await _call(
                    client, "POST", "/v1/txqueue/sessions", body, at=endpoint, timeout_s=timeout_s
                )
            except (NotApplied, OutcomeUnknown) as error:
                last = error
            else:
                return cls(client, endpoint, opened, timeout_s)
        assert last is not None, "a client has endpoints"
        raise last

    # --- messages ---

    async def publish(
        self,
        queue: str,
        messages: Message | bytes | Iterable[Message],
        *,
        ttl_s: float | None = None,
        delay_s: float | None = None,
    ) -> None:
        """In a transaction when it is in one; otherwise at once, and once: under a number of the
        client, sent again until it is answered. `ttl_s`, `delay_s`: as in `TxQueueApi.publish`."""
        made = _messages(messages, ttl_s, delay_s)
        if self.kind == "tx" or self.branch is not None:
            await self._operate({"publish": queue, "messages": made})
        else:
            place = f"/v1/txqueue/queues/{quote(queue, safe='')}/publish"
            # Of no session of the queues', so any node may take it.
            await _call(
                self._client,
                "POST",
                place,
                {"messages": made},
                once=True,
                timeout_s=self._timeout_s + ANSWER_S,
            )

    async def get(
        self, queue: str, count: int = 1, *, wait_s: float = 0.0
    ) -> tuple[DoorDelivery, ...]:
        """Messages that are the session's now; none if there are none in time."""
        body = {"queue": queue, "count": count, "wait_s": wait_s}
        found = await self._ask("POST", self._place("get"), body, more_s=wait_s)
        return tuple(_delivery(queue, each) for each in found["messages"])

    async def accept(self, *deliveries: DoorDelivery) -> None:
        """They are done with: at the commit, in a transaction, otherwise at once."""
        await self._settle("accept", deliveries)

    async def release(self, *deliveries: DoorDelivery) -> None:
        """They go back to their places."""
        await self._settle("release", deliveries)

    async def reject(self, *deliveries: DoorDelivery) -> None:
        """They are dead."""
        await self._settle("reject", deliveries)

    async def to_back(self, *deliveries: DoorDelivery) -> None:
        """They get a new place behind all others."""
        await self._settle("to_back", deliveries)

    async def _settle(self, how: SettlingVerb, deliveries: Sequence[DoorDelivery]) -> None:
        seqs: dict[str, list[int]] = {}
        for each in deliveries:
            seqs.setdefault(each.queue, []).append(each.seq)
        for queue, numbers in seqs.items():
            if how == "accept" and (self.kind == "tx" or self.branch is not None):
                await self._operate({"accept": queue, "seqs": numbers})
            else:
                body = {"queue": queue, "seqs": numbers, "how": how}
                await self._ask("POST", self._place("settle"), body)

    # --- local transactions ---

    async def commit(self) -> DoorCommitted:
        """Commit what was done since the last one: one request, with all of it.

        Raises TransactionAborted (nothing of it happened) or TransactionUnknown: commit again, and
        it is the same transaction, which is decided once.
        """
        txid, body = self.txid, {"operations": self._waiting, "at": self._sent}
        body["timeout_s"] = self._timeout_s
        try:
            done = await self._ask("POST", f"/v1/txqueue/tx/{txid}/commit", body)
        except RefusedAtDoor as error:
            if error.word == TransactionAborted.code:
                self._over("")
                cause, why = error.fields["cause"], error.fields["why"]
                raise TransactionAborted(txid, cause, why) from None
            raise
        except OutcomeUnknown:
            self._in_doubt = txid
            done = await self._settled(txid)
        except NotApplied:
            if self._in_doubt != txid:
                raise
            # This request did not arrive; an earlier one may have.
            done = await self._settled(txid)
        self._over(done.get("next") or "")
        spans = tuple((queue, first, last) for queue, first, last in done.get("spans", ()))
        return DoorCommitted(txid, spans)

    async def rollback(self) -> None:
        """Give up what was done since the last one."""
        done = await self._ask("POST", f"/v1/txqueue/tx/{self.txid}/rollback", {})
        self._over(done["next"])

    async def _settled(self, txid: str) -> dict[str, Any]:
        """What became of a commit that was not answered, from any endpoint."""
        path = f"/v1/txqueue/tx/{txid}"
        try:
            found: dict[str, Any] = await _call(
                self._client, "GET", path, repeat=True, timeout_s=self._timeout_s
            )
        except RaftkvError:
            raise TransactionUnknown(txid) from None
        if found["state"] == "rolled back":
            self._over("")
            raise TransactionAborted(txid, found["cause"], found["reason"])
        if found["state"] != "committed":
            raise TransactionUnknown(txid)
        return found

    def _over(self, following: str) -> None:
        session, _, counter = self.txid.partition(".")
        self.txid = following or f"{session}.{int(counter) + 1}"
        self._sent, self._waiting = 0, []

    # --- branches ---

    async def start(
        self, xid: Xid, *, join: bool = False, resume: bool = False, timeout_s: float | None = None
    ) -> XaStatus:
        """Work in a branch from now on. `timeout_s`: the branch's, None: the default."""
        body = {"session": self.id, "join": join, "resume": resume, "timeout_s": timeout_s}
        answer = await self._ask("POST", f"{_branch(xid)}/start", body)
        status = XaStatus(answer["status"])
        if status == XaStatus.OK:
            self.branch = xid
            self._waiting = []
            if not resume:
                self._sent = 0
        return status

    async def end(self, xid: Xid, *, suspend: bool = False, fail: bool = False) -> XaStatus:
        """Leave it: for good, for a while (suspend), or because it must be rolled back (fail)."""
        if self._waiting and self.branch == xid and not fail:
            await self._stage(xid)
        body = {"session": self.id, "suspend": suspend, "fail": fail}
        answer = await self._ask("POST", f"{_branch(xid)}/end", body)
        self.branch = None
        return XaStatus(answer["status"])

    # --- inside ---

    async def close(self) -> None:
        """What it holds goes back; a transaction that it is in is rolled back."""
        await self._ask("DELETE", f"/v1/txqueue/sessions/{self.id}")

    async def _operate(self, operation: dict[str, Any]) -> None:
        """Now in a branch; with the commit in a local transaction."""
        self._waiting.append(operation)
        if self.branch is None:
            return
        try:
            await self._stage(self.branch)
        except (NotApplied, Refused):
            # By identity: an equal one may be waiting.
            self._waiting = [each for each in self._waiting if each is not operation]
            raise

    async def _stage(self, branch: Xid) -> None:
        """Send what the door may not have. One that is not answered is sent again with the next:
        the door counts them, so it must not take that for this one."""
        body = {"session": self.id, "operations": self._waiting, "at": self._sent}
        answer = await self._ask("POST", f"{_branch(branch)}/stage", body)
        self._sent, self._waiting = answer["operations"], []

    async def _ask(self, method: Method, path: str, body: Any = None, more_s: float = 0.0) -> Any:
        return await _call(
            self._client,
            method,
            path,
            body,
            at=self._endpoint,
            timeout_s=self._timeout_s + more_s + ANSWER_S,
        )

    def _place(self, verb: str) -> str:
        return f"/v1/txqueue/sessions/{self.id}/{verb}"


# --- one call -------------------------------------------------------------------------------------


async def _call(
    client: Client,
    method: Method,
    path: str,
    body: Any = None,
    *,
    at: str | None = None,
    repeat: bool = False,
    once: bool = False,
    timeout_s: float,
) -> Any:
    """The body of a good answer. Raises RefusedAtDoor for a refusal, OutcomeUnknown for a 504."""
    answer = await client.call(
        method, path, body, at=at, repeat=repeat, once=once, timeout_s=timeout_s
    )
    if answer.good:
        return answer.body
    fields = answer.body if isinstance(answer.body, dict) else {}
    word, text = str(fields.get("reason", "")), str(fields.get("error", f"{answer.status}"))
    if answer.status >= 500:
        raise OutcomeUnknown(text)
    raise RefusedAtDoor(word, text, fields)


def _branch(xid: Xid) -> str:
    return f"/v1/txqueue/dtx/{xid}"


def _messages(
    given: Message | bytes | Iterable[Message], ttl_s: float | None, delay_s: float | None
) -> list[dict[str, Any]]:
    return [
        {"body": base64.b64encode(each.body).decode("ascii"), "headers": list(each.headers)}
        for each in messages_of(given, ttl_s, delay_s)
    ]


def _delivery(queue: str, found: dict[str, Any]) -> DoorDelivery:
    return DoorDelivery(
        queue,
        found["seq"],
        base64.b64decode(found["body"]),
        tuple((name, value) for name, value in found["headers"]),
        found["deliveries"],
    )
