"""paho-mqtt as a test drives it: connect here or there, see what came."""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

__all__ = ["Paho"]

TIMEOUT_S = 30.0
EXPIRY_S = 600


class Paho:
    """One client. It never reconnects by itself. A context: it leaves at the end."""

    def __init__(self, client_id: str, *, five: bool = False, clean: bool = False) -> None:
        version = MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311
        self._five = five
        self._clean = clean
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if five else clean,
            protocol=version,
            reconnect_on_failure=False,
        )
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._open = threading.Event()
        self._connects: queue.Queue[tuple[bool, Any]] = queue.Queue()
        self._disconnects: queue.Queue[tuple[Any, str]] = queue.Queue()
        self._messages: queue.Queue[tuple[str, str]] = queue.Queue()
        self._subscribed: queue.Queue[list[int]] = queue.Queue()

    def __enter__(self) -> Paho:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    # --- what the library tells, on its own thread ---

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        if not code.is_failure:
            self._open.set()
        self._connects.put((flags.session_present, code))

    def _on_disconnect(
        self, client: Any, data: Any, flags: Any, code: Any, properties: Any
    ) -> None:
        self._open.clear()
        self._disconnects.put((code, getattr(properties, "ReasonString", "")))

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        self._messages.put((message.topic, message.payload.decode()))

    def _on_subscribe(self, client: Any, data: Any, mid: int, codes: Any, properties: Any) -> None:
        self._subscribed.put([code.value for code in codes])

    # --- what the test does ---

    def connect(self, port: int) -> bool:
        """Connect and return Session Present. Fails if the broker refuses."""
        present, code = self.try_connect(port)
        assert not code.is_failure, code
        return present

    def try_connect(self, port: int) -> tuple[bool, Any]:
        """Connect: Session Present and the return code."""
        if self._five:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if self._clean else EXPIRY_S
            self._client.connect("127.0.0.1", port, clean_start=self._clean, properties=properties)
        else:
            self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        return self._connects.get(timeout=TIMEOUT_S)

    def subscribe(self, topic: str, qos: int = 1) -> list[int]:
        """Subscribe and wait for the acknowledgement: what was granted."""
        self._client.subscribe(topic, qos)
        return self._subscribed.get(timeout=TIMEOUT_S)

    def publish(self, topic: str, message: str, qos: int = 1) -> None:
        """Publish and wait for the acknowledgement."""
        info = self._client.publish(topic, message, qos)
        info.wait_for_publish(TIMEOUT_S)
        assert info.is_published(), "the broker did not acknowledge"

    def message(self) -> tuple[str, str]:
        """The next message: topic and payload."""
        return self._messages.get(timeout=TIMEOUT_S)

    def so_far(self) -> list[str]:
        """The payloads that have come and were not looked at, without waiting."""
        found = []
        while not self._messages.empty():
            found.append(self._messages.get()[1])
        return found

    def until(self, last: str) -> list[str]:
        """The payloads up to `last`."""
        found = []
        deadline = time.monotonic() + TIMEOUT_S
        while not found or found[-1] != last:
            left_s = max(0.01, deadline - time.monotonic())
            try:
                found.append(self._messages.get(timeout=left_s)[1])
            except queue.Empty:
                raise AssertionError(f"{last} did not come; there was {found}") from None
        return found

    def closed(self) -> tuple[Any, str]:
        """Wait until the broker has closed the connection: the code, and MQTT 5's reason."""
        found = self._disconnects.get(timeout=TIMEOUT_S)
        self._client.loop_stop()
        return found

    def settle(self) -> None:
        """Wait until nothing of a race can come any more: it is connected, or was closed."""
        # A broker that still knows the connection acknowledges what comes over it.
        deadline = time.monotonic() + TIMEOUT_S
        info = self._client.publish("settled", "", 1)
        while self.connected and not (info.rc == 0 and info.is_published()):
            assert time.monotonic() < deadline, "neither acknowledged nor closed"
            time.sleep(0.01)

    @property
    def connected(self) -> bool:
        # The library's own word for it stays true after a DISCONNECT of the broker.
        return self._open.is_set()

    def leave(self) -> None:
        """DISCONNECT, if it is connected."""
        self._client.disconnect()
        self._client.loop_stop()

    def vanish(self) -> None:
        """Close the connection without a word."""
        sock = self._client.socket()
        self._client.loop_stop()
        if sock is not None:
            sock.close()
