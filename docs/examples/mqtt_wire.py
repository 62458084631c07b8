"""MQTT 3.1.1 and 5 on one stream: amqtt's packets, and what MQTT 5 adds to them here.

amqtt reads and writes MQTT 3.1.1. MQTT 5 has the same packets with properties in them, and reason
codes. A broker needs few of these to be useful: how long a session outlives its connection, how
many unacknowledged messages a client takes, how large they may be, and why a connection ends. So
incoming properties are cut out before amqtt reads the packet, and outgoing packets get theirs put
in. What is dropped in this way (user properties, content types, topic aliases, ...) is not passed
on to subscribers; a real broker would.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple

from amqtt.adapters import BufferReader
from amqtt.errors import AMQTTError, CodecError, MQTTError, NoDataError
from amqtt.mqtt import packet_class
from amqtt.mqtt.connack import ConnackPacket
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.packet import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    MQTTFixedHeader,
)
from amqtt.mqtt.pingresp import PingRespPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.unsuback import UnsubackPacket

# What a client may send in one packet. The cluster's frames and commands are larger.
PACKET_BYTES_MAX = 256 * 1024
# A session without a connection is kept so long: what MQTT 3.1.1 leaves to the broker.
SESSION_EXPIRY_S = 3600
# What waits in the socket of a slow client before sending to it pauses.
WRITE_BUFFER_BYTES = 64 * 1024

# Reason codes of MQTT 5, and the return codes of MQTT 3.1.1 that stand in for them in CONNACK.
MALFORMED, PROTOCOL_ERROR, UNSUPPORTED_VERSION = 0x81, 0x82, 0x84
BAD_CLIENT_ID, SERVER_UNAVAILABLE, SERVER_BUSY, KEEP_ALIVE_TIMEOUT = 0x85, 0x88, 0x89, 0x8D
SESSION_TAKEN_OVER, PACKET_TOO_LARGE, ADMINISTRATIVE_ACTION = 0x8E, 0x95, 0x98
QOS_NOT_SUPPORTED, SERVER_SHUTTING_DOWN = 0x9B, 0x8B
_RETURN_CODES = {0: 0, UNSUPPORTED_VERSION: 1, BAD_CLIENT_ID: 2}
_UNAVAILABLE = 3

# How long the values of the properties of CONNECT are; strings and binary data carry their length.
_SIZES = {0x11: 4, 0x17: 1, 0x19: 1, 0x21: 2, 0x22: 2, 0x27: 4}
_STRINGS = {0x15: 1, 0x16: 1, 0x26: 2}
_EXPIRY, _RECEIVE_MAX, _PACKET_MAX = 0x11, 0x21, 0x27
# In CONNACK: a QoS of at most 1, no retained messages, no subscription ids, no shared ones.
_CONNACK_PROPERTIES = bytes([0x24, 1, 0x25, 0, 0x29, 0, 0x2A, 0])


class Hello(NamedTuple):
    """What a CONNECT packet says."""

    client_id: str
    assigned: bool
    clean_start: bool
    expiry_s: int
    keep_alive_s: int
    receive_max: int


class Closed(Exception):
    """The connection ends. With a `code` the client is told why, as far as its MQTT knows how."""

    def __init__(self, code: int = 0, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Wire:
    """One connection. Reading and writing end with `Closed`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._five = False
        self._packet_max = 1 << 28

    async def hello(self) -> Hello:
        """The first packet, which must be a CONNECT."""
        kind, header, body = await self._frame()
        if kind != CONNECT or body[:6] != b"\0\x04MQTT" or len(body) < 12:
            raise Closed
        if body[6] not in (4, 5):
            self._send(ConnackPacket.build(0, _RETURN_CODES[UNSUPPORTED_VERSION]).to_bytes())
            raise Closed
        self._five = body[6] == 5
        properties: dict[int, int] = {}
        if self._five:
            body, properties = _without_connect_properties(body)
        packet: ConnectPacket = await _decoded(header, body)
        clean = packet.clean_session_flag
        if self._five:
            expiry_s = min(properties.get(_EXPIRY, 0), SESSION_EXPIRY_S)
            self._packet_max = properties.get(_PACKET_MAX, self._packet_max)
        else:
            expiry_s = 0 if clean else SESSION_EXPIRY_S
            if packet.client_id_is_random and not clean:
                self.refuse(BAD_CLIENT_ID)
                raise Closed
        return Hello(
            client_id=str(packet.client_id),
            assigned=packet.client_id_is_random,
            clean_start=clean,
            expiry_s=expiry_s,
            keep_alive_s=packet.keep_alive,
            receive_max=properties.get(_RECEIVE_MAX, 65_535) or 1,
        )

    async def packet(self) -> Any:
        """The next packet, one of amqtt's."""
        kind, header, body = await self._frame()
        if self._five:
            if kind == PUBLISH:
                start = _after_string(body, 0) + (2 if header.flags & 0x06 else 0)
                body = _without_properties(body, start)
            elif kind in (SUBSCRIBE, UNSUBSCRIBE):
                body = _without_properties(body, 2)
            elif kind == PUBACK:
                body = body[:2]
            elif kind == DISCONNECT:
                body = b""
        return await _decoded(header, body)

    async def _frame(self) -> tuple[int, MQTTFixedHeader, bytes]:
        try:
            first = await self._reader.readexactly(1)
            length, place = 0, 0
            while True:
                (byte,) = await self._reader.readexactly(1)
                length |= (byte & 0x7F) << place
                place += 7
                if not byte & 0x80:
                    break
                if place > 21:
                    raise Closed(MALFORMED, "the length of a packet has more than four bytes")
            if length > PACKET_BYTES_MAX:
                raise Closed(PACKET_TOO_LARGE, f"packets have at most {PACKET_BYTES_MAX} bytes")
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            raise Closed from None
        return first[0] >> 4, MQTTFixedHeader(first[0] >> 4, first[0] & 0x0F, length), body

    # --- writing ---

    def welcome(self, hello: Hello, *, present: bool) -> None:
        """CONNACK: accepted."""
        if not self._five:
            self._send(ConnackPacket.build(int(present), 0).to_bytes())
            return
        properties = _CONNACK_PROPERTIES
        properties += bytes([_EXPIRY]) + hello.expiry_s.to_bytes(4, "big")
        if hello.assigned:
            properties += b"\x12" + _string(hello.client_id)
        self._send(_packet(CONNACK, bytes([present, 0]) + _counted(properties)))

    def refuse(self, code: int, reason: str = "") -> None:
        """CONNACK: not accepted."""
        if self._five:
            self._send(_packet(CONNACK, bytes([0, code]) + _counted(_reason(reason))))
        else:
            returned = _RETURN_CODES.get(code, _UNAVAILABLE)
            self._send(ConnackPacket.build(0, returned).to_bytes())

    def publish(self, topic: str, payload: bytes, qos: int, packet_id: int, *, dup: bool) -> bool:
        """Send a message; False if it is larger than the client takes."""
        number = packet_id if qos else None
        packet = PublishPacket.build(topic, payload, number, dup, qos, retain=False)
        data = packet.to_bytes()
        if self._five:
            assert packet.variable_header is not None
            head = bytes(packet.variable_header.to_bytes())
            data = _packet(PUBLISH, head + b"\0" + payload, packet.fixed_header.flags)
        if len(data) > self._packet_max:
            return False
        self._send(data)
        return True

    def puback(self, packet_id: int) -> None:
        self._send(PubackPacket.build(packet_id).to_bytes())

    def suback(self, packet_id: int, codes: list[int]) -> None:
        if self._five:
            self._send(_packet(SUBACK, packet_id.to_bytes(2, "big") + b"\0" + bytes(codes)))
        else:
            self._send(SubackPacket.build(packet_id, codes).to_bytes())

    def unsuback(self, packet_id: int, count: int) -> None:
        if self._five:
            self._send(_packet(UNSUBACK, packet_id.to_bytes(2, "big") + b"\0" + bytes(count)))
        else:
            self._send(UnsubackPacket.build(packet_id).to_bytes())

    def pong(self) -> None:
        self._send(PingRespPacket.build().to_bytes())

    async def drained(self) -> None:
        """Return when a slow client has taken most of what was sent."""
        try:
            await self._writer.drain()
        except OSError:
            raise Closed from None

    def close(self, code: int = 0, reason: str = "") -> None:
        """End the connection. MQTT 5 says why; in MQTT 3.1.1 a broker has no word for it."""
        if code and self._five:
            self._send(_packet(DISCONNECT, bytes([code]) + _counted(_reason(reason))))
        with contextlib.suppress(OSError, RuntimeError):  # it is closed already
            self._writer.close()

    def _send(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)


async def _decoded(header: MQTTFixedHeader, body: bytes) -> Any:
    header.remaining_length = len(body)
    try:
        packet = packet_class(header)
        return await packet.from_stream(BufferReader(body), fixed_header=header)
    except (AMQTTError, MQTTError, CodecError, NoDataError, ValueError, IndexError) as error:
        raise Closed(MALFORMED, str(error)) from None


def _packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    return bytes(MQTTFixedHeader(kind, flags, len(body)).to_bytes()) + body


def _string(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _reason(reason: str) -> bytes:
    return b"\x1f" + _string(reason) if reason else b""


def _counted(properties: bytes) -> bytes:
    """Properties behind their length, which is less than 16,384 here."""
    size = len(properties)
    return (bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])) + properties


# --- cutting properties out -----------------------------------------------------------------------


def _after_string(body: bytes, start: int) -> int:
    end = start + 2 + int.from_bytes(body[start : start + 2], "big")
    if end > len(body):
        raise Closed(MALFORMED, "a string is longer than its packet")
    return end


def _properties(body: bytes, start: int) -> tuple[int, int]:
    """Where the properties that are counted at `start` begin, and where they end."""
    size, place = 0, 0
    while True:
        if start >= len(body) or place > 21:
            raise Closed(MALFORMED, "the properties have no valid length")
        byte = body[start]
        size |= (byte & 0x7F) << place
        start, place = start + 1, place + 7
        if not byte & 0x80:
            break
    if start + size > len(body):
        raise Closed(MALFORMED, "the properties are longer than their packet")
    return start, start + size


def _without_properties(body: bytes, start: int) -> bytes:
    _, end = _properties(body, start)
    return body[:start] + body[end:]


def _without_connect_properties(body: bytes) -> tuple[bytes, dict[int, int]]:
    """A CONNECT as MQTT 3.1.1 has it, and the properties that are numbers."""
    place, end = _properties(body, 10)
    found: dict[int, int] = {}
    while place < end:
        name, place = body[place], place + 1
        if name in _SIZES:
            found[name] = int.from_bytes(body[place : place + _SIZES[name]], "big")
            place += _SIZES[name]
        elif name in _STRINGS:
            for _ in range(_STRINGS[name]):
                place = _after_string(body, place)
        else:
            raise Closed(PROTOCOL_ERROR, f"CONNECT has no property {name}")
    rest = body[end:]
    if body[7] & 0x04:
        # The will has properties of its own, behind the client id.
        rest = _without_properties(rest, _after_string(rest, 0))
    return body[:10] + rest, found
