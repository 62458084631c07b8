"""What the plugins are used for while the nodes change their release, all through the HTTP API."""

from __future__ import annotations

from typing import Any

from tests.upgrade.load import base64_of
from tests.upgrade.nodes import MixedCluster, NodeProcess

SPACE, QUEUE, DONE, TOPIC, SUBSCRIPTION = "accounts", "orders", "invoices", "news", "audit"
LCR_MODES = ("enabled", "dual")


class Usage:
    """A step of work in every plugin at once, and what all the steps must have left behind.

    The registry of lcr can only be filled by a broker inside the process, so its part is the
    replicated mode, whose change waits for an answer of every node.
    """

    def __init__(self, cluster: MixedCluster) -> None:
        self._cluster = cluster
        self.steps = 0

    def prepare(self) -> None:
        ask = self._cluster.nodes["core1"].ask
        ask("POST", "/v1/limbo/spaces", {"name": SPACE, "sync": True})
        for queue in (QUEUE, DONE):
            ask("PUT", f"/v1/txqueue/queues/{queue}", {})
        ask("PUT", f"/v1/subscriptions/topics/{TOPIC}", {})
        subscription = {"kind": "shared", "initial": "earliest"}
        ask("PUT", f"/v1/subscriptions/topics/{TOPIC}/subs/{SUBSCRIPTION}", subscription)

    def step(self, name: str) -> None:
        """Use every plugin once, at the node `name`, which must be a core. All nodes are up."""
        self.steps += 1
        node = self._cluster.nodes[name]
        outcome = node.ask("PUT", "/v1/conf/values/user.step", {"value": self.steps})
        assert outcome["outcome"] == "ok", outcome
        self._limbo(node)
        self._queue(node)
        self._subscription(node)
        mode = LCR_MODES[self.steps % len(LCR_MODES)]
        assert node.ask("PUT", "/v1/lcr/mode", {"mode": mode})["effective"] == mode

    def _limbo(self, node: NodeProcess) -> None:
        node.ask("POST", "/v1/limbo/promote", {})
        write = {"space": SPACE, "key": base64_of(f"{self.steps:04d}"), "value": "eA=="}
        answer = node.ask("POST", "/v1/limbo/submit", {"writes": [write]})
        assert answer["state"] == "confirmed", answer

    def _queue(self, node: NodeProcess) -> None:
        """Publish one message, then take it and publish an invoice in one transaction."""
        message = {"body": base64_of(f"order {self.steps}")}
        node.ask("POST", f"/v1/txqueue/queues/{QUEUE}/publish", {"messages": [message]})
        session = node.ask("POST", "/v1/txqueue/sessions", {"kind": "tx"})
        number, transaction = session["session"], session["txid"]
        got = node.ask("POST", f"/v1/txqueue/sessions/{number}/get", {"queue": QUEUE, "wait_s": 5})
        assert [each["body"] for each in got["messages"]] == [message["body"]], got
        invoice = {"publish": DONE, "messages": [{"body": base64_of(f"invoice {self.steps}")}]}
        accept = {"accept": QUEUE, "seqs": [each["seq"] for each in got["messages"]]}
        committed = node.ask(
            "POST", f"/v1/txqueue/tx/{transaction}/commit", {"operations": [accept, invoice]}
        )
        assert committed["state"] == "committed", committed
        node.ask("DELETE", f"/v1/txqueue/sessions/{number}")

    def _subscription(self, node: NodeProcess) -> None:
        path = "/v1/subscriptions"
        message = {"body": base64_of(f"news {self.steps}")}
        node.ask("POST", f"{path}/topics/{TOPIC}/publish", {"messages": [message]})
        asked = {"topic": TOPIC, "sub": SUBSCRIPTION, "kind": "shared", "initial": "earliest"}
        consumer = node.ask("POST", f"{path}/consumers", asked)["consumer"]
        got = node.ask("POST", f"{path}/consumers/{consumer}/receive", {"count": 10, "wait_s": 5})
        assert [each["body"] for each in got["messages"]] == [message["body"]], got
        positions = [each["position"] for each in got["messages"]]
        node.ask("POST", f"{path}/consumers/{consumer}/ack", {"positions": positions})
        node.ask("DELETE", f"{path}/consumers/{consumer}")

    def check(self) -> None:
        """What all the steps have left behind, as every node holds it itself."""
        numbers = range(1, self.steps + 1)
        for name, node in self._cluster.nodes.items():
            view = self.view(node)
            assert view["accounts"] == [base64_of(f"{n:04d}") for n in numbers], name
            assert view["orders"] == [], name
            invoices = [each["body"] for each in view["invoices"]]
            assert invoices == [base64_of(f"invoice {n}") for n in numbers], name
            news = [each["body"] for each in view["news"]]
            assert news == [base64_of(f"news {n}") for n in numbers], name
            assert view["mark"] == view["news"][-1]["position"], name
            assert view["lcr"][0] == LCR_MODES[self.steps % len(LCR_MODES)], name
        for name in self._cluster.cores:
            value = self._cluster.nodes[name].ask("GET", "/v1/conf/values/user.step")["value"]
            assert value == self.steps, name

    def view(self, node: NodeProcess) -> dict[str, Any]:
        """What a node holds of the plugins itself, without what differs between nodes by design."""
        local = "consistency=local"
        limbo = node.ask("GET", f"/v1/limbo/status?{local}")
        rows = node.ask("POST", "/v1/limbo/range", {"space": SPACE, "start": "", "limit": 1000})
        queue = f"/v1/txqueue/queues/%s/messages?{local}&all=true&limit=1000"
        topic = f"/v1/subscriptions/topics/{TOPIC}"
        calls = node.ask("GET", f"/v1/calls/status?{local}&all=true&limit=1000")
        mode = node.ask("GET", "/v1/lcr/mode")
        return {
            "accounts": [row["key"] for row in rows["rows"]],
            "limbo": [limbo[key] for key in ("owner", "term", "last", "confirmed", "spaces")],
            "orders": node.ask("GET", queue % QUEUE)["messages"],
            "invoices": node.ask("GET", queue % DONE)["messages"],
            "news": node.ask("GET", f"{topic}/messages?limit=1000")["messages"],
            "mark": node.ask("GET", f"{topic}/subs/{SUBSCRIPTION}")["mark"],
            "calls": [
                (c["id"], c["function"], c["created_ms"], c["state"]) for c in calls["calls"]
            ],
            "lcr": (mode["mode"], mode["epoch"]),
        }
