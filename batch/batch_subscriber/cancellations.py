"""The interface of cancelled groups."""

from collections.abc import Collection
from typing import Protocol


class Cancellations(Protocol):
    """Groups of jobs that are cancelled. The worker asks several times a second, for the groups it holds."""

    async def cancel(self, group: str) -> None:
        """Note durably that no job of a group is to run any more; repeating it is harmless."""
        ...

    async def cancelled(self, groups: Collection[str]) -> set[str]:
        """Return those of `groups` that are cancelled."""
        ...

    async def close(self) -> None:
        """Let go of files and connections."""
        ...
