"""The discrete-event loop: arrivals, engines, scrapes and faults of one pool on a virtual clock.

A run with equal arguments, and a policy and a workload made with equal seeds, gives equal results to the
byte: events at one time are handled in the order in which they were scheduled; nothing reads a real clock.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from model_server_sim.engine import Request
from model_server_sim.engine import Sequence as EngineSequence
from model_server_sim.params import EngineParams
from pool_simulation.clock import VirtualClock
from pool_simulation.faults import Fault, MetricsFreeze, PickerRestarts, ServerDies, ServerSlows
from pool_simulation.policy import Pick, Policy, Refused, Surroundings
from pool_simulation.prompts import block_hashes
from pool_simulation.results import Fate, Results
from pool_simulation.server import SimulatedServer
from pool_simulation.workload import SimulatedRequest, Workload

#: Virtual seconds after the last arrival at which requests that are still under way are given up.
DRAIN_S: Final = 3600.0

#: Virtual seconds after which a server that waits for a prompt computes it itself, as the live server does.
PREFILL_LIMIT_S: Final = 30.0

#: Reason of a request that its server answers with 400: prompt and answer exceed what it can ever hold.
TOO_LONG: Final = "too-long"


class _Flight:
    """A request between its arrival and its end."""

    __slots__ = ("is_over", "pick", "prefill", "prefiller", "request", "sequence", "server")

    def __init__(self, request: SimulatedRequest) -> None:
        self.request = request
        self.pick: Pick | None = None
        self.server: SimulatedServer | None = None
        self.sequence: EngineSequence | None = None
        self.prefiller: SimulatedServer | None = None
        """The server that computes the prompt for `server` now."""
        self.prefill: EngineSequence | None = None
        """The prompt on the server that computes or has computed it."""
        self.is_over = False


class Simulation:
    """One run of a pool. Make one, call `run` once."""

    def __init__(
        self,
        engines: Sequence[EngineParams],
        workload: Workload,
        policy: Policy,
        *,
        duration_s: float,
        seed: str = "0",
        faults: Sequence[Fault] = (),
        max_requests: int | None = None,
        labels: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Take `workload` requests that arrive before `duration_s`, at most `max_requests`.

        `engines` has the parameters of each server, `labels` those of its pod, if there are any. Raises
        ValueError for a pool without servers.
        """
        if not engines:
            raise ValueError("a pool needs at least one server")
        self.clock = VirtualClock()
        of_pods = labels or [{}] * len(engines)
        self.servers = [
            SimulatedServer(number, params, seed, pod)
            for number, (params, pod) in enumerate(zip(engines, of_pods, strict=True))
        ]
        self.results = Results()
        self._workload = workload
        self._policy = policy
        self._duration_s = duration_s
        self._left = max_requests
        self._faults = faults
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0
        self._arrivals: Iterator[SimulatedRequest] | None = None
        self._expected = 0
        """Arrivals in the heap."""
        self._flights: dict[str, _Flight] = {}
        """Flights by request id; those whose decision waits included."""

    def run(self) -> Results:
        """Run until every request has ended; return what became of each.

        Raises RuntimeError when the policy still counts a request as in flight then, and ValueError for a
        workload that uses a request id twice.
        """
        self._policy.start(Surroundings(clock=self.clock, servers=self.servers, at=self.at))
        for fault in self._faults:
            self._schedule(fault)
        self._arrivals = self._workload.arrivals()
        self._take_next()
        heap, clock = self._heap, self.clock
        limit = self._duration_s + DRAIN_S
        while heap and (self._expected or self._flights):
            now, _, act, argument = heappop(heap)
            if now > limit:
                self._give_up()
                break
            clock.now = now
            act(argument)
        leak = self._policy.leak()
        if leak:
            msg = f"all requests have ended, and yet {leak}"
            raise RuntimeError(msg)
        return self.results

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Call `act` at a virtual time."""
        self._push(max(when, self.clock.now), _call, act)

    def _push(self, when: float, act: Callable[[Any], None], argument: Any) -> None:
        self._order += 1
        heappush(self._heap, (when, self._order, act, argument))

    # Arrivals.

    def _take_next(self) -> None:
        """Put the next request that depends on no other into the heap."""
        if self._arrivals is not None:
            request = next(self._arrivals, None)
            if request is None or not self._expect(request, self._arrive_in_turn):
                self._arrivals = None

    def _expect(self, request: SimulatedRequest, act: Callable[[Any], None]) -> bool:
        if request.arrival_s >= self._duration_s or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        self._expected += 1
        self._push(request.arrival_s, act, request)
        return True

    def _arrive_in_turn(self, request: SimulatedRequest) -> None:
        self._take_next()
        self._arrive(request)

    def _arrive(self, request: SimulatedRequest) -> None:
        self._expected -= 1
        flight = _Flight(request)
        if self._flights.setdefault(request.request_id, flight) is not flight:
            msg = f"two requests of the workload have the id {request.request_id}"
            raise ValueError(msg)

        def resume(answer: Pick | Refused) -> None:
            self._decided(flight, answer)

        answer = self._policy.decide(request, resume)
        if answer is not None:
            self._decided(flight, answer)

    def _decided(self, flight: _Flight, answer: Pick | Refused) -> None:
        if flight.is_over:
            if isinstance(answer, Pick):
                self._policy.ended(answer, flight.request, served=False)
            return
        if isinstance(answer, Refused):
            self._refuse(flight, answer.reason)
            return
        flight.pick = answer
        request = flight.request
        for number in answer.servers:
            server = self.servers[number]
            if server.is_up:
                break
        else:
            self._over(flight, Fate.FAILED)
            return
        if request.prompt_tokens + request.output_tokens > server.params.longest_sequence:
            self._refuse(flight, TOO_LONG)
            return
        flight.server = server
        prefiller = None if answer.prefiller is None else self.servers[answer.prefiller]
        if prefiller is not None and prefiller.is_up and prefiller is not server:
            self._have_prefilled(flight, prefiller)
        else:
            self._submit(flight, server, remote_prefill=False)

    def _submit(self, flight: _Flight, server: SimulatedServer, *, remote_prefill: bool) -> None:
        """Have the server answer."""
        request = flight.request
        flight.sequence = server.submit(
            Request(
                request_id=request.request_id,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                block_hashes=block_hashes(request, server.params.block_size),
                adapter=request.adapter,
                remote_prefill=remote_prefill,
            ),
            self.clock.now,
        )
        self._advance(server)

    # Prompts that another server computes.

    def _have_prefilled(self, flight: _Flight, prefiller: SimulatedServer) -> None:
        request, size = flight.request, prefiller.params.block_size
        flight.prefiller = prefiller
        flight.prefill = prefiller.submit(
            Request(
                request_id=request.request_id,
                prompt_tokens=request.prompt_tokens,
                output_tokens=1,
                block_hashes=block_hashes(request, size)[: request.prompt_tokens // size],
                adapter=request.adapter,
                remote_decode=True,
            ),
            self.clock.now,
        )
        self._advance(prefiller)
        self.at(self.clock.now + PREFILL_LIMIT_S, lambda: self._prefill_is_late(flight))

    def _prefilled(self, flight: _Flight, prefiller: SimulatedServer) -> None:
        """Have the prompt's keys and values moved, and the answer generated."""
        flight.prefiller = None
        request, server = flight.request, flight.server
        if server is not None:  # it is set since the pick
            params = server.params
            moved_s = params.kv_transfer_s + request.prompt_tokens * params.kv_transfer_token_s
            self.at(self.clock.now + moved_s, lambda: self._release(prefiller, request.request_id))
            self._submit(flight, server, remote_prefill=True)

    def _release(self, prefiller: SimulatedServer, request_id: str) -> None:
        prefiller.release(request_id)
        self._advance(prefiller)

    def _prefill_is_late(self, flight: _Flight) -> None:
        if flight.prefiller is not None and not flight.is_over:
            self._stop_prefill(flight)
            self._prefill_itself(flight)

    def _stop_prefill(self, flight: _Flight) -> None:
        prefiller, flight.prefiller, flight.prefill = flight.prefiller, None, None
        if prefiller is not None and prefiller.is_up:
            prefiller.abort(flight.request.request_id)
            self._advance(prefiller)

    def _prefill_itself(self, flight: _Flight) -> None:
        if flight.server is not None:
            self._submit(flight, flight.server, remote_prefill=False)

    def _refuse(self, flight: _Flight, reason: str) -> None:
        reasons = self.results.reasons
        reasons[reason] = reasons.get(reason, 0) + 1
        self._over(flight, Fate.REFUSED)

    # Engines.

    def _due(self, server: SimulatedServer) -> None:
        if server.due == self.clock.now:  # else it was advanced meanwhile, which scheduled another call
            self._advance(server)

    def _advance(self, server: SimulatedServer) -> None:
        before = server.due
        progress = server.advance(self.clock.now)
        policy = self._policy
        for sequence in progress.started:
            flight = self._flights[sequence.request.request_id]
            if flight.pick is not None and sequence is not flight.prefill:
                policy.answering(flight.pick, server.number)
        if progress.next_due is not None and progress.next_due != before:
            self._push(progress.next_due, self._due, server)
        for sequence in progress.finished:
            flight = self._flights[sequence.request.request_id]
            if sequence is flight.prefill:
                self._prefilled(flight, server)
            else:
                self._over(flight, Fate.SERVED)

    def _over(self, flight: _Flight, fate: Fate) -> None:
        """End a request: in the results, at the policy, and for what follows it."""
        flight.is_over = True
        request, sequence, server = flight.request, flight.sequence, flight.server
        del self._flights[request.request_id]
        now = self.clock.now
        if sequence is None or server is None:
            self.results.add(request, fate, now)
        else:
            tokens = sequence.request.prompt_tokens
            cached = (flight.prefill or sequence).cached_tokens
            self.results.add(
                request,
                fate,
                now,
                server=server.number,
                first_token_s=sequence.first_token_at,
                prompt_tokens=tokens,
                output_tokens=sequence.generated,
                cached_tokens=cached,
                preemptions=sequence.preemptions,
            )
        if flight.pick is not None:
            self._policy.ended(flight.pick, request, served=fate is Fate.SERVED)
        for following in self._workload.finished(request, now, served=fate is Fate.SERVED):
            self._expect(following, self._arrive)

    def _give_up(self) -> None:
        self._arrivals, self._left = None, 0
        for flight in list(self._flights.values()):
            self._stop_prefill(flight)
            if flight.sequence is not None and flight.server is not None:
                flight.server.abort(flight.request.request_id)
            self._over(flight, Fate.UNFINISHED)

    # Faults.

    def _schedule(self, fault: Fault) -> None:
        match fault:
            case ServerDies():
                server = self.servers[fault.server]
                self.at(fault.at_s, lambda: self._die(server))
                self.at(fault.at_s + fault.noticed_after_s, lambda: self._list(server, ready=False))
                self.at(fault.at_s + fault.back_after_s, lambda: self._come_back(server))
            case ServerSlows():
                slow = self.servers[fault.server]
                self.at(fault.at_s, lambda: self._slow_down(slow, fault.slowness))
                self.at(fault.at_s + fault.for_s, lambda: self._slow_down(slow, 1.0))
            case MetricsFreeze():
                frozen = self.servers[fault.server]
                self.at(fault.at_s, lambda: frozen.freeze_metrics(self.clock.now, answers=fault.answers))
                self.at(fault.at_s + fault.for_s, frozen.thaw_metrics)
            case PickerRestarts():
                self.at(fault.at_s, lambda: self._restart_picker(fault.down_s))

    def _slow_down(self, server: SimulatedServer, slowness: float) -> None:
        self._advance(server)
        server.slow_down(slowness)
        self._advance(server)

    def _die(self, server: SimulatedServer) -> None:
        server.die()
        for flight in list(self._flights.values()):
            if flight.server is server:
                self._stop_prefill(flight)
                self._over(flight, Fate.FAILED)
            elif flight.prefiller is server:
                self._stop_prefill(flight)
                self._prefill_itself(flight)

    def _come_back(self, server: SimulatedServer) -> None:
        server.come_back()
        self._list(server, ready=True)

    def _list(self, server: SimulatedServer, *, ready: bool) -> None:
        server.in_pool = ready
        self._policy.endpoints_changed()

    def _restart_picker(self, down_s: float) -> None:
        for flight in list(self._flights.values()):
            if flight.is_over:  # it ended in an earlier round of this loop
                continue
            self._stop_prefill(flight)
            self._over(flight, Fate.FAILED)
            if flight.sequence is not None and flight.server is not None:
                flight.server.abort(flight.request.request_id)
                self._advance(flight.server)
        self._policy.restart(down_s)


def _call(act: Callable[[], None]) -> None:
    act()
