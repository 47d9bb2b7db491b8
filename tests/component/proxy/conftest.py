"""The standalone proxy and all around it, started by a test with the failure mode it needs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

import pool_proxy

StartProxy = Callable[[bool], Awaitable[pool_proxy.Proxy]]


@pytest.fixture
async def start_proxy() -> AsyncIterator[StartProxy]:
    """Start a proxy of failureMode FailOpen (True) or FailClose, and wait until it follows its picker."""
    async with AsyncExitStack() as stack:

        async def start(fail_open: bool) -> pool_proxy.Proxy:
            return await pool_proxy.start(stack, fail_open=fail_open)

        yield start
