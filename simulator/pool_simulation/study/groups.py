"""Groups of replicas that differ in their pods' labels, such as the roles of a disaggregated pool. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

Labels = tuple[tuple[str, str], ...]
"""(label, value) pairs, sorted."""


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas of one kind."""

    labels: Labels
    """Labels of the pods."""
    replicas: int
    """At least 1; against those of the other groups, their share of a pool of another size."""


def shared_out(groups: Sequence[Group], replicas: int) -> list[int]:
    """Return how many of `replicas` each group has: in proportion, none without one as far as they go.

    The largest remainders are rounded up, of equal ones the first (Hamilton's method).
    """
    total = sum(each.replicas for each in groups)
    left = replicas - len(groups)
    if left < 0:
        return [1] * replicas + [0] * (len(groups) - replicas)
    wanted = [max(0.0, replicas * each.replicas / total - 1) for each in groups]
    scale = left / sum(wanted) if sum(wanted) else 0.0
    parts = [each * scale for each in wanted]
    counts = [1 + int(part) for part in parts]
    by_remainder = sorted(range(len(groups)), key=lambda at: int(parts[at]) - parts[at])
    for at in by_remainder[: replicas - sum(counts)]:
        counts[at] += 1
    return counts
