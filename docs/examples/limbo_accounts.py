"""Transfers that count only when all nodes have them, and what happens when one is away.

    python docs/examples/limbo_accounts.py

Three nodes in one process; in a deployment each is a process of its own (docs/operations.md), and
all of them register the same validators.
"""

import asyncio

from raftkv.testing import LocalCluster
from raftkv_limbo import Limbo, LimboApi, Proposal, RolledBack, StillPending, Veto, Write


def limits(proposal: Proposal) -> None:
    """Runs on every node, on every transaction that waits. It says no by raising a Veto."""
    for write in proposal.writes:
        if write.space == "accounts" and int(write.value or b"0") < 0:
            raise Veto("an account would be in the red")


async def balance(limbo: LimboApi, name: bytes) -> int:
    row = await limbo.get("accounts", name, view="linearizable")
    return int(row.value) if row is not None else 0


async def transfer(limbo: LimboApi, source: bytes, target: bytes, amount: int) -> int:
    """Move money; returns the position. Another writer in between makes it `ConditionFailed`."""
    old_source = await limbo.get("accounts", source, view="pending")
    old_target = await limbo.get("accounts", target, view="pending")
    assert old_source is not None
    assert old_target is not None
    t = limbo.transaction()
    t.expect("accounts", source, position=old_source.position)
    t.expect("accounts", target, position=old_target.position)
    t.put("accounts", source, str(int(old_source.value) - amount).encode())
    t.put("accounts", target, str(int(old_target.value) + amount).encode())
    t.put("journal", f"{source.decode()}>{target.decode()}".encode(), str(amount).encode())
    done = await t.submit(timeout_s=2)
    return done.position


async def main() -> None:
    async with LocalCluster(cores=3, plugins=[Limbo()]) as cluster:
        first, second, third = (node.plugin(Limbo) for node in cluster.nodes)
        for limbo in (first, second, third):
            limbo.validator("limits", limits)

        await first.create_space("accounts", sync=True)
        await first.create_space("journal", sync=False)
        # All nodes must have it, and two of them must have checked it.
        await first.set_quorum("N", validators={"limits": 2})

        promoted = await first.promote(timeout_s=10)
        print("owner:", first.status().owner, "term:", promoted.term)
        start = [Write("accounts", b"ann", b"100"), Write("accounts", b"bob", b"0")]
        done = await first.submit(start)
        print(done.position, done.state)

        print(await transfer(first, b"ann", b"bob", 30), await balance(second, b"bob"))

        try:
            await transfer(first, b"ann", b"bob", 500)
        except RolledBack as error:
            print(error.position, "rolled back:", "in the red" in error.reason)
        print(await balance(first, b"ann"), await balance(third, b"bob"))

        # One node goes. Raft goes on without it; this quorum does not.
        await cluster.kill("core3")
        try:
            await transfer(first, b"ann", b"bob", 10)
        except StillPending as error:
            position = error.position
            print(position, first.verdict(position).fate, await balance(first, b"bob"))

        # Nothing was decided by that time-out. A smaller quorum confirms what waits.
        await first.set_quorum("N / 2 + 1")
        verdict = await first.wait_verdict(position)
        print(position, verdict.fate, await balance(second, b"bob"))


asyncio.run(main())
