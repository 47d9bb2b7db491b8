"""The picker's process in the soak: runs `app.Picker`, offers it one configuration after another, recounts.

Run as `python soak_picker.py REPORT RELOAD_SECONDS FLAGS...`. Every `RECOUNT_S` a line of JSON goes to
REPORT: the ledger's figures, and the same figures counted from the decisions that have not ended.
"""

import asyncio
import json
import sys
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import uvloop
from typing_extensions import override

from endpoint_picker import app, settings
from endpoint_picker.decision import Decision
from endpoint_picker.observability.logs import set_up_logs
from endpoint_picker.routing import PoolRouter

RECOUNT_S = 1.0
CONFIGS = (
    "",
    """
plugins:
- {type: lora-affinity-scorer}
- {type: no-hit-lru-scorer}
- {type: prefix-cache-affinity-filter}
- {type: prefix-cache-scorer}
- {type: running-requests-size-scorer}
- {type: token-load-scorer}
- {type: weighted-random-picker}
- {type: probabilistic-admitter}
- {type: destination-endpoint-served-verifier}
- type: request-attribute-reporter
  parameters: {attributes: [{key: {name: t}, expression: usage.total_tokens}]}
""",
    "plugins: [{type: this-type-is-unknown}]",
    """
plugins: [{type: active-request-scorer}, {type: concurrency-detector}, {type: passthrough-parser}]
schedulingProfiles: [{name: p, plugins: [{pluginRef: active-request-scorer}]}]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
requestHandler: {parsers: [{pluginRef: passthrough-parser}]}
""",
)


class Recount:
    """Follows the decisions of a router beside its ledger."""

    def __init__(self, router: PoolRouter) -> None:
        self._router = router
        self._held: dict[int, Decision] = {}
        self._decided = router.scheduler.decide
        self._ended = router.ended

    def decide(self, *arguments: Any) -> Any:
        answer = self._decided(*arguments)
        if isinstance(answer, Decision):
            self._held[id(answer)] = answer
        return answer

    def ended(self, decision: Decision, record: Any) -> None:
        self._ended(decision, record)
        del self._held[id(decision)]

    def figures(self) -> dict[str, Any]:
        """Return the ledger's figures and their recount, both of one moment: this runs between two events."""
        table, ledger = self._router.table, self._router.ledger
        held = [
            each for decision in self._held.values() for each in decision.reservations if not each.released
        ]
        here: Counter[int] = Counter()
        tokens: Counter[int] = Counter()
        for each in held:
            if ledger._is_here(each):
                here[each.row] += 1
                tokens[each.row] += each.tokens
        rows = range(len(table.endpoints))
        return {
            "held": ledger.held,
            "recount": len(held),
            "requests": [int(table.inflight_requests[row]) for row in rows if table.inflight_requests[row]],
            "recountedRequests": [here[row] for row in rows if here[row]],
            "tokens": [int(table.inflight_tokens[row]) for row in rows if table.inflight_tokens[row]],
            "recountedTokens": [tokens[row] for row in rows if tokens[row]],
            "away": len(ledger._away),
            "waiting": self._router.waiting,
        }


class Scheduler:
    """The router's scheduler, with `decide` followed."""

    def __init__(self, scheduler: Any, recount: Recount) -> None:
        self._scheduler = scheduler
        self.decide = recount.decide

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_scheduler", "decide"):
            super().__setattr__(name, value)
        else:
            setattr(self._scheduler, name, value)


async def main(report: Path, reload_s: float, flags: list[str]) -> None:
    """Run until SIGTERM."""
    picker = app.Picker(settings.parse(flags))
    recount = Recount(picker.router)
    picker.router.scheduler = Scheduler(picker.router.scheduler, recount)  # type: ignore[assignment]
    picker.router.ended = recount.ended
    texts = cycle(CONFIGS)

    async def reload() -> None:
        while True:
            await asyncio.sleep(reload_s)
            picker._config(next(texts))

    async def count() -> None:
        with report.open("a", buffering=1) as file:
            while True:
                await asyncio.sleep(RECOUNT_S)
                file.write(json.dumps(recount.figures()) + "\n")

    beside = [asyncio.create_task(each) for each in (reload(), count())]
    try:
        await picker.run()
    finally:
        for task in beside:
            task.cancel()


if __name__ == "__main__":
    set_up_logs("info")
    uvloop.run(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
