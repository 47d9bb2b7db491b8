"""The features of every endpoint, kept up to date, and the matrix of the candidates of some requests. Pure.

What a scrape, a label or the ledger shows of an endpoint is the same for every request: it lies in one
float32 matrix, a row for each row of the endpoint table. All requests that are asked about in one call get
their candidates from it by one indexing.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.datalayer.table import EndpointTable, Rows
from endpoint_picker.latency.ticket import Ticket
from endpoint_picker.request import InferenceRequest
from latency_contract.matrix import Matrix, empty
from latency_contract.schema import COLUMN, AdapterState, class_code, role_of

#: Seconds after which a prompt's tokens count 1/e in the recent prefill rate.
RATE_S: Final = 10.0
#: Answers that the recent TPOT and the expected output are a mean of.
RECENT: Final = 8
#: (Model, tenant) pairs whose answers' lengths are remembered; the one not seen for longest goes.
MAX_TENANTS: Final = 1000

_INPUT: Final = COLUMN["input_tokens"]
_OUTPUT: Final = COLUMN["expected_output_tokens"]
_PREFIX: Final = COLUMN["prefix_hit"]
_WAITING: Final = COLUMN["waiting_requests"]
_RUNNING: Final = COLUMN["running_requests"]
_KV: Final = COLUMN["kv_usage"]
_CAPACITY: Final = COLUMN["kv_capacity_tokens"]
_AGE: Final = COLUMN["metrics_age_s"]
_INFLIGHT: Final = COLUMN["inflight_requests"]
_AWAITING: Final = COLUMN["awaiting_requests"]
_UNSEEN: Final = COLUMN["unseen_requests"]
_PREFILL: Final = COLUMN["prefill_tokens_in_flight"]
_DECODE: Final = COLUMN["decode_tokens_in_flight"]
_TPOT: Final = COLUMN["recent_tpot_s"]
_RATE: Final = COLUMN["recent_prefill_rate"]
_QUIET: Final = COLUMN["quiet_s"]
_ADAPTER: Final = COLUMN["adapter_state"]
_ROLE: Final = COLUMN["role"]
_CLASS: Final = COLUMN["endpoint_class"]


class Board:
    """Features by row of the endpoint table."""

    __slots__ = (
        "_answers",
        "_outputs",
        "_rate_at",
        "_role_label",
        "_scrapes",
        "_table",
        "_values",
        "_version",
        "class_label",
    )

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._values: Matrix = empty(len(table.endpoints))
        self._answers = [0] * len(table.endpoints)
        self._rate_at = np.zeros(len(table.endpoints))
        self._outputs: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._role_label = self.class_label = ""
        """Pod labels; "" is none."""
        self._scrapes = self._version = -1
        table.on_free(self._forget)
        for row in range(len(table.endpoints)):
            self._forget(row)

    def configure(self, *, role_label: str, class_label: str) -> None:
        """Set the pod labels that name an endpoint's role and its class; "" is none."""
        self._role_label, self.class_label = role_label, class_label
        self._version = -1

    def describe(self, ticket: Ticket, request: InferenceRequest, tenant: str) -> None:
        """Write the request's own features into its ticket."""
        size = len(request.prompt)
        ticket.model = request.model
        ticket.input_tokens = (size or request.body_bytes) // BYTES_PER_TOKEN
        ticket.output_tokens = self.expected_output(request, tenant)

    def matrix(self, tickets: Sequence[Ticket], now: float) -> Matrix:
        """Return the inputs of all candidates of some tickets, one ticket after the other.

        The derived columns are not written.
        """
        if self._table.scrapes != self._scrapes:
            self._copy()
        first = tickets[0]
        rows, many = first.rows, len(tickets)
        if many == 1:
            found = self._shown(rows, now)
            found[:, _INPUT] = first.input_tokens
            found[:, _OUTPUT] = first.output_tokens
        else:
            if all(each.rows is rows for each in tickets):  # all ready endpoints, as a rule
                sizes: int | list[int] = rows.size
                found = np.tile(self._shown(rows, now), (many, 1))
            else:
                sizes = [each.rows.size for each in tickets]
                found = self._shown(np.concatenate([each.rows for each in tickets]), now)
            found[:, _INPUT] = np.repeat([each.input_tokens for each in tickets], sizes)
            found[:, _OUTPUT] = np.repeat([each.output_tokens for each in tickets], sizes)
        adapters = self._table.adapters
        at = 0
        for each in tickets:
            end = at + each.rows.size
            if each.matched is not None:
                found[at:end, _PREFIX] = each.matched
            if adapters.is_known(each.model):
                found[at:end, _ADAPTER] = self._adapter_states(each.model, each.rows.tolist())
            at = end
        return found

    def _shown(self, rows: Rows, now: float) -> Matrix:
        """Return what holds of the rows for every request."""
        table = self._table
        found: Matrix = self._values[rows]
        column = found.T
        column[_AGE] = now - table.scraped_at[rows]
        column[_INFLIGHT] = table.inflight_requests[rows]
        column[_UNSEEN] = table.unseen[rows]
        column[_RATE] *= np.exp((self._rate_at[rows] - now) / RATE_S)
        awaiting, progress = table.awaiting, table.progress_at
        listed = rows.tolist()
        column[_AWAITING] = [awaiting[row] for row in listed]
        column[_QUIET] = [now - progress[row] if awaiting[row] else 0.0 for row in listed]
        return found

    def expected_output(self, request: InferenceRequest, tenant: str) -> float:
        """Return the tokens expected of the answer; NaN where nothing is known."""
        known = self._outputs.get((request.model, tenant))
        limit = float(request.max_tokens) or math.inf
        if known is None:
            return limit if limit < math.inf else math.nan
        return min(known[0], limit)

    def has(self, row: int, generation: int) -> bool:
        """Tell whether the row still has the endpoint that it had at `generation`."""
        return self._table.generation[row] == generation

    def sent(self, row: int, tokens: float, now: float) -> None:
        """Note a request with these uncached prompt tokens on its way to the row's endpoint."""
        values = self._row(row)
        values[_PREFILL] += tokens
        values[_RATE] = values[_RATE] * math.exp((self._rate_at[row] - now) / RATE_S) + tokens / RATE_S
        self._rate_at[row] = now

    def computed(self, row: int, tokens: float, context: float) -> None:
        """Note the first byte: the prompt is computed, `context` tokens are being decoded."""
        values = self._row(row)
        values[_PREFILL] = max(0.0, values[_PREFILL] - tokens)
        values[_DECODE] += context

    def ended(self, row: int, tokens: float, context: float) -> None:
        """Note the end; `tokens` and `context` are what is still counted of the two."""
        values = self._row(row)
        values[_PREFILL] = max(0.0, values[_PREFILL] - tokens)
        values[_DECODE] = max(0.0, values[_DECODE] - context)

    def answered(self, row: int, tpot_s: float) -> None:
        """Note the time per output token of an answer of the row's endpoint."""
        values = self._row(row)
        count = self._answers[row] = min(self._answers[row] + 1, RECENT)
        known = values[_TPOT]
        values[_TPOT] = tpot_s if np.isnan(known) else known + (tpot_s - known) / count

    def produced(self, model: str, tenant: str, tokens: int) -> None:
        """Note the length of an answer."""
        key = (model, tenant)
        mean, count = self._outputs.get(key, (0.0, 0))
        count = min(count + 1, 4 * RECENT)
        self._outputs[key] = (mean + (tokens - mean) / count, count)
        self._outputs.move_to_end(key)
        if len(self._outputs) > MAX_TENANTS:
            self._outputs.popitem(last=False)

    def _row(self, row: int) -> NDArray[np.float32]:
        if row >= len(self._answers):
            self._grow()
        values: NDArray[np.float32] = self._values[row]
        return values

    def _copy(self) -> None:
        """Take what scrapes have shown; after a change of endpoints their labels, too."""
        table = self._table
        if len(self._answers) < len(table.endpoints):
            self._grow()
        self._scrapes = table.scrapes
        column = self._values.T
        column[_WAITING], column[_RUNNING], column[_KV] = table.waiting, table.running, table.kv_usage
        blocks = table.num_blocks * table.block_size
        column[_CAPACITY] = np.where(blocks > 0, blocks, np.nan)
        if table.version == self._version:
            return
        self._version = table.version
        for row in table.occupied():
            endpoint = table.endpoints[row]
            labels = {} if endpoint is None else endpoint.labels
            column[_ROLE][row] = role_of(labels.get(self._role_label) if self._role_label else None)
            column[_CLASS][row] = class_code(labels.get(self.class_label) if self.class_label else None)

    def _adapter_states(self, model: str, rows: list[int]) -> list[int]:
        adapters = self._table.adapters
        running, resident = adapters.running(model), adapters.resident(model)
        slots, held, idle = adapters.slots, adapters.held, adapters.idle_since
        states = []
        for row in rows:
            if row in running:
                states.append(AdapterState.RUNNING)
            elif row in resident:
                states.append(AdapterState.RESIDENT)
            elif not slots[row]:
                states.append(AdapterState.UNKNOWN)
            elif held[row] < slots[row] or idle[row] < math.inf:
                states.append(AdapterState.LOADABLE)
            else:
                states.append(AdapterState.FULL)
        return list(map(int, states))

    def _forget(self, row: int) -> None:
        if row >= len(self._answers):
            return
        self._values[row] = empty(1)[0]
        for column in (_PREFIX, _PREFILL, _DECODE, _RATE):
            self._values[row, column] = 0.0
        self._values[row, _ADAPTER] = AdapterState.NONE
        self._answers[row] = 0
        self._rate_at[row] = 0.0

    def _grow(self) -> None:
        old, size = len(self._answers), len(self._table.endpoints)
        self._values = np.concatenate([self._values, empty(size - old)])
        self._answers.extend([0] * (size - old))
        self._rate_at = np.concatenate([self._rate_at, np.zeros(size - old)])
        for row in range(old, size):
            self._forget(row)
