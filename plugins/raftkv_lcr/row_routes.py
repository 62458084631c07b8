"""Registering over the HTTP API, for a broker in another language beside its own node.

    POST clients/{client_id}/register    one attempt of the decision, as `LcrApi.register`
    POST clients/{client_id}/open        the same under the mode of an epoch (`GET mode` names it)
    POST clients/{client_id}/unregister  delete this exact row: {"row": channel}
    GET  alarms                          work of this node that takes too long (alarms.py)

A row is the object that `GET clients/{client_id}` shows. It belongs to the node that was asked, in
that node's present incarnation. The body of `register` is {"channel", "predecessor": row or null,
"version": number or null, "ticket": number, "timeout_s": seconds}, that of `open` has "resume",
"clean" and "epoch" besides. The answer has `outcome` ("ok" or a reason for a no, status 200 for all
of them) and the fields of that answer in `commands.py`. A request whose answer was lost is sent
again with the same `channel` and gets the first answer. If it is not, the node deletes the row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from raftkv.errors import TooLarge
from raftkv.plugin import (
    BadRequest,
    Handler,
    Request,
    Response,
    Route,
    answered,
    body_of,
    only_query,
)

from .api import LcrApi
from .commands import CLIENT_ID_CHARS_MAX, VERSION_MAX, Channel, ChannelId, Open, Version

__all__ = ["client_id_of", "row_routes", "shown"]

T = TypeVar("T")
# As the log bounds them: checked here, the error names the field of the body.
Number = Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]

# One attempt of the log, elections included. The client's own repetition goes on where it ended.
TIMEOUT_MAX_S: Final = 60.0


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A channel as this API shows it."""

    client_id: str
    channel: ChannelId
    node: str
    incarnation: Number
    version: Version
    ticket: Version
    supplied: bool = False

    def as_channel(self) -> Channel:
        return Channel(**msgspec.structs.asdict(self))


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    channel: str
    predecessor: Row | None = None
    version: int | None = None
    ticket: int = 0
    timeout_s: float | None = None


class Opening(Registration, frozen=True, forbid_unknown_fields=True, kw_only=True):
    epoch: Number
    resume: bool = False
    clean: bool = False


class Deletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: Row
    timeout_s: float | None = None


def row_routes(api: LcrApi) -> Sequence[Route]:
    """The routes of this module on this node."""
    rows = _Rows(api)
    of = "clients/{client_id}"
    return (
        Route(
            "POST", f"{of}/register", _answered(rows.register), "Register a channel of this node."
        ),
        Route(
            "POST", f"{of}/open", _answered(rows.open), "Register it under the mode of an epoch."
        ),
        Route("POST", f"{of}/unregister", _answered(rows.unregister), "Delete an exact row."),
        Route("GET", "alarms", _answered(rows.alarms), "Work of this node that takes too long."),
    )


class _Rows:
    def __init__(self, api: LcrApi) -> None:
        self._api = api

    async def register(self, request: Request) -> Response:
        client_id, body = client_id_of(request), body_of(request, Registration)
        predecessor = _predecessor(body, client_id)
        timeout_s = _timeout_s(body.timeout_s)
        answer = await _checked(
            self._api.register(
                client_id,
                body.channel,
                predecessor=predecessor,
                version=body.version,
                ticket=body.ticket,
                timeout_s=timeout_s,
            )
        )
        return Response(_answer(answer))

    async def open(self, request: Request) -> Response:
        client_id, body = client_id_of(request), body_of(request, Opening)
        if body.resume and body.clean:
            raise BadRequest("resume and clean exclude each other: a clean start continues nothing")
        command = Open(
            client_id,
            body.channel,
            _predecessor(body, client_id),
            body.version,
            body.ticket,
            body.resume,
            body.epoch,
            body.clean,
        )
        answering = self._api.register_open(command, timeout_s=_timeout_s(body.timeout_s))
        return Response(_answer(await _checked(answering)))

    async def unregister(self, request: Request) -> Response:
        client_id, body = client_id_of(request), body_of(request, Deletion)
        row = _of_client(body.row, client_id)
        removed = await self._api.unregister(row, timeout_s=_timeout_s(body.timeout_s))
        return Response({"client_id": client_id, "removed": removed})

    async def alarms(self, request: Request) -> Response:
        only_query(request)
        return Response({"alarms": [msgspec.structs.asdict(each) for each in self._api.alarms()]})


def _answered(handler: Handler) -> Handler:
    return answered(handler, lambda error: None)


async def _checked(answer: Awaitable[T]) -> T:
    """Await a call of the API, whose complaints about arguments are the client's to read."""
    try:
        return await answer
    except (ValueError, TooLarge) as error:
        raise BadRequest(str(error)) from error


def _predecessor(body: Registration, client_id: str) -> Channel | None:
    return None if body.predecessor is None else _of_client(body.predecessor, client_id)


def _of_client(row: Row, client_id: str) -> Channel:
    if row.client_id != client_id:
        raise BadRequest(
            f"the row is of the client {row.client_id!r}, and the path names {client_id!r}: "
            f"send a row of the same client"
        )
    return row.as_channel()


def _timeout_s(timeout_s: float | None) -> float | None:
    if timeout_s is not None and not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise BadRequest(
            f"timeout_s is {timeout_s:g}: say more than 0 and at most {TIMEOUT_MAX_S:g} seconds, "
            f"and ask again if that was too short"
        )
    return timeout_s


def _answer(answer: Any) -> dict[str, Any]:
    found = {"outcome": answer.outcome}
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        found[name] = shown(value) if isinstance(value, Channel) else value
    return found


# --- what all routes of the plugin share ----------------------------------------------------------


def client_id_of(request: Request) -> str:
    """The client that the path names. Raises `BadRequest`."""
    client_id = request.params["client_id"]
    if not 1 <= len(client_id) <= CLIENT_ID_CHARS_MAX:
        raise BadRequest(
            f"the client id has {len(client_id)} characters, and may have 1 to "
            f"{CLIENT_ID_CHARS_MAX}: say it percent-encoded, as one segment of the path"
        )
    return client_id


def shown(channel: Channel) -> dict[str, Any]:
    """A channel as the HTTP API shows it."""
    return msgspec.structs.asdict(channel)
