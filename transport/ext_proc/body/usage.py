"""Token usage as model servers report it, in all dialects. Pure."""

from typing import Final


class Usage:
    """Token counts as the model server reports them; 0 for a count that it leaves out."""

    __slots__ = ("cached_tokens", "input_tokens", "output_tokens")

    def __init__(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> None:
        self.input_tokens = input_tokens
        """Tokens of the prompt, those from a cache among them."""
        self.output_tokens = output_tokens
        self.cached_tokens = cached_tokens
        """Tokens of the prompt that came from a cache."""


#: Members of the usage that most servers report.
_PLAIN: Final = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})
#: Counts of 2**53 and more are read as none.
_MAX_COUNT: Final = 1 << 53


class UsageMerge:
    """Adds up what one response says about usage in one place or in several.

    A later count replaces an earlier one, except that 0 replaces nothing: servers repeat counts, refine
    them, and leave out or zero those that another event has given. Anthropic's `input_tokens` leaves out
    what was read from or written to the cache; here it does not.
    """

    __slots__ = ("_cache_read", "_cache_written", "_cached", "_input", "_output", "_seen")

    def __init__(self) -> None:
        self._seen = False
        self._input = self._output = self._cached = self._cache_read = self._cache_written = 0

    def add(self, found: object) -> None:
        """Take a decoded `usage` object, or SGLang's `meta_info`; what is no object says nothing."""
        if not isinstance(found, dict):
            return
        self._seen = True
        get = found.get
        self._input = _count(get("prompt_tokens")) or _count(get("input_tokens")) or self._input
        self._output = _count(get("completion_tokens")) or _count(get("output_tokens")) or self._output
        if found.keys() <= _PLAIN:
            return
        details = get("prompt_tokens_details") or get("input_tokens_details")
        if isinstance(details, dict):
            self._cached = _count(details.get("cached_tokens")) or self._cached
        self._cached = _count(get("cached_tokens")) or self._cached
        self._cache_read = _count(get("cache_read_input_tokens")) or self._cache_read
        self._cache_written = _count(get("cache_creation_input_tokens")) or self._cache_written

    @property
    def usage(self) -> Usage | None:
        """What is known; None without a usage object."""
        if not self._seen:
            return None
        counted = self._input + self._cache_read + self._cache_written
        return Usage(counted, self._output, self._cached or self._cache_read)


def _count(value: object) -> int:
    """Return a count; 0 for what is no whole number from 0 to 2**53, as for what is not there."""
    return value if type(value) is int and 0 <= value < _MAX_COUNT else 0
