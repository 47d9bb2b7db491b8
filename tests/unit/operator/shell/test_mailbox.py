import asyncio
import threading

from inference_operator.shell.mailbox import Mailbox


class _CountingLoop(asyncio.SelectorEventLoop):
    """Counts the bytes that other threads write into its wake-up pipe."""

    wakes = 0

    def _write_to_self(self) -> None:
        self.wakes += 1
        super()._write_to_self()  # type: ignore[misc]


def test_a_flood_from_a_thread_wakes_the_loop_once_and_loses_nothing() -> None:
    loop = _CountingLoop()
    taken: list[int] = []
    mailbox: Mailbox[int] = Mailbox(loop, taken.append)

    async def main() -> None:
        def flood() -> None:
            for number in range(5000):
                mailbox.put(number, number)

        thread = threading.Thread(target=flood)
        thread.start()
        thread.join()  # the loop does not turn meanwhile
        while len(taken) < 5000:  # noqa: ASYNC110 - nothing signals the end
            await asyncio.sleep(0)

    loop.run_until_complete(main())
    assert taken == list(range(5000))
    assert loop.wakes == 1
    loop.close()
    mailbox.put(0, 0)


def test_only_the_latest_of_a_key_waits() -> None:
    async def main() -> list[str]:
        taken: list[str] = []
        mailbox: Mailbox[str] = Mailbox(asyncio.get_running_loop(), taken.append)
        for text in ("old", "newer", "newest"):
            mailbox.put("key", text)
        mailbox.put("other", "x")
        await asyncio.sleep(0.01)
        mailbox.put("key", "again")
        await asyncio.sleep(0.01)
        return taken

    assert asyncio.run(main()) == ["newest", "x", "again"]


def test_an_item_that_cannot_be_taken_in_does_not_hold_up_the_others() -> None:
    async def main() -> list[int]:
        taken: list[int] = []

        def deliver(item: int) -> None:
            if item == 1:
                raise ValueError(item)
            taken.append(item)

        mailbox: Mailbox[int] = Mailbox(asyncio.get_running_loop(), deliver)
        for number in range(3):
            mailbox.put(number, number)
        await asyncio.sleep(0.01)
        return taken

    assert asyncio.run(main()) == [0, 2]
