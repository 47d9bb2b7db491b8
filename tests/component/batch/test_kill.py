"""Two subscribers killed at every step: every job has one result. `make test-batch-kill`: 100 times."""

from pathlib import Path

from batch_kills import KillRun
from batch_victim import Victims


async def test_every_job_has_one_result_whatever_is_killed(tmp_path: Path) -> None:
    victims = Victims()
    await victims.open()
    try:
        run = KillRun(tmp_path, victims, seed=1)
        await run.run()
        assert run.kills.total() == 8
    finally:
        await victims.close()
