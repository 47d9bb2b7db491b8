import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference_operator.shell.supervision import DEAD_AFTER, SETTLED_AFTER, Supervisor
from virtual_time import run_virtual


async def _fail() -> None:
    raise ValueError("broken")


async def _return() -> None:
    return None


@pytest.mark.parametrize("work", [_fail, _return])
def test_a_part_that_keeps_ending_is_dead_after_a_while(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        supervisor = Supervisor(asyncio.get_running_loop().time)
        supervisor.start("worker", work, "worker-3")
        await asyncio.sleep(1.0)
        assert not supervisor.dead()
        await asyncio.sleep(DEAD_AFTER * 30.0)
        assert supervisor.dead() == ["worker-3"]
        await supervisor.close()
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_ends_that_lie_far_apart_are_forgiven() -> None:
    async def main() -> None:
        async def work() -> None:
            await asyncio.sleep(SETTLED_AFTER)
            raise ValueError("now and then")

        supervisor = Supervisor(asyncio.get_running_loop().time)
        supervisor.start("worker", work)
        await asyncio.sleep(3 * DEAD_AFTER * SETTLED_AFTER)
        assert not supervisor.dead()
        await supervisor.close()

    run_virtual(main())


def test_a_part_that_was_dead_and_runs_again_is_not_dead() -> None:
    async def main() -> None:
        broken = True

        async def work() -> None:
            if broken:
                raise ValueError("broken")
            await asyncio.Event().wait()

        supervisor = Supervisor(asyncio.get_running_loop().time)
        supervisor.start("worker", work, "worker-3")
        await asyncio.sleep(DEAD_AFTER * 30.0)
        assert supervisor.dead() == ["worker-3"]
        broken = False
        await asyncio.sleep(30.0)
        assert supervisor.dead() == ["worker-3"]  # it may end again at once
        await asyncio.sleep(SETTLED_AFTER)
        assert supervisor.dead() == []
        await supervisor.close()

    run_virtual(main())


def test_a_part_that_was_stopped_does_not_begin_anew() -> None:
    async def main() -> None:
        begun = 0

        async def work() -> None:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()

        supervisor = Supervisor(asyncio.get_running_loop().time)
        part = supervisor.start("pods", work)
        await asyncio.sleep(1.0)
        supervisor.stop(part)
        await asyncio.sleep(100.0)
        assert begun == 1
        assert supervisor.parts("pods") == []

    run_virtual(main())


def test_closing_does_not_wait_for_a_part_that_ignores_its_cancellation() -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def work() -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue

        supervisor = Supervisor(asyncio.get_running_loop().time)
        supervisor.start("worker", work)
        await asyncio.sleep(1.0)
        async with asyncio.timeout(60.0):
            await supervisor.close()
        over.set()

    run_virtual(main())
