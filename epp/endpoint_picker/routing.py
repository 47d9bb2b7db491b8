"""The decision: from a request to a reserved endpoint or a refusal. Synchronous; no I/O of its own.

`PoolRouter` owns the endpoint table and everything that reads or writes it. Discovery and scraping feed it
from outside; the request life calls `decide`, `first_byte` and `ended`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from endpoint_picker.config.build import PickerConfig, build
from endpoint_picker.config.errors import ConfigError, from_validation
from endpoint_picker.config.registry import Registry
from endpoint_picker.datalayer.ledger import Ledger
from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN, PrefixIndex
from endpoint_picker.datalayer.table import Endpoint, EndpointTable, Rows
from endpoint_picker.decision import Decision, Refusal, Reservation, Resume, Waiting
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.plugin import RandomSource
from endpoint_picker.scheduling.profile import Trace
from ext_proc.body.openai import MAX_MATERIAL_BYTES
from inference_api.offered import Offered, OfferedText
from inference_api.priority_table import PriorityTable

#: Format of the priority table that this version reads.
PRIORITY_TABLE_VERSION: Final = 1
#: From this load on a request of negative priority is turned away.
SATURATED: Final = 1.0

_NO_ENDPOINTS: Final = Refusal(Outcome.NO_ENDPOINTS, "no ready endpoint may serve this request")
_SATURATED: Final = Refusal(Outcome.SATURATED, "the pool is saturated and this request may be shed")


class PoolRouter:
    """A `decision.Router` for one pool. All methods are for one thread, the event loop's."""

    __slots__ = (
        "_clock",
        "_config",
        "_config_text",
        "_listeners",
        "_priorities",
        "_registry",
        "_rng",
        "config_loads",
        "decisions",
        "index",
        "ledger",
        "matched_blocks",
        "offered",
        "picked",
        "priorities_loads",
        "prompt_blocks",
        "refused_no_endpoints",
        "refused_saturated",
        "table",
    )

    def __init__(
        self, config: PickerConfig, registry: Registry, *, clock: Callable[[], float], rng: RandomSource
    ) -> None:
        self.table = EndpointTable()
        self.ledger = Ledger(self.table)
        self.index = PrefixIndex(self.table)
        self._clock = clock
        self._rng = rng
        self._registry = registry
        self._listeners: list[Callable[[], None]] = []
        self._priorities: dict[str, int] = {}
        self._config_text = ""
        self.offered = Offered()
        """The configuration and the priorities offered last, and what is wrong with them."""
        self.config_loads = 0
        """Configurations taken into use; while it is 0, the default one decides."""
        self.priorities_loads = 0
        self.decisions = Decisions()
        """While it records, `Decision.scores` is filled."""
        self.picked = 0
        self.refused_no_endpoints = 0
        self.refused_saturated = 0
        self.prompt_blocks = 0
        """Prompt blocks of all picks, the hit rate's denominator."""
        self.matched_blocks = 0
        """Prompt blocks of all picks that were believed to be cached where they went."""
        self._use(config)

    # The Router protocol.

    def decide(
        self, request: InferenceRequest, subset: Sequence[str] | None, resume: Resume
    ) -> Decision | Refusal | Waiting:
        """Pick an endpoint and reserve it, or say why not; a refusal is shared and not to be changed."""
        table, config = self.table, self._config
        request.priority = self._priorities.get(request.objective, 0)
        rows = table.ready_rows if subset is None else table.rows_of(subset)
        if not rows.size:
            self.refused_no_endpoints += 1
            return _NO_ENDPOINTS
        if request.priority < 0 and config.detector.saturation(rows, table, self._clock()) >= SATURATED:
            self.refused_saturated += 1
            return _SATURATED
        chain: Sequence[int] = ()
        if config.profile.needs_prompt:
            chain = self.index.hashes(request.model, request.prompt)
            self.index.match(chain, rows)
        trace = Trace() if self.decisions.recording else None
        chosen = config.profile.select(request, rows, table, self._rng, trace)
        if not chosen.size:
            self.refused_no_endpoints += 1
            return _NO_ENDPOINTS
        decision = self._decision(request, chosen, len(chain))
        row = decision.reservations[0].row
        if trace is not None:
            decision.scores = trace.scores_of(row)
            self.decisions.note(request, decision, rows.size)
        if chain:
            self.index.record(chain, row)
        # Reserving is the last step: a fault before it leaves nothing to give back.
        for reservation in decision.reservations:
            self.ledger.reserve(reservation)
        return decision

    def first_byte(self, decision: Decision, record: Record) -> None:
        """Give the prompt's tokens back: it has been computed.

        When another endpoint than the primary answered, give all back: the request is not where it was
        reserved, and the next scrape of the other endpoint counts it.
        """
        if record.served_by and record.served_by != decision.endpoint:
            self._release(decision)
            return
        for reservation in decision.reservations:
            self.ledger.computed(reservation)

    def ended(self, decision: Decision, record: Record) -> None:
        """Release all reservations. A further call releases nothing."""
        self._release(decision)

    # What feeds it.

    def replace_endpoints(self, endpoints: Iterable[Endpoint]) -> bool:
        """Make these the pool's endpoints, at once; return whether anything changed."""
        changed = self.table.replace(endpoints)
        if changed:
            for listener in self._listeners:
                listener()
        return changed

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener()` after every change of the endpoints or their readiness. It must not raise."""
        self._listeners.append(listener)

    def apply_config(self, text: str) -> bool:
        """Take a configuration into use between two requests; blank is the default one.

        A faulty one changes nothing but `config_error`, which says what and where; return whether it is used.
        """
        if self.config_loads and not self.config_error and text == self._config_text:
            return True
        error = ""
        try:
            self._use(build(text, self._registry))
        except ConfigError as fault:
            error = str(fault)
        else:
            self._config_text = text
        judged = OfferedText.judged(text, error, replaced=self.config_loads > 0)
        self.offered = self.offered.model_copy(update={"config": judged})
        self.config_loads += not error
        return not error

    def apply_priorities(self, text: str) -> bool:
        """Take a priority table (JSON) into use; a faulty one changes nothing but `priorities_error`."""
        table, error = _priority_table(text)
        if not error:
            self._priorities = {name: entry.priority for name, entry in table.objectives.items()}
        judged = OfferedText.judged(text, error, replaced=self.priorities_loads > 0)
        self.offered = self.offered.model_copy(update={"priorities": judged})
        self.priorities_loads += not error
        return not error

    # What it tells.

    @property
    def config(self) -> PickerConfig:
        """Return the configuration in use."""
        return self._config

    @property
    def config_error(self) -> str:
        """Return what is wrong with the configuration offered last; "" when it is the one in use."""
        return self.offered.config.error

    @property
    def priorities_error(self) -> str:
        """Return what is wrong with the priorities offered last; "" when they are those in use."""
        return self.offered.priorities.error

    def ready_addresses(self) -> tuple[str, ...]:
        """Return "ip:port" of every ready endpoint, in row order."""
        return tuple(self.table.hostports[row] for row in self.table.ready_rows.tolist())

    def saturation(self) -> float:
        """Return the load of all ready endpoints over their capacity; 1.0 when there is none."""
        return self._config.detector.saturation(self.table.ready_rows, self.table, self._clock())

    def state(self) -> dict[str, Any]:
        """Return everything that is known, as JSON values; for people, not for the hot path."""
        profile = self._config.profile
        offered = self.offered.model_dump(mode="json")
        return {
            "endpoints": [self._row_state(row) for row in self.table.occupied()],
            "inFlight": self.ledger.held,
            "saturation": self.saturation(),
            "profile": {
                "name": profile.name,
                "filters": len(profile.filters),
                "scorers": {each.name: each.weight for each in profile.scorers},
            },
            "config": {
                **offered["config"],
                "warnings": list(self._config.warnings),
                "loads": self.config_loads,
            },
            "priorities": {**offered["priorities"], "table": dict(self._priorities)},
            "prefixIndex": {"entries": self.index.entries, "blockTokens": self.table.block_tokens},
        }

    def _row_state(self, row: int) -> Mapping[str, Any]:
        table, endpoint = self.table, self.table.endpoints[row]
        age = self._clock() - float(table.scraped_at[row])
        return {
            "endpoint": table.hostports[row],
            "name": endpoint.name if endpoint else "",
            "ready": bool(table.ready[row]),
            "waiting": _number(table.waiting[row]),
            "running": _number(table.running[row]),
            "kvUsage": _number(table.kv_usage[row]),
            "metricsAgeSeconds": round(age, 3) if np.isfinite(age) else None,
            "inFlightRequests": int(table.inflight_requests[row]),
            "inFlightTokens": int(table.inflight_tokens[row]),
            "unseenRequests": int(table.unseen[row]),
            "blockSize": int(table.block_size[row]),
            "numBlocks": int(table.num_blocks[row]),
        }

    def _decision(self, request: InferenceRequest, chosen: Rows, blocks: int) -> Decision:
        table = self.table
        rows = chosen.tolist()
        row = rows[0]
        hostports = table.hostports
        # The material of a very long prompt is cut; there the body's size tells how long it is.
        size = len(request.prompt)
        tokens = (size if size < MAX_MATERIAL_BYTES else request.body_bytes) // BYTES_PER_TOKEN
        matched = 0
        if blocks:
            matched = int(table.prefix_matched[row])
            tokens -= matched * table.block_tokens
        reservation = Reservation(row=row, generation=int(table.generation[row]), tokens=tokens)
        decision = Decision(
            destination=hostports[row] if len(rows) == 1 else ",".join([hostports[each] for each in rows]),
            endpoint=hostports[row],
            reservations=(reservation,),
        )
        if matched:
            decision.prefix_hit = matched / blocks
        self.picked += 1
        self.prompt_blocks += blocks
        self.matched_blocks += matched
        return decision

    def _release(self, decision: Decision) -> None:
        for reservation in decision.reservations:
            self.ledger.release(reservation)

    def _use(self, config: PickerConfig) -> None:
        self._config = config
        prefix = config.prefix
        self.index.configure(
            auto=prefix.auto_tune,
            block_tokens=prefix.block_size_tokens,
            max_tokens=prefix.max_tokens,
            capacity=prefix.lru_capacity_per_server,
        )


def build_router(
    *,
    config_text: str = "",
    priorities_text: str = "",
    clock: Callable[[], float] = time.monotonic,
    rng: RandomSource | None = None,
    registry: Registry | None = None,
) -> PoolRouter:
    """Return a router without endpoints.

    Faulty texts do not raise: the defaults are used, and `config_error` or `priorities_error` says why, so
    that a picker starts, serves and reports instead of crashing in a loop. `clock` is monotonic, in seconds.
    """
    registry = registry or Registry.installed()
    _rehearse(registry)
    router = PoolRouter(build("", registry), registry, clock=clock, rng=rng or np.random.default_rng())
    router.apply_config(config_text)
    router.apply_priorities(priorities_text)
    return router


def _priority_table(text: str) -> tuple[PriorityTable, str]:
    """Return the table and ""; an empty one and what is wrong with the text."""
    try:
        table = PriorityTable.model_validate_json(text) if text.strip() else PriorityTable()
    except ValidationError as error:
        return PriorityTable(), str(from_validation(error))
    if table.version > PRIORITY_TABLE_VERSION:
        newer = f"version: {table.version} is newer than {PRIORITY_TABLE_VERSION}; upgrade the picker"
        return PriorityTable(), newer
    return table, ""


def _rehearse(registry: Registry) -> None:
    """Decide once for nobody: the first decision of a process costs milliseconds, as numpy sets itself up."""
    router = PoolRouter(build("", registry), registry, clock=time.monotonic, rng=np.random.default_rng(0))
    router.replace_endpoints([Endpoint(name, "", "127.0.0.1", port) for name, port in (("a", 1), ("b", 2))])
    router.table.waiting[0] = router.table.running[0] = router.table.kv_usage[0] = 0.0
    prompt = bytes(2 * router.table.block_tokens * BYTES_PER_TOKEN)
    for _ in range(2):
        router.decide(InferenceRequest(request_id="", prompt=prompt), None, _nobody)


def _nobody(answer: Decision | Refusal) -> None:
    """Take the answer of a decision that does not wait: there is none."""


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)
