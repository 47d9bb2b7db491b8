"""A dict by 64-bit keys that is cut in parts, so that no single insertion takes long. Pure.

Python enlarges a dict in one step: 20 ms at 350,000 entries, 92 ms at 1,400,000. The parts are enlarged one
by one, and, as their fills differ by chance, at different times. A key's lowest bits say which part has it;
the keys are hashes. Keys that share these bits share a part, which is then as slow as one dict.

Hot loops read `parts[key & mask]` themselves: a call would take longer than the access.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Shards(Generic[Value]):
    """Parts of a dict."""

    __slots__ = ("mask", "parts")

    def __init__(self, count: int) -> None:
        self.mask = count - 1
        """`count` is a power of two."""
        self.parts: list[dict[int, Value]] = [{} for _ in range(count)]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def get(self, key: int) -> Value | None:
        """Return the key's value; None when it has none."""
        return self.parts[key & self.mask].get(key)

    def items(self) -> Iterator[tuple[int, Value]]:
        """Yield all keys and values."""
        for part in self.parts:
            yield from part.items()

    def take_values(self) -> Iterator[Value]:
        """Yield all values, and free the parts on the way, as freeing all of them at once would take long."""
        while self.parts:
            yield from self.parts.pop().values()
