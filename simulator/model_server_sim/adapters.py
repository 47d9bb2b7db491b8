"""LoRA slots: which adapters run, and which stay loaded while idle. Pure."""

from collections import OrderedDict


class AdapterSlots:
    """A number of slots. Without an empty one, a load takes that of the adapter unused for longest."""

    __slots__ = ("_loaded", "_slots", "uses")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self.uses: dict[str, int] = {}
        """Running sequences of each adapter that has any."""

    @property
    def loaded(self) -> list[str]:
        """Return the adapters in slots, least recently used first."""
        return list(self._loaded)

    def has_room_for(self, adapter: str) -> bool:
        """Return whether the adapter runs already or a slot has no running sequence."""
        return adapter in self.uses or len(self.uses) < self._slots

    def occupy(self, adapter: str) -> bool:
        """Count one more running sequence of an adapter that has room; return whether it has to be loaded."""
        self.uses[adapter] = self.uses.get(adapter, 0) + 1
        if adapter in self._loaded:
            self._loaded.move_to_end(adapter)
            return False
        if len(self._loaded) >= self._slots:
            del self._loaded[next(name for name in self._loaded if name not in self.uses)]
        self._loaded[adapter] = None
        return True

    def leave(self, adapter: str) -> None:
        """Count one running sequence less; the adapter stays loaded."""
        left = self.uses[adapter] - 1
        if left:
            self.uses[adapter] = left
        else:
            del self.uses[adapter]
