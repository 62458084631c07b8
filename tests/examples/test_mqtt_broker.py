"""The MQTT broker of docs/examples under real clients: paho-mqtt, Debian's mosquitto-clients."""

from __future__ import annotations

import threading

import pytest

from tests.examples.conftest import BrokerProcess
from tests.examples.mosquitto import Missing, Subscriber, mosquitto, publish

pytest.importorskip("paho.mqtt", reason="paho-mqtt is not installed (the extra `dev` names it)")

from tests.examples.paho_client import Paho

pytestmark = pytest.mark.cluster

TAKEN_OVER, ADMINISTRATIVE_ACTION = 0x8E, 0x98


@pytest.fixture
def clients() -> None:
    """mosquitto_pub and mosquitto_sub."""
    try:
        mosquitto("mosquitto_pub")
    except Missing as error:
        pytest.skip(str(error))


# --- Debian's clients -----------------------------------------------------------------------------


@pytest.mark.usefixtures("clients")
@pytest.mark.parametrize("version", ["311", "5"])
def test_mosquitto_finds_its_messages_at_another_node(broker: BrokerProcess, version: str) -> None:
    one, two, three = broker.ports
    more = ["-V", version, *(["-x", "600"] if version == "5" else [])]
    me, topic = f"mosquitto{version}", f"news/{version}"
    with Subscriber(one, me, f"{topic}/#", *more) as first:
        first.until("received SUBACK")
        publish(two, f"{topic}/a", "while here", "-V", version)
        first.until("while here")
    for number in range(5):
        publish(two, f"{topic}/{number}", f"away {number}", "-V", version)
    with Subscriber(three, me, f"{topic}/#", *more) as second:
        for number in range(5):
            second.until(f"away {number}")
        assert broker.get(f"/v1/lcr/clients/{me}")["node"] == "broker3"
    seen = [line for line in second.seen if line.startswith("away")]
    assert seen == [f"away {number}" for number in range(5)]


@pytest.mark.usefixtures("clients")
def test_mosquitto_that_is_killed_has_lost_nothing(broker: BrokerProcess) -> None:
    with Subscriber(broker.ports[0], "killed", "killed/#") as first:
        first.until("received SUBACK")
        first.stop(kill=True)
    publish(broker.ports[1], "killed/x", "later")
    with Subscriber(broker.ports[1], "killed", "killed/#") as second:
        second.until("later")


# --- paho -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("five", [False, True])
def test_session_present_and_the_queue_move_with_the_client(
    broker: BrokerProcess, five: bool
) -> None:
    me, topic = f"mover{five}", f"moving/{five}"
    with Paho(me, five=five) as client, Paho(f"from{five}", five=five, clean=True) as sender:
        assert client.connect(broker.ports[0]) is False
        assert client.subscribe(f"{topic}/+") == [1]
        client.leave()
        sender.connect(broker.ports[2])
        for number in range(3):
            sender.publish(f"{topic}/x", str(number))
        assert client.connect(broker.ports[1]) is True
        assert client.until("2") == ["0", "1", "2"]
        # The subscription has moved, too.
        sender.publish(f"{topic}/y", "here")
        assert client.message() == (f"{topic}/y", "here")
        client.leave()
        assert client.connect(broker.ports[1]) is True
        sender.publish(f"{topic}/z", "last")
        # The acknowledgement of "here" may have come too late; nothing else comes twice.
        assert client.until("last")[-2:] in (["last"], ["here", "last"])


def test_a_clean_start_ends_the_former_session(broker: BrokerProcess) -> None:
    with Paho("cleaner") as client, Paho("cleaner", clean=True) as clean, Paho("s") as sender:
        client.connect(broker.ports[0])
        client.subscribe("clean/#")
        client.leave()
        sender.connect(broker.ports[1])
        sender.publish("clean/x", "old")
        assert clean.connect(broker.ports[2]) is False
        clean.leave()
        assert client.connect(broker.ports[0]) is False
        sender.publish("clean/x", "nobody wants it")
        client.subscribe("clean/#")
        sender.publish("clean/x", "new")
        assert client.until("new") == ["new"]


def test_the_newer_connection_takes_over_from_a_living_one(broker: BrokerProcess) -> None:
    with Paho("twice", five=True) as one, Paho("twice", five=True) as two:
        one.connect(broker.ports[0])
        one.subscribe("twice/#")
        assert two.connect(broker.ports[1]) is True
        code, _ = one.closed()
        assert code.value == TAKEN_OVER
        two.publish("twice/x", "to myself")
        assert two.until("to myself") == ["to myself"]
        assert one.so_far() == []
        assert broker.get("/v1/lcr/clients/twice", 2)["node"] == "broker2"


def test_one_of_many_connections_at_once_survives(broker: BrokerProcess) -> None:
    """Scenario 15 of the registry with real clients, all at the same moment."""
    racers = [Paho("race", five=True) for _ in range(12)]
    ready = threading.Barrier(len(racers))

    def race(number: int) -> None:
        ready.wait()
        racers[number].try_connect(broker.ports[number % 3])

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(racers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connected = []
    for racer in racers:
        # All but the last winner are told that they were taken over, or were refused.
        racer.settle()
        connected += [racer] if racer.connected else []
    assert len(connected) == 1
    with Paho("judge", clean=True) as judge:
        judge.connect(broker.ports[0])
        connected[0].subscribe("race/#")
        judge.publish("race/x", "won")
        assert connected[0].message() == ("race/x", "won")
    for racer in racers:
        racer.leave()


def test_nothing_is_lost_while_the_client_hops_from_node_to_node(broker: BrokerProcess) -> None:
    count = 200
    with Paho("hopper") as client, Paho("steady", clean=True) as sender:
        client.connect(broker.ports[0])
        client.subscribe("hop/#")
        sender.connect(broker.ports[1])

        def send() -> None:
            for number in range(count):
                sender.publish("hop/x", str(number))

        sending = threading.Thread(target=send)
        sending.start()
        got: list[str] = []
        hop = 0
        while sending.is_alive():
            hop += 1
            client.vanish() if hop % 2 else client.leave()
            got += client.so_far()
            assert client.connect(broker.ports[hop % 3]) is True
        sending.join()
        if not got or got[-1] != str(count - 1):
            got += client.until(str(count - 1))
    # QoS 1: what was not acknowledged may come twice; the first times are in order.
    assert list(dict.fromkeys(got)) == [str(number) for number in range(count)]
    assert hop > 1


def test_a_kick_tells_the_client_why(broker: BrokerProcess) -> None:
    with Paho("kicked", five=True) as client:
        client.connect(broker.ports[2])
        client.subscribe("kicked/#")
        # At another node than its own.
        answer = broker.post("/v1/lcr/clients/kicked/kick", {"reason": "paid no rent"})
        assert answer == {"client_id": "kicked", "kicked": True}
        code, reason = client.closed()
        assert (code.value, reason) == (ADMINISTRATIVE_ACTION, "paid no rent")
        assert client.connect(broker.ports[2]) is False


def test_a_session_that_does_not_outlive_its_connection_leaves_no_row(
    broker: BrokerProcess,
) -> None:
    with Paho("brief", clean=True) as client, Paho("watcher", clean=True) as watcher:
        client.connect(broker.ports[0])
        client.subscribe("brief/#")
        client.leave()
        watcher.connect(broker.ports[1])
        # Behind the end of the session in the log, sooner or later.
        for _ in range(200):
            watcher.publish("brief/x", "anybody?")
            if not _known(broker, "brief"):
                break
        assert not _known(broker, "brief")


def _known(broker: BrokerProcess, client_id: str) -> bool:
    channels = broker.get(f"/v1/lcr/clients?from={client_id}&limit=1")["channels"]
    return any(row["client_id"] == client_id for row in channels)


@pytest.mark.parametrize("five", [True, False])
def test_a_session_that_ends_with_its_connection_is_not_taken_over(
    broker: BrokerProcess, five: bool
) -> None:
    """EMQX 18583: MQTT 5 with expiry 0, 3.1.1 with a clean session; in both orders."""
    name = f"brief-{five}"
    for leaves in (True, False):
        with (
            Paho(name, five=five, clean=True) as one,
            Paho(name, five=five) as two,
            Paho("s") as sender,
        ):
            one.connect(broker.ports[0])
            one.subscribe(f"{name}/#")
            if leaves:
                one.leave()
            assert two.connect(broker.ports[2]) is False
            if not leaves:
                code, _ = one.closed()
                assert not five or code.value == TAKEN_OVER
            sender.connect(broker.ports[1])
            sender.publish(f"{name}/x", "unwanted")
            two.subscribe(f"{name}/#")
            sender.publish(f"{name}/x", "new")
            assert two.until("new") == ["new"]
        # The lasting session of the second must not be there in the next round.
        with Paho(name, five=five, clean=True) as last:
            last.connect(broker.ports[1])
