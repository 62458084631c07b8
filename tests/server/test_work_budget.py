"""However many requests have long work to do, a turn of the loop holds one piece of it."""

from __future__ import annotations

import asyncio

from raftkv.server.work_budget import WORK_MAX, WorkBudget


async def turns_taken(works: int, units: int) -> list[int]:
    """In which turn of the loop each of `works` pieces was done."""
    turns, now, done = WorkBudget(), 0, []

    async def work() -> None:
        await turns.room()
        done.append(now)
        turns.spend(units)

    tasks = [asyncio.create_task(work()) for _ in range(works)]
    while len(done) < works:
        now += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return done


def test_long_pieces_are_done_one_in_each_turn() -> None:
    done = asyncio.run(turns_taken(50, WORK_MAX))
    assert len(set(done)) == 50
    assert done == sorted(done)


def test_short_pieces_share_a_turn() -> None:
    assert len(set(asyncio.run(turns_taken(50, WORK_MAX // 100)))) == 1


def test_half_a_turn_is_done_twice_before_others_wait() -> None:
    done = asyncio.run(turns_taken(10, WORK_MAX // 2))
    assert done[0] == done[1] < done[2]
    assert len(set(done[1:])) == 9


def test_who_is_cancelled_while_it_waits_hinders_nobody() -> None:
    async def play() -> None:
        turns = WorkBudget()
        await turns.turn()
        tasks = [asyncio.create_task(turns.turn()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [False, True, False]
        await turns.turn()

    asyncio.run(play())
