"""The flow against a pool of places that chat takes first: what chat leaves is used, and given up for it.

The pool admits chat at once and jobs into the places that are left; jobs beyond them wait in the picker. A
job takes eight seconds. The picker is read twice a second.
"""

import math

from batch_subscriber.flow import Flow, FlowSettings, Outcome, Reading, Ticket

PLACES = 640
JOB_S = 8.0
STEP_S = 0.05
READ_EVERY = 10
"""Steps between two readings."""


class Pool:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.running: list[tuple[float, Ticket]] = []
        self.waiting: list[Ticket] = []
        self.used = self.free = self.most_waiting = 0

    def run(self, seconds: float, warm_up_s: float) -> None:
        for step in range(int(seconds / STEP_S)):
            now = step * STEP_S
            chat = int(400 + 150 * math.sin(now / 20))
            self._end(now)
            self.waiting += [self.flow.sent(now) for _ in range(self.flow.room(now))]
            self._admit(now, PLACES - chat)
            if step % READ_EVERY == 0:
                load = (chat + len(self.running)) / PLACES
                self.flow.read(now, Reading(saturation=load, queued=len(self.waiting), replicas=8))
            if now >= warm_up_s:
                self.most_waiting = max(self.most_waiting, len(self.waiting))
                self.used += len(self.running)
                self.free += max(PLACES - chat, len(self.running))

    def _end(self, now: float) -> None:
        over = [ticket for ends, ticket in self.running if ends <= now]
        self.running = [(ends, ticket) for ends, ticket in self.running if ends > now]
        for ticket in over:
            self.flow.ended(now, ticket, Outcome.SERVED)

    def _admit(self, now: float, places: int) -> None:
        while self.waiting and len(self.running) < places:
            # Spread over a second, so that jobs do not end in step.
            self.running.append((now + JOB_S + len(self.running) % 20 * STEP_S, self.waiting.pop(0)))


def test_every_place_that_chat_leaves_is_used_and_few_jobs_wait_for_one() -> None:
    pool = Pool(Flow(FlowSettings(most=2000)))
    pool.run(150.0, warm_up_s=30.0)
    assert pool.used / pool.free >= 0.97
    # When chat takes places back, jobs that were sent for them wait: a tenth of the pool's places at most.
    assert pool.most_waiting <= PLACES / 10
