"""Which endpoints make progress: requests that get no answer, and metrics pages that stand still. Pure.

An endpoint *stalls* when STALL_REQUESTS of this picker's requests or more wait for their first byte there,
and for the patience there was no sign of life: no first byte, no answer and no change of its metrics page. A
stalled endpoint gets no requests while another candidate does not stall, apart from probes: one request
after PROBE_S, then each time after twice as long. The first sign of life ends the stall.

A metrics page *stands still* when its values have not changed for STALE_AFTER_S although the endpoint
answered STILL_ANSWERS requests meanwhile, and they show load, or less load than this picker's own requests
make. The endpoint then counts as loaded like the others, plus or minus what the ledger shows, so that it gets
its share: it works, and only its page does not. So does an endpoint whose page no longer comes, as long as it
answers requests.
"""

from typing import Final

import numpy as np

from endpoint_picker.datalayer.contact import Contact
from endpoint_picker.datalayer.table import STALE_AFTER_S, EndpointTable, Rows

#: Requests without a first byte from which an endpoint without a sign of life stalls.
STALL_REQUESTS: Final = 8
#: Least patience, seconds. It is PATIENCE times the pool's mean time to the first byte if that is longer.
STALL_S: Final = 1.0
PATIENCE: Final = 4.0
#: Share of the newest request in the mean time to the first byte.
_NEWEST: Final = 0.05
#: Seconds until the first probe, and the longest pause between two probes.
PROBE_S: Final = 1.0
LONGEST_PROBE_S: Final = 30.0
#: Seconds between two searches for stalled endpoints.
LOOK_S: Final = 0.05
#: Share of the newest request in the mean time of requests, and the requests before it is used.
_NEWEST_TIME: Final = 0.02
_ENOUGH: Final = 20
#: Requests of an endpoint that its mean time counts equally: the share of one among them is _NEWEST_TIME.
_ALL: Final = round(1.0 / _NEWEST_TIME)
#: Largest and least slowness of an endpoint.
MOST_SLOWNESS: Final = 4.0
LEAST_SLOWNESS: Final = 1.0 / MOST_SLOWNESS
#: Seconds for which an answer proves that an endpoint whose page does not come works.
WORKS_S: Final = 10.0
#: Answers within which a page has to change.
STILL_ANSWERS: Final = 8


Page = tuple[float, float, float]
"""The load that a page shows: waiting and running requests, KV usage; NaN is unknown."""


class Progress:
    """Follows the endpoints of one table. All times are seconds of the caller's monotonic clock."""

    __slots__ = ("_mean_s", "_pauses", "_probes_at", "_table", "_time_s", "_times", "due", "stalled", "still")

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._mean_s = 0.0
        """Mean time to the first byte over the pool's latest requests; 0 before the first."""
        self._time_s = 0.0
        """Mean time of the pool's latest requests, from the decision to their end; 0 before the first."""
        self._times: dict[int, tuple[int, float]] = {}
        """Row to the number of its requests that were answered in full, and their mean time."""
        self._pauses: dict[int, float] = {}
        """Stalled rows with the pause before their next probe."""
        self._probes_at: dict[int, float] = {}
        """Stalled rows with the time of their next probe."""
        self.due = 0.0
        """When to call `look` again."""
        self.stalled = False
        """Some endpoint stalls."""
        self.still: set[int] = set()
        """Rows whose page stands still."""
        table.on_free(self._drop)

    @property
    def patience_s(self) -> float:
        """Return how long an endpoint may go without a sign of life."""
        return max(STALL_S, PATIENCE * self._mean_s)

    def stalls(self, row: int) -> bool:
        """Tell whether the row's endpoint stalls."""
        return row in self._probes_at

    def sent(self, row: int, now: float) -> None:
        """Note that a request is about to be reserved on the row."""
        if not self._table.awaiting[row]:
            self._table.progress_at[row] = now
        if self.stalled and row in self._probes_at:
            pause = self._pauses[row] = min(2 * self._pauses[row], LONGEST_PROBE_S)
            self._probes_at[row] = now + pause

    def answered(self, row: int, took_s: float, now: float) -> None:
        """Note a first byte, `took_s` after the decision."""
        self._mean_s += (took_s - self._mean_s) * (_NEWEST if self._mean_s else 1.0)
        table = self._table
        table.page_answers[row] += 1
        table.answered_at[row] = table.progress_at[row] = now
        if self.stalled and row in self._probes_at:
            self._forget(row)

    def served(self, row: int, took_s: float) -> None:
        """Note that a request was answered in full, `took_s` after the decision."""
        share = _NEWEST_TIME if self._time_s else 1.0
        self._time_s += (took_s - self._time_s) * share
        count, time_s = self._times.get(row, (0, 0.0))
        count += 1
        # The mean of all until there are enough, then the newest count more.
        time_s += (took_s - time_s) * (1.0 / count if count < _ALL else _NEWEST_TIME)
        self._times[row] = count, time_s
        if count >= _ENOUGH and self._time_s:
            slowness = time_s / self._time_s
            if slowness > MOST_SLOWNESS:
                slowness = MOST_SLOWNESS
            elif slowness < LEAST_SLOWNESS:
                slowness = LEAST_SLOWNESS
            table = self._table
            table.slowness[row] = slowness
            table.unseen_work[row] = table.unseen.item(row) * slowness

    def lives(self, row: int, now: float) -> None:
        """Note another sign of life."""
        self._table.progress_at[row] = now
        if self.stalled and row in self._probes_at:
            self._forget(row)

    def page_read(self, row: int, *, changed: bool, at: float) -> None:
        """Note a metrics page that was asked for at `at`; `changed`: its values are not those of the last."""
        if changed:
            self._table.page_changed_at[row] = at
            self._table.page_answers[row] = 0
            self.lives(row, at)

    def stands_still(self, row: int, page: Page, at: float) -> bool:
        """Tell whether the row's page, asked for at `at`, stands still, and remember it for `still`."""
        table, still = self._table, False
        if table.page_answers[row] >= STILL_ANSWERS and at - table.page_changed_at[row] > STALE_AFTER_S:
            waiting, running, _usage = page
            shown = running + (waiting if waiting == waiting else 0.0)
            own = table.inflight_requests[row] - table.unseen[row]
            # A page without requests is right about an endpoint whose answers are quick.
            still = bool(shown > 0 or own > shown + 1)
        if still:
            self.still.add(row)
        elif self.still:
            self.still.discard(row)
        return still

    def work_unscraped(self, now: float) -> list[int]:
        """Return the ready rows whose page stopped coming, and that have answered a request within WORKS_S.

        A port that refuses connections is no such row: its last answers were given before it died.
        """
        table = self._table
        rows = table.ready & (table.scraped_at < now - STALE_AFTER_S)
        if not rows.any():
            return []
        rows &= table.scraped_at > -np.inf
        # UNREACHABLE and REFUSED are the highest contacts.
        found: list[int] = np.flatnonzero(rows & (table.contact < Contact.UNREACHABLE)).tolist()
        return [row for row in found if table.answered_at[row] > now - WORKS_S]

    def as_the_others(self, row: int) -> Page:
        """Return the mean load of the other endpoints, corrected by the row's own requests in flight.

        Unknown (NaN) when no other endpoint's load is known.
        """
        table = self._table
        known = [
            each
            for each in table.ready_rows.tolist()
            if each != row and each not in self.still and table.scraped_at[each] > -np.inf
        ]
        known = [each for each in known if not np.isnan(table.waiting[each])]
        if not known:
            return np.nan, np.nan, np.nan
        mean = float(table.inflight_requests[known].mean())
        own = float(table.inflight_requests[row])
        usage = float(np.nan_to_num(table.kv_usage[known]).mean())
        return (
            max(0.0, float(table.waiting[known].mean()) + own - mean),
            max(0.0, float(np.nan_to_num(table.running[known]).mean()) + own - mean),
            min(1.0, usage * own / mean) if mean else usage,
        )

    def look(self, now: float) -> None:
        """Find the endpoints that stall."""
        self.due = now + LOOK_S
        awaiting, progress_at = self._table.awaiting, self._table.progress_at
        if max(awaiting) < STALL_REQUESTS:
            if self.stalled:
                self._forget_all()
            return
        since = now - self.patience_s
        stalled = {
            row for row, count in enumerate(awaiting) if count >= STALL_REQUESTS and progress_at[row] < since
        }
        for row in [each for each in self._probes_at if each not in stalled]:
            self._forget(row)
        for row in stalled - self._probes_at.keys():
            self._pauses[row] = PROBE_S
            self._probes_at[row] = now + PROBE_S
        self.stalled = bool(self._probes_at)

    def narrow(self, rows: Rows, now: float) -> Rows:
        """Return the rows without those that stall and need no probe now; all of them if none is left."""
        out = [row for row, probe_at in self._probes_at.items() if now < probe_at]
        kept: Rows = rows[~np.isin(rows, out)]
        return kept if kept.size else rows

    def _drop(self, row: int) -> None:
        self._forget(row)
        self.still.discard(row)
        self._times.pop(row, None)

    def _forget(self, row: int) -> None:
        self._probes_at.pop(row, None)
        self._pauses.pop(row, None)
        self.stalled = bool(self._probes_at)

    def _forget_all(self) -> None:
        self._probes_at.clear()
        self._pauses.clear()
        self.stalled = False
