"""The time when an ended container starts again, as by a kubelet. Pure; times are seconds of one clock."""

from dataclasses import dataclass
from typing import Final

INITIAL_S: Final = 10.0
LONGEST_S: Final = 300.0
#: A run at least this long clears the record.
RESET_AFTER_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Record:
    """The wait after the next end (0: none ended soon yet), and the earliest time of the next start."""

    delay_s: float = 0.0
    not_before: float = 0.0


def after_end(record: Record, *, started: float, ended: float) -> Record:
    """Return the record after a run: the first restart is immediate, then 10 s doubling up to 5 minutes."""
    if ended - started >= RESET_AFTER_S:
        record = Record()
    if record == Record():
        return Record(INITIAL_S, ended)
    return Record(min(record.delay_s * 2, LONGEST_S), ended + record.delay_s)


def may_restart(policy: str, exit_code: int) -> bool:
    """Return whether the pod's restartPolicy restarts a container that ended with `exit_code`."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)
