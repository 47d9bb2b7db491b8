"""From a workload file's model to a workload for one run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pool_simulation.workload import Workload
from pool_simulation.workloads import traces
from pool_simulation.workloads.composite import Composite, Source
from pool_simulation.workloads.generate import GeneratedStream, Labels
from pool_simulation.workloads.segments import SegmentIds
from pool_simulation.workloads.spec import MAX_DURATION_S, Stream, Trace, WorkloadSpec

#: Length of a trace whose requests all come at once, seconds.
ONE_MOMENT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload whose traces were read once and found good. `start` may be called for every run."""

    spec: WorkloadSpec
    folder: Path
    duration_s: float
    """When the last arrival may come, at scale 1, seconds."""

    def start(
        self, seed: int, *, scale: float = 1.0, priorities: Mapping[str, int] | None = None
    ) -> Workload:
        """Return the workload for one run. `scale` multiplies rates, numbers of clients and traces' speeds.

        Equal seeds and scales give equal requests. `duration_s` holds at every scale, except that a workload
        of traces alone, without a duration, ends earlier at a higher speed. `priorities` are those of a
        pool's objectives; they replace the priorities that the file gives.
        """
        end_s = self.spec.duration_s or float("inf")
        sources: dict[str, Source] = {}
        listed: list[Stream | Trace] = [*self.spec.streams, *self.spec.traces]
        for number, each in enumerate(listed):
            labels = Labels(
                stream=each.name,
                model=each.model or self.spec.model,
                objective=each.objective,
                priority=(priorities or {}).get(each.objective or "", each.priority),
                slo=each.slo,
            )
            sources[each.name] = self._source(each, labels, SegmentIds(number), seed, end_s, scale)
        return Composite(sources)

    def _source(
        self, each: Stream | Trace, labels: Labels, ids: SegmentIds, seed: int, end_s: float, scale: float
    ) -> Source:
        if isinstance(each, Stream):
            return GeneratedStream(each, labels, ids, seed=seed, end_s=end_s, scale=scale)
        path = self.folder / each.file
        return traces.ReplayedTrace(each, path, labels, ids, seed=seed, end_s=end_s, scale=scale)


def prepare(spec: WorkloadSpec, folder: Path) -> Prepared:
    """Read the workload's traces, whose relative paths start at `folder`. Raises traces.TraceError.

    Without a `duration_s` the longest trace decides. Requests that all come at one moment have no rate: they
    count as those of `ONE_MOMENT_S`.
    """
    longest = 0.0
    for each in spec.traces:
        path = folder / each.file
        lasts = traces.scan(each, path).duration_s / each.speed
        if lasts > MAX_DURATION_S and spec.duration_s is None:
            days, most = lasts / 86_400, MAX_DURATION_S / 86_400
            message = f"lasts {days:.0f} days, and a run at most {most:.0f}; give it a speed, or a duration_s"
            raise traces.TraceError(path, [traces.Fault(0, message)])
        longest = max(longest, lasts)
    return Prepared(spec, folder, spec.duration_s or longest or ONE_MOMENT_S)
