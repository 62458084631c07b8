"""What keys and plugins are used for while the nodes change their release, by the HTTP API."""

from __future__ import annotations

from typing import Any

from tests.upgrade.load import base64_of
from tests.upgrade.nodes import Body, MixedCluster, NodeProcess

SPACE, QUEUE, DONE, BRANCHED, TOPIC, SUBSCRIPTION = (
    "accounts", "orders", "invoices", "branched", "news", "audit"
)  # fmt: skip
LEASE_S = 3600
# So many revisions of the load stay readable behind a compaction.
COMPACT_BEHIND = 5
LCR_MODES = ("enabled", "dual")


class Usage:
    """A step of work in the keyspace and every plugin, and what all steps must have left behind.

    The registry of lcr can only be filled by a broker inside the process, so its part is the
    replicated mode, whose change waits for an answer of every node.
    """

    def __init__(self, cluster: MixedCluster) -> None:
        self._cluster = cluster
        self.steps = 0

    def prepare(self) -> None:
        ask = self._cluster.nodes["core1"].ask
        ask("POST", "/v1/limbo/spaces", {"name": SPACE, "sync": True})
        for queue in (QUEUE, DONE, BRANCHED):
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
        self._keys(node)
        self._limbo(node)
        self._queue(node)
        self._branch(node)
        self._subscription(node)
        mode = LCR_MODES[self.steps % len(LCR_MODES)]
        assert node.ask("PUT", "/v1/lcr/mode", {"mode": mode})["effective"] == mode

    def _keys(self, node: NodeProcess) -> None:
        """Leases, transactions that write and that only read, a deleted range, a compaction."""
        lease = {"ID": self.steps, "TTL": LEASE_S}
        node.ask("POST", "/v3/lease/grant", lease)
        own, counter = base64_of(f"step/{self.steps:04d}"), base64_of("counter")
        held = {"key": own, "value": base64_of("held"), "lease": self.steps}
        counted = {"key": counter, "value": base64_of(str(self.steps))}
        former = base64_of(str(self.steps - 1))
        compare: Body = {"key": counter, "target": "VALUE", "result": "EQUAL", "value": former}
        if self.steps == 1:
            compare = {"key": counter, "target": "VERSION", "result": "EQUAL", "version": 0}
        puts = [{"requestPut": held}, {"requestPut": counted}]
        done = node.ask("POST", "/v3/kv/txn", {"compare": [compare], "success": puts})
        assert done["succeeded"] is True, done
        read = node.ask("POST", "/v3/kv/txn", {"success": [{"requestRange": {"key": counter}}]})
        (row,) = read["responses"][0]["response_range"]["kvs"]
        assert row["value"] == counted["value"], row
        if self.steps % 2 == 0:
            # The key of the step before goes with its lease, the one before that with the range.
            node.ask("POST", "/v3/lease/revoke", {"ID": self.steps - 1})
            ends = {"key": base64_of("step/"), "range_end": own}
            node.ask("POST", "/v3/kv/deleterange", ends)
        revision = int(done["header"]["revision"])
        if revision > COMPACT_BEHIND:  # the first step may come before many writes
            node.ask("POST", "/v3/kv/compaction", {"revision": revision - COMPACT_BEHIND})

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

    def _branch(self, node: NodeProcess) -> None:
        """A branch of a distributed transaction, with both phases, on a third queue."""
        session = node.ask("POST", "/v1/txqueue/sessions", {"kind": "dtx"})["session"]
        path = f"/v1/txqueue/dtx/1:{self.steps:04x}:01"
        node.ask("POST", f"{path}/start", {"session": session})
        stage = {"publish": BRANCHED, "messages": [{"body": base64_of(f"branch {self.steps}")}]}
        node.ask("POST", f"{path}/stage", {"session": session, "operations": [stage]})
        node.ask("POST", f"{path}/end", {"session": session})
        node.ask("POST", f"{path}/prepare")
        node.ask("POST", f"{path}/commit", {"one_phase": False})
        node.ask("DELETE", f"/v1/txqueue/sessions/{session}")

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
            branched = [each["body"] for each in view["branched"]]
            assert branched == [base64_of(f"branch {n}") for n in numbers], name
            # A lease is left of every step but those before an even one.
            assert view["leases"] == [n for n in numbers if n % 2 == 0 or n == self.steps], name
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
        leases = node.ask("POST", "/v3/lease/leases", {})["leases"]
        return {
            "accounts": [row["key"] for row in rows["rows"]],
            "limbo": [limbo[key] for key in ("owner", "term", "last", "confirmed", "spaces")],
            "orders": _without_new(node.ask("GET", queue % QUEUE)["messages"]),
            "invoices": _without_new(node.ask("GET", queue % DONE)["messages"]),
            "branched": _without_new(node.ask("GET", queue % BRANCHED)["messages"]),
            "leases": sorted(int(each["ID"]) for each in leases),
            "news": node.ask("GET", f"{topic}/messages?limit=1000")["messages"],
            "mark": node.ask("GET", f"{topic}/subs/{SUBSCRIPTION}")["mark"],
            "calls": [
                (c["id"], c["function"], c["created_ms"], c["state"]) for c in calls["calls"]
            ],
            "lcr": (mode["mode"], mode["epoch"]),
        }


def _without_new(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what 0.1.0 does not tell of a message."""
    return [{key: each[key] for key in each if key != "holder"} for each in messages]
