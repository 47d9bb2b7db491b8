"""The queue: which request goes next, which may enter, which waits too long. Pure; the clock is passed in.

Bands go in order of priority. Two promises to lower bands change that order: a band with `min_share` goes
first while it was served less than its share, and a band with `max_wait_s` whose oldest request has waited
half of it goes first in one dispatch of `AGED_EVERY`.

A request leaves by `next` (to be dispatched), by `advance` (its wait was too long, or a more important
request took its place), by `remove` or by `everything`: exactly one of them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from endpoint_picker.decision import Refusal, Resume
from endpoint_picker.flowcontrol.band import Band
from endpoint_picker.flowcontrol.drain_rate import LONGEST_S, SHORTEST_S, UNKNOWN_S, DrainRate
from endpoint_picker.flowcontrol.flights import ANSWER_WEIGHT, Flight
from endpoint_picker.flowcontrol.gate import Gate
from endpoint_picker.flowcontrol.idle_flows import IdleFlows
from endpoint_picker.flowcontrol.queued import Flow, Queued
from endpoint_picker.flowcontrol.settings import FlowSettings
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest

#: A band that has waited half of its longest wait goes first in one dispatch of as many.
AGED_EVERY: Final = 4
#: Seconds for which a band must have been backlogged before its rate predicts a wait.
_TRUSTED_S: Final = 2.0
#: Seconds between the first endpoint of an empty pool and the first dispatch. Proxies learn of the endpoint
#: meanwhile; one that does not know it yet, and no other, answers 503 in its place.
SETTLE_S: Final = 0.5
#: Most that `min_share` may owe a band, in dispatches of the present size.
_MOST_OWED: Final = 10.0

Ended = tuple[Queued, Refusal]


class FlowQueue:
    """The queued requests of one pool."""

    __slots__ = (
        "_blocked",
        "_by_priority",
        "_flipped_at",
        "_gate",
        "_idle",
        "_is_pool_empty",
        "_over",
        "_parked",
        "_priorities",
        "_promised",
        "_sequence",
        "_since_aged",
        "answer_tokens",
        "bands",
        "bytes",
        "opens_at",
        "rate",
        "requests",
        "settings",
    )

    def __init__(self, settings: FlowSettings, gate: Gate, now: float) -> None:
        self.settings = settings
        self._gate = gate
        self._by_priority: dict[int, Band] = {}
        self.bands: list[Band] = []
        """The highest first."""
        self._priorities: tuple[int, ...] = ()
        self._promised: list[Band] = []
        """The bands with `min_share` or `max_wait_s`."""
        self.requests = 0
        self.bytes = 0
        self.rate = DrainRate(now)
        """Of all dispatches."""
        self.answer_tokens = 128.0
        """Running mean of all answers' lengths."""
        self._sequence = 0
        self._over: list[Ended] = []
        self._parked: OrderedDict[Queued, None] = OrderedDict()
        self._blocked: dict[str, dict[Flow, None]] = {}
        """By model: the flows whose head waits for its limit."""
        self._idle = IdleFlows()
        self._is_pool_empty = not gate.has_endpoints()
        self._flipped_at = -inf
        self.opens_at = -inf
        """When dispatches begin after the pool was empty, seconds of the clock."""
        self._since_aged = 0
        self.provide((0, *settings.bands), now)

    # Bands.

    def provide(self, priorities: Iterable[int], now: float) -> None:
        """Have bands for these priorities, the listed ones and 0; others go once they are empty."""
        wanted = {0, *self.settings.bands, *priorities}
        for priority in wanted - self._by_priority.keys():
            settings = self.settings
            band = Band(priority, settings.band(priority), settings.ttl_s, now)
            self._by_priority[priority] = band
        for priority in self._by_priority.keys() - wanted:
            band = self._by_priority[priority]
            if not band.requests and not any(flow.inflight for flow in band.flows.values()):
                del self._by_priority[priority]
        self.bands = sorted(self._by_priority.values(), key=lambda band: -band.priority)
        self._priorities = tuple(band.priority for band in self.bands)
        self._promised = [
            band for band in self.bands if band.settings.min_share or band.settings.max_wait_s < inf
        ]

    def band(self, priority: int, now: float) -> Band:
        """Return the band of a priority; make it when there is none."""
        band = self._by_priority.get(priority)
        if band is None:
            self.provide((*self._priorities, priority), now)
            band = self._by_priority[priority]
        return band

    # Entering.

    def enter(
        self,
        request: InferenceRequest,
        subset: Sequence[str] | None,
        resume: Resume,
        cancel: Callable[[Queued], None],
        *,
        tenant: str,
        tokens: int,
        now: float,
    ) -> Queued | Refusal:
        """Queue a request by its priority, or return why it may not wait."""
        band = self.band(request.priority, now)
        size = request.body_bytes
        refusal = self._refusal(band, size, now)
        if refusal is not None:
            return refusal
        queued = Queued(request, subset, resume, cancel, tenant, tokens, now)
        self._sequence += 1
        queued.sequence = self._sequence
        queued.priority = band.priority
        for each in self.bands:
            queued.position += each.requests
            if each is band:
                break
        if not band.requests:
            band.rate = DrainRate(now)
        if subset is None or self._gate.may_serve(subset) or self._is_pool_empty:
            band.insert(queued, now)
            self._idle.discard(queued.flow)
        else:
            self._park(queued)
        self._count(band, queued)  # last: a policy that fails leaves nothing counted
        return queued

    def direct(self, request: InferenceRequest, tenant: str, tokens: int, now: float) -> Flight:
        """Count a request that is dispatched without waiting."""
        band = self.band(request.priority, now)
        flow = band.flows.get(tenant)
        if flow is None:
            flow = band.flows[tenant] = Flow(tenant, band.priority)
        else:
            self._idle.discard(flow)
        band.activate(flow, now)  # as if it had waited for no time, which lifts its counter
        band.deactivate(flow, now)
        return self._dispatched(band, flow, request, tokens, now)

    def _refusal(self, band: Band, size: int, now: float) -> Refusal | None:
        settings, limits = self.settings, band.settings
        if band.requests + 1 > limits.max_requests or band.bytes + size > limits.max_bytes:
            return self._full(band, f"the queue of priority {band.priority} is full", now)
        too_many = self.requests + 1 - settings.max_requests
        too_large = self.bytes + size - settings.max_bytes
        if (too_many > 0 or too_large > 0) and not self._make_room(band, too_many, too_large, now):
            return self._full(band, "the queue is full", now)
        if band.priority < 0 and not self._is_pool_empty and band.requests:
            observed, rate = band.rate.observed_s(now), band.rate.per_second(now)
            if observed >= _TRUSTED_S and band.requests > rate * band.ttl_s:
                return self._full(band, "the wait would be too long, and this request may be shed", now)
        return None

    def _full(self, band: Band, message: str, now: float) -> Refusal:
        if self._is_pool_empty:
            return Refusal(Outcome.NO_ENDPOINTS, f"no endpoint is ready, and {message}", UNKNOWN_S)
        return Refusal(Outcome.SATURATED, message, self.retry_after(band, now))

    def retry_after(self, band: Band, now: float) -> int:
        """Return the seconds in which the requests of the band and above leave at the measured rates."""
        ahead = 1
        for each in self.bands:
            ahead += each.requests
            if each is band:
                break
        wait = self.rate.seconds_for(ahead, now)
        if band.requests and band.rate.observed_s(now) >= _TRUSTED_S:
            wait = max(wait, band.rate.seconds_for(band.requests + 1, now))
        if wait == inf:
            return UNKNOWN_S
        return min(LONGEST_S, max(SHORTEST_S, int(wait) + 1))

    def _make_room(self, band: Band, requests: float, size: float, now: float) -> bool:
        """Give up the newest requests of the lowest bands below 0 and below `band`, if they are enough."""
        below = [each for each in reversed(self.bands) if each.priority < min(0, band.priority)]
        if sum(each.requests for each in below) < requests or sum(each.bytes for each in below) < size:
            return False
        for each in below:
            while each.by_age and (requests > 0 or size > 0):
                victim = next(reversed(each.by_age))
                requests -= 1
                size -= victim.size
                self.remove(victim, now)
                text = "a more important request took its place in the full queue"
                self._over.append((victim, Refusal(Outcome.SATURATED, text, self.retry_after(each, now))))
        return True

    # Dispatching.

    def next(self, now: float) -> tuple[Queued, Flight] | None:
        """Take out the request that is to be dispatched now; None when there is none, or no room."""
        if not self.requests or self._is_pool_empty or now < self.opens_at:
            return None
        gate = self._gate
        ceilings = self.settings.usage_limits.ceilings(self._priorities, gate.saturation(now))
        favoured = self._favoured(now) if self._promised else None
        if favoured is not None and gate.below(ceilings[self._priorities.index(favoured.priority)], now):
            taken = self._take(favoured, now)
            if taken is not None:
                self._since_aged = 0
                taken[1].is_promised = True
                return taken
        for band, ceiling in zip(self.bands, ceilings, strict=True):
            if not len(band.lanes):
                continue
            if not gate.below(ceiling, now):
                return None
            taken = self._take(band, now)
            if taken is not None:
                return taken
        return None

    def held_back(self, now: float) -> Band | None:
        """Return the highest band whose requests wait for room; ask when `next` returned None."""
        if self._is_pool_empty or now < self.opens_at:
            return None
        return next((band for band in self.bands if len(band.lanes)), None)

    def ceiling(self, priority: int, now: float) -> float:
        """Return the saturation from which requests of the priority are held back."""
        self.band(priority, now)
        saturation = self._gate.saturation(now)
        ceilings = self.settings.usage_limits.ceilings(self._priorities, saturation)
        return ceilings[self._priorities.index(priority)]

    def _favoured(self, now: float) -> Band | None:
        """Return the band that goes before higher ones by a promise."""
        top = next((band for band in self.bands if len(band.lanes)), None)
        for band in self._promised:
            if band is not top and len(band.lanes) and band.credit > 0.0:
                return band
        if self._since_aged < AGED_EVERY - 1:
            return None
        aged = [band for band in self._promised if band is not top and len(band.lanes)]
        aged = [band for band in aged if band.is_aged(now, self._flipped_at)]
        if not aged:
            return None
        return max(aged, key=lambda band: band.oldest_age(now, self._flipped_at) / band.settings.max_wait_s)

    def _take(self, band: Band, now: float) -> tuple[Queued, Flight] | None:
        lanes, gate = band.lanes, self._gate
        while True:
            flow = lanes.select(now)
            if flow is None:
                return None
            head = flow.head()
            assert head is not None  # noqa: S101 - an active flow has a head
            queued = head[3]
            if queued.subset is not None and not gate.may_serve(queued.subset):
                band.extract(queued, now)
                self._park(queued)
                continue
            model = queued.request.model
            if self.settings.model_limits and not gate.model_has_room(model):
                flow.blocked_by = model
                self._blocked.setdefault(model, {})[flow] = None
                band.deactivate(flow, now)
                continue
            break
        flow.pop()
        self._uncount(band, queued)
        lanes.turned(flow)
        if flow.live:
            lanes.changed(flow)
        else:
            band.deactivate(flow, now)
        queued.is_dispatched = True
        band.rate.note(now)
        return queued, self._dispatched(band, flow, queued.request, queued.tokens, now)

    def _dispatched(
        self, band: Band, flow: Flow, request: InferenceRequest, tokens: int, now: float
    ) -> Flight:
        expected = flow.answer_tokens or self.answer_tokens
        if request.max_tokens and request.max_tokens < expected:
            expected = float(request.max_tokens)
        flow.inflight += 1
        band.lanes.served(flow, tokens + band.settings.fairness.completion_weight * expected, now)
        if self._promised:
            self._settle_credit(band, tokens + ANSWER_WEIGHT * expected)
        self._since_aged += 1
        self.rate.note(now)
        self._gate.count_model(request.model, 1)
        return Flight(band, flow, request.model, tokens, expected)

    def _settle_credit(self, served: Band, tokens: float) -> None:
        for band in self._promised:
            share = band.settings.min_share
            if not band.requests and band is not served:
                band.credit = 0.0
            elif share:
                owed = band.credit + share * tokens - (tokens if band is served else 0.0)
                band.credit = max(-tokens, min(owed, _MOST_OWED * tokens))

    # Leaving.

    def over(self, flight: Flight, prompt: int, answer: float, now: float) -> None:
        """Note the end of a dispatched request, with the true tokens of its prompt and answer."""
        band, flow = flight.band, flight.flow
        flow.inflight -= 1
        difference = prompt - flight.prompt_tokens
        weight = band.settings.fairness.completion_weight
        band.lanes.served(flow, difference + weight * (answer - flight.answer_tokens), now)
        if answer:
            self.answer_tokens += 0.02 * (answer - self.answer_tokens)
            flow.answer_tokens += (0.1 if flow.answer_tokens else 1.0) * (answer - flow.answer_tokens)
        self._gate.count_model(flight.model, -1)
        for blocked in self._blocked.pop(flight.model, ()):
            if blocked.blocked_by == flight.model:
                blocked.blocked_by = ""
                home = self._by_priority.get(blocked.priority)
                if blocked.live and home is not None and home.flows.get(blocked.id) is blocked:
                    home.activate(blocked, now)
        if not flow.live and not flow.inflight:
            self._idle.add(band, flow, now)

    def remove(self, queued: Queued, now: float) -> None:
        """Take out a request that waits, without an answer; one that lost its place is out already."""
        band = self._by_priority.get(queued.priority)
        if band is None or queued not in band.by_age:
            return
        flow = queued.flow
        if flow is None:
            self._parked.pop(queued, None)
            queued.is_parked = False
        else:
            self._extract(band, flow, queued, now)
        self._uncount(band, queued)

    def _extract(self, band: Band, flow: Flow, queued: Queued, now: float) -> None:
        model = flow.blocked_by
        band.extract(queued, now)
        if model and not flow.blocked_by:
            self._blocked.get(model, {}).pop(flow, None)
        if not flow.live and not flow.inflight:
            self._idle.add(band, flow, now)

    def displaced(self) -> list[Ended]:
        """Take out the requests that lost their places, each with its answer."""
        ended, self._over = self._over, []
        return ended

    def advance(self, now: float) -> tuple[list[Ended], float | None]:
        """Return the requests whose wait is over, each with its answer, and when the next wait will be."""
        ended = self.displaced()
        due = self.opens_at if self.opens_at > now and self.requests else inf
        for band in self.bands:
            limit = self.settings.no_endpoint_ttl_s if self._is_pool_empty else band.ttl_s
            while band.by_age:
                oldest = next(iter(band.by_age))
                ends = max(oldest.enqueued_at, self._flipped_at) + limit
                if ends > now:
                    due = min(due, ends)
                    break
                refusal = self._too_late(band, oldest, now)
                self.remove(oldest, now)
                ended.append((oldest, refusal))
        return ended, None if due == inf else due

    def _too_late(self, band: Band, queued: Queued, now: float) -> Refusal:
        if self._is_pool_empty or queued.is_parked:
            return Refusal(Outcome.NO_ENDPOINTS, "no endpoint became ready in time", UNKNOWN_S)
        text = "the request waited in the queue for as long as it may"
        return Refusal(Outcome.TTL_EXPIRED, text, self.retry_after(band, now))

    def first(self, now: float) -> Queued | None:
        """Take out the oldest request of the highest band, whatever the policies say."""
        for band in self.bands:
            for queued in band.by_age:
                self.remove(queued, now)
                return queued
        return None

    def everything(self, now: float) -> list[Queued]:
        """Take out all requests, in order of arrival."""
        found = sorted((each for band in self.bands for each in band.by_age), key=lambda each: each.sequence)
        for queued in found:
            self.remove(queued, now)
        return found

    # Changes around it.

    def follow(self, earlier: "FlowQueue") -> None:
        """Go on by what an earlier queue of the pool measured, and by its times."""
        self.rate, self.answer_tokens = earlier.rate, earlier.answer_tokens
        self._flipped_at, self.opens_at = earlier._flipped_at, earlier.opens_at

    def take_over(self, waiting: Iterable[Queued], now: float) -> None:
        """Queue requests of an earlier queue, in order of arrival, whatever the limits are."""
        for queued in waiting:
            self._sequence += 1
            queued.sequence = self._sequence
            band = self.band(queued.request.priority, now)
            queued.priority = band.priority
            self._count(band, queued)
            if self._is_pool_empty or self._gate.may_serve(queued.subset):
                band.insert(queued, now)
            else:
                self._park(queued)

    def endpoints_changed(self, now: float) -> None:
        """Note that endpoints came or went: limits change, and hints are looked up again."""
        is_empty = not self._gate.has_endpoints()
        if is_empty != self._is_pool_empty:
            self._is_pool_empty = is_empty
            self._flipped_at = now
            if self.requests and not is_empty:
                self.opens_at = now + SETTLE_S
        for queued in [each for each in self._parked if self._gate.may_serve(each.subset)]:
            del self._parked[queued]
            queued.is_parked = False
            self._by_priority[queued.priority].insert(queued, now)
            self._idle.discard(queued.flow)

    def reprioritise(self, priority_of: Callable[[InferenceRequest], int], now: float) -> None:
        """Move each request into the band of its present priority."""
        changed: set[Band] = set()
        for band in list(self.bands):
            for queued in list(band.by_age):
                priority = priority_of(queued.request)
                queued.request.priority = priority
                if priority == band.priority:
                    continue
                flow = queued.flow
                if flow is not None:
                    self._extract(band, flow, queued, now)
                band.uncount(queued)
                other = self.band(priority, now)
                queued.priority = priority
                other.count(queued)
                if not queued.is_parked:
                    other.insert(queued, now)
                    self._idle.discard(queued.flow)
                changed.add(other)
        for band in changed:
            band.by_age = OrderedDict.fromkeys(sorted(band.by_age, key=lambda each: each.sequence))

    def _park(self, queued: Queued) -> None:
        queued.is_parked = True
        self._parked[queued] = None

    def _count(self, band: Band, queued: Queued) -> None:
        band.count(queued)
        self.requests += 1
        self.bytes += queued.size

    def _uncount(self, band: Band, queued: Queued) -> None:
        band.uncount(queued)
        self.requests -= 1
        self.bytes -= queued.size

    @property
    def idle_flows(self) -> int:
        """Return how many flows without a request are remembered."""
        return len(self._idle)

    @property
    def set_aside(self) -> int:
        """Return how many requests wait aside because their hint names no ready endpoint."""
        return len(self._parked)

    @property
    def is_pool_empty(self) -> bool:
        """Tell whether the pool had no endpoint at the last change."""
        return self._is_pool_empty
