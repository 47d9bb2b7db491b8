"""For every test: no property test is timed, and a file of tests answers for what it leaves open."""

import gc
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell's background jobs ignore SIGINT, their children as well; tests send it to the commands they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Collect garbage at a file's end: an open socket in a cycle fails its own file, not a later one."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
