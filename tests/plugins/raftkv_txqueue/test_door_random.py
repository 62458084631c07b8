"""Random requests to all routes: each is answered, in the door's shape, and the state stays sound.

A seed that fails is named in the test's id; `REQUESTS` of them are made in one world.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from raftkv.errors import RaftkvError
from raftkv.plugin import Request, Route
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import FakeCluster, FakeHost
from raftkv_txqueue import TxQueue, TxQueueApi, TxQueueOptions, bodies

REQUESTS = 800
MESSAGE = {"body": "eA=="}
ODD: Sequence[Any] = (
    0, 1, -1, 2**63, 10**30, 1.5, True, None, "", "a", "1.1", "1:61:01", "x" * 300, [], {}, [0],
    [MESSAGE], [{"body": "!"}], [{"publish": "a", "messages": [MESSAGE]}], [{"publish": "a"}],
    [{"accept": "a", "seqs": [1]}], "accept", "tx", "commit",
)  # fmt: skip
#: What stands for a captured segment.
PLACES: dict[str, Sequence[str]] = {
    "queue": ("a", "b", "nowhere", "x" * 300, "\0", "a/b"),
    "id": ("1", "2", "3", "4", "0", "x", "9" * 20),
    "txid": ("1.1", "2.1", "2.2", "3.1", "x", "2.", "2." + "9" * 20),
    "xid": ("1:61:01", "1:61:02", "x", "1:6:", "-1:61:"),
    "key": ("queues_max", "x"),
}
FIELDS = sorted(
    {
        field
        for name, kind in vars(bodies).items()
        if name.startswith("Wanted") and name not in ("Wanted", "WantedOperation")
        for field in kind.__struct_fields__
    }
    - {"wait_s"}
)


def sensible(rng: random.Random, path: str, sessions: Sequence[str]) -> dict[str, Any]:
    """A body that may well be what the route asks for. `sessions`: those that were opened."""
    queue = rng.choice("ab")
    publishes = {"publish": queue, "messages": [MESSAGE] * rng.randint(1, 3)}
    accepts = {"accept": queue, "seqs": [rng.randint(1, 9)]}
    operations = {"operations": [rng.choice([publishes, accepts])]}
    match path.rpartition("/")[2]:
        case "sessions":
            return {"kind": rng.choice(["plain", "tx", "dtx"])}
        case "get":
            return {"queue": queue, "count": rng.randint(1, 3)}
        case "settle":
            how = rng.choice(["accept", "release", "reject"])
            return {"queue": queue, "seqs": [rng.randint(1, 20)], "how": how}
        case "publish":
            return {"messages": [MESSAGE] * rng.randint(1, 3)}
        case "{queue}":
            return {"depth_max": rng.choice([0, 3, 50])}
        case "tx" | "start" | "end":
            return {"session": rng.choice(sessions)}
        case "stage" if path.startswith("dtx"):
            return {"session": rng.choice(sessions), **operations}
        case "stage" | "commit" if path.startswith("tx"):
            return operations
        case "heuristic":
            return {"decide": rng.choice(["commit", "rollback"])}
        case _:
            return {}


def asked(rng: random.Random, route: Route, sessions: Sequence[str]) -> Request:
    body = sensible(rng, route.path, sessions)
    if rng.random() < 0.4:
        body |= {field: rng.choice(ODD) for field in rng.sample(FIELDS, rng.randint(0, 2))}
        for field in ("timeout_s", "wait_s"):
            if isinstance(body.get(field), int | float):
                body[field] = 0.5
    data = json.dumps(body).encode() if rng.random() < 0.97 else rng.randbytes(9)
    params = {name: rng.choice(PLACES[name]) for name in re.findall(r"\{(\w+)\}", route.path)}
    session = rng.choice(sessions)
    if rng.random() < 0.8:
        opened = {"id": session, "txid": f"{session}.{rng.randint(1, 3)}"}
        params |= {name: opened[name] for name in params if name in opened}
    query = {"consistency": "local"} if rng.random() < 0.05 else {}
    return Request(params, query, data, "")


async def play(seed: int) -> Counter[int]:
    """How often each status was answered; 0: left to the door, as a RaftkvError."""
    rng = random.Random(seed)
    cluster: FakeCluster[FakeHost[TxQueueApi]] = FakeCluster(
        TxQueue, 2, options=TxQueueOptions(door_idle_s=30)
    )
    await cluster.start()
    nodes = list(cluster.nodes.values())
    doors = [list(node.service.routes()) for node in nodes]
    for queue in "ab":
        await nodes[0].opened.declare(queue)
    seen: Counter[int] = Counter()
    sessions = ["1-00"]
    for _ in range(REQUESTS):
        route = rng.choice(rng.choices(doors, (4, 1))[0])
        try:
            answer = await route.handler(asked(rng, route, sessions[-6:]))
        except RaftkvError:
            seen[0] += 1
            continue
        text = msgspec.json.encode(answer.body)
        seen[answer.status] += 1
        if route.path == "sessions" and "session" in answer.body:
            sessions.append(answer.body["session"])
        if answer.status >= 400:
            assert {"error", "message", "code", "reason"} <= set(json.loads(text)), route.path
    await asyncio.sleep(60)
    cluster.check()
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_every_request_is_answered(seed: int) -> None:
    seen = run(play(seed))
    # The test would show nothing if hardly any request were good, or bad.
    assert min(seen[200], seen[400], seen[404], seen[409]) > REQUESTS / 50, seen
