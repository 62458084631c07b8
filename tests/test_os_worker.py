"""The thread for blocking work: order, errors, cancellation, its end and what it keeps alive."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from raftkv.runtime import OsRuntime, OsWorker


def a_worker() -> OsWorker:
    return OsWorker(asyncio.get_running_loop(), "test-worker")


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def run(test: Callable[[], object]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))  # type: ignore[arg-type]


def test_jobs_run_in_order_in_one_other_thread() -> None:
    async def test() -> None:
        worker, seen = a_worker(), []
        futures = [worker.submit(lambda n=n: seen.append(n) or n, ()) for n in range(100)]
        idents = [worker.submit(threading.get_ident, ()) for _ in range(2)]
        assert await asyncio.gather(*futures) == list(range(100)) == seen
        found = await asyncio.gather(*idents)
        assert len(set(found)) == 1
        assert found[0] != threading.get_ident()
        worker.close()

    run(test)


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyError("x"), KeyboardInterrupt()])
def test_an_error_reaches_its_caller_and_the_worker_goes_on(error: BaseException) -> None:
    async def test() -> None:
        worker = a_worker()

        def fail() -> None:
            raise error

        failed, fine = worker.submit(fail, ()), worker.submit(max, (1, 2))
        assert await fine == 2
        assert failed.exception() is error
        worker.close()

    run(test)


def test_what_was_cancelled_before_its_turn_is_not_run() -> None:
    async def test() -> None:
        worker, seen = a_worker(), []
        gate = threading.Event()
        first = worker.submit(gate.wait, ())
        second = worker.submit(seen.append, (2,))
        third = worker.submit(seen.append, (3,))
        second.cancel()
        gate.set()
        await asyncio.gather(first, third)
        assert seen == [3]
        worker.close()

    run(test)


def test_a_result_for_somebody_who_gave_up_is_dropped() -> None:
    async def test() -> None:
        worker = a_worker()
        begun, gate = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            gate.wait()

        given_up = worker.submit(work, ())
        await asyncio.get_running_loop().run_in_executor(None, begun.wait)
        given_up.cancel()
        gate.set()
        assert await worker.submit(max, (1, 2)) == 2
        worker.close()

    run(test)


def test_close_lets_what_was_submitted_be_done_and_takes_no_more() -> None:
    async def test() -> None:
        worker, gate = a_worker(), threading.Event()
        first, second = worker.submit(gate.wait, ()), worker.submit(max, (1, 2))
        (thread,) = threads_named("test-worker")
        worker.close()
        worker.close()
        with pytest.raises(RuntimeError, match="closed"):
            worker.submit(max, (1, 2))
        gate.set()
        assert await first
        assert await second == 2
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    run(test)


def test_there_is_no_thread_before_the_first_job() -> None:
    async def test() -> None:
        runtime = OsRuntime()
        assert not threads_named("raftkv-disk")
        assert await runtime.offload(max, 1, 2) == 2
        assert len(threads_named("raftkv-disk")) == 1
        assert not threads_named("raftkv-bulk")
        (thread,) = threads_named("raftkv-disk")
        runtime.close()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    run(test)


def test_a_worker_that_is_forgotten_takes_its_thread_along() -> None:
    async def test() -> None:
        worker = a_worker()
        await worker.submit(max, (1, 2))
        (thread,) = threads_named("test-worker")
        del worker
        gc.collect()
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    run(test)


def test_the_thread_keeps_nothing_of_a_job_alive() -> None:
    class Thing:
        pass

    async def test() -> None:
        worker, thing = a_worker(), Thing()
        gone = weakref.ref(thing)
        assert await worker.submit(lambda held: held is not None, (thing,))
        # The job before this one has been let go of by then.
        await worker.submit(max, (1, 2))
        del thing
        assert gone() is None
        worker.close()

    run(test)


def test_a_job_may_end_after_its_loop() -> None:
    gate, threads = threading.Event(), []

    async def test() -> None:
        worker = a_worker()
        worker.submit(gate.wait, ())
        threads.extend(threads_named("test-worker"))
        worker.close()

    run(test)
    gate.set()
    threads[0].join(30)
    assert not threads[0].is_alive()


def test_a_process_that_forgets_to_close_ends_all_the_same() -> None:
    source = (
        "import asyncio\n"
        "from raftkv.runtime import OsRuntime\n"
        "async def main():\n"
        "    global kept\n"
        "    kept = OsRuntime()\n"
        "    print(await kept.offload(max, 1, 2))\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "2", "")
