"""What a simulated pool is asked: one request, and the protocol of a source of requests. Pure.

Generators and trace replays implement `Workload`; the simulation drives it. All times are virtual seconds
since the start of the run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Segment(NamedTuple):
    """A run of tokens inside a prompt. Segments equal in id and length hold equal tokens; others differ."""

    segment_id: int
    """Names the content: [0, 2**64)."""
    tokens: int
    """At least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """One request of a workload, with the true length of its answer.

    Two prompts share a prefix as far as their leading segments are equal.
    """

    request_id: str
    """Unique within a run."""
    arrival_s: float
    """When the client sends it, seconds since the start of the run."""
    prompt: tuple[Segment, ...]
    """At least one segment."""
    output_tokens: int
    """Tokens of the answer, at least 1. Policies must not read it; an oracle and the engines do."""
    output_segment: int
    """Segment id of the answer. The next turn of a chat repeats the answer as `Segment(output_segment,
    output_tokens)` inside its prompt."""
    model: str
    """The model that the client names, or the base model of `adapter`."""
    adapter: str | None = None
    """LoRA adapter; None for the base model."""
    tenant: str = ""
    """Fairness id; "" for none."""
    objective: str | None = None
    """Name of an InferenceObjective; None for none."""
    priority: int = 0
    """The priority that the objective gives. Negative: may be shed at saturation."""
    slo_ttft_ms: float | None = None
    """Longest time to first token that the client accepts, ms; None for any."""
    slo_tpot_ms: float | None = None
    """Longest mean time per output token after the first that the client accepts, ms; None for any."""
    session: str | None = None
    """The chat, agent or client that this request is a turn of; None for a request of its own."""
    stream: str = ""
    """Name of the part of the workload that made it, for figures by part."""

    @property
    def prompt_tokens(self) -> int:
        """Return the length of the prompt in tokens."""
        return sum(segment.tokens for segment in self.prompt)


class Workload(Protocol):
    """A source of requests for one run. It keeps the state of live sessions, so every run needs its own.

    A run calls `arrivals` once, takes one request from it at a time, and calls `finished` exactly once for
    every request that either of them gave. Times passed to `finished` do not run backwards.
    """

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Yield in order of `arrival_s` the requests that depend on no other; may be endless."""
        ...

    def finished(
        self, request: SimulatedRequest, now: float, *, served: bool = True
    ) -> Iterable[SimulatedRequest]:
        """Return the requests that follow the end of one, e.g. a chat's next turn after a think time.

        Each has `arrival_s >= now`; mostly there is none or one. `served` is False when the request was
        refused or failed: a chat then ends, and a client of a closed loop goes on after its think time or a
        second, whichever is longer.
        """
        ...
