"""A pool whose requests are predicted: what the status page says, and what a row keeps of its requests."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from endpoint_picker.datalayer.table import Endpoint
from endpoint_picker.decision import Decision, Refusal, Waiting
from endpoint_picker.latency.reasons import Reason
from endpoint_picker.latency.ticket import Ticket
from endpoint_picker.observability.explain import explain_page
from endpoint_picker.record import Record
from endpoint_picker.request import InferenceRequest
from endpoint_picker.routing import build_router
from ext_proc.body.usage import Usage
from ext_proc.processor import Ending
from latency_contract.prediction_wire import Prediction, decode_request, encode_answer
from latency_contract.schema import COLUMN, Target
from latency_contract.states import State

CONFIG = """
plugins:
- type: predicted-latency-producer
  parameters:
    mode: All
    streamingMode: true
    holdoutPercent: 0
    endpointClassLabel: gpu
- {type: latency-scorer}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: latency-scorer}]}
"""


class Link:
    """Answers at once: TTFT 1 s and TPOT 0.1 s on each endpoint, the bound twice that; None: it fails.

    Asked for the time to the end, it answers 1 s. When it does not answer at once it answers on `answer`.
    """

    servers = 1

    def __init__(self) -> None:
        self.state: State | None = State.TRAINED
        self.answers_at_once = True
        self.targets: tuple[Target, ...] = ()
        self.answer: Callable[[], None] = lambda: None

    def send(
        self, server: int, question: bytes, timeout_s: float, answered: Callable[[bytes | None], None]
    ) -> None:
        asked = decode_request(question)
        self.targets = asked.targets
        rows = len(asked.matrix)
        seconds = np.empty((len(asked.targets), 2, rows), dtype=np.float32)
        seconds[:] = np.array([[1.0, 2.0], [0.1, 0.2]])[: len(asked.targets), :, np.newaxis]
        marks = np.zeros(rows, dtype=np.uint8)
        message = (
            None
            if self.state is None
            else encode_answer(Prediction(self.state, "v1", asked.targets, marks, seconds))
        )
        if self.answers_at_once:
            answered(message)
        else:
            self.answer = lambda: answered(message)


class Stage:
    def __init__(self, config: str = CONFIG, **labels: dict[str, str]) -> None:
        self.now = 100.0
        self.link = Link()
        self.router = build_router(config_text=config, clock=lambda: self.now)
        assert not self.router.config_error, self.router.config_error
        self.replace(**(labels or {"a": {}, "b": {}}))
        self.router.pool.desk.connect(self.link)
        self.router.pool.desk.state = State.TRAINED
        self.number = 0

    def replace(self, **labels: dict[str, str]) -> None:
        """Make the pool hold endpoints of these names."""
        self.router.replace_endpoints(
            Endpoint(name, "default", f"10.0.0.{ord(name)}", 8000, labels=each)
            for name, each in labels.items()
        )

    def ask(
        self, resume: Callable[[Decision | Refusal], None], **headers: str
    ) -> Decision | Refusal | Waiting:
        self.number += 1
        request = InferenceRequest(
            request_id=str(self.number),
            model="m",
            prompt=b"p" * 4000,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        return self.router.decide(request, None, resume)

    def decide(self, **headers: str) -> Decision:
        found = self.ask(lambda _: None, **headers)
        assert isinstance(found, Decision)
        return found

    def serve(self, ttft_s: float, **headers: str) -> None:
        """Decide on a request, and end it."""
        self.router.ended(self.decide(**headers), self.record(ttft_s))

    def explained(self) -> dict[str, Any]:
        """Return what the newest decision's explanation says of its prediction."""
        page = explain_page(self.router.decisions, {"request_id": str(self.number)}, 0.0)
        found: dict[str, Any] = page["decisions"][0]["prediction"]
        return found

    def record(
        self, ttft_s: float, tokens: int = 11, e2e_s: float = 3.0, *, streaming: bool = True
    ) -> Record:
        record = Record(self.now)
        record.decided_at = self.now
        record.first_byte_at = record.first_token_at = self.now + ttft_s
        record.last_token_at = record.ended_at = self.now + e2e_s
        record.streaming, record.response_status = streaming, 200
        record.ending = Ending.COMPLETED
        record.usage = Usage(1000, tokens, 0)
        return record

    @property
    def page(self) -> dict[str, Any]:
        found: dict[str, Any] = self.router.state()["latencyPrediction"]
        return found

    def features(self, row: int) -> dict[str, float]:
        """Return what the next question says of a row."""
        ticket = Ticket(np.array([row]), self.now, self.now)
        matrix = self.router.pool.desk.board.matrix([ticket], self.now)
        return {name: float(matrix[0, at]) for name, at in COLUMN.items()}


def test_the_page_says_how_the_pool_predicts_and_what_came_of_it() -> None:
    stage = Stage()
    for ttft in (1.0, 1.5, 3.0):
        decision, record = stage.decide(), stage.record(ttft, e2e_s=ttft + 1.0)
        stage.router.first_byte(decision, record)
        stage.router.ended(decision, record)
    stage.now += 10.0
    page = stage.page
    assert (page["enabled"], page["routes"], page["reason"]) == (True, True, "")
    assert (page["mode"], page["streamingMode"], page["quantile"]) == ("All", True, 0.9)
    assert (page["servers"], page["serversAnswering"]) == (1, 1)
    assert (page["state"], page["version"]) == ("trained", "v1")
    # Errors 0, 0.5 and 2 of the median; bounds 2 and 0.2 s.
    assert page["errors"]["ttft"] == {
        "judged": 3,
        "medianAbsolute": 0.5,
        "median": 0.5,
        "withinBound": pytest.approx(2 / 3, abs=1e-4),
    }
    assert page["errors"]["tpot"]["withinBound"] == 1.0
    assert page["rate"] == {"requestsPerSecond": 0.3, "rowsPerSecond": 0.6, "callsPerSecond": 0.3}
    assert page["requests"]["predicted"] == 3
    assert page["samples"] == {"added": 3, "dropped": 0, "lost": 0, "sent": 0, "waiting": 3}
    assert page["responses"] == {"streams": 3, "others": 0}
    stage.now += 60.0
    assert stage.page["rate"]["requestsPerSecond"] == 0.0


@pytest.mark.parametrize(
    ("state", "reason"), [(State.WARMING, "warming"), (State.DEGRADED, "degraded"), (None, "unreachable")]
)
def test_the_page_says_why_nothing_is_predicted(state: State | None, reason: str) -> None:
    stage = Stage()
    stage.link.state = state
    for _ in range(2):
        stage.decide()
    page = stage.page
    assert (page["routes"], page["reason"]) == (False, reason)
    assert page["serversAnswering"] == (state is not None)


def test_an_answer_that_does_not_come_costs_the_budget_and_the_explanation_says_so() -> None:
    stage = Stage()
    stage.link.answers_at_once = False
    answers: list[Decision | Refusal] = []
    assert isinstance(stage.ask(answers.append), Waiting)
    stage.router.advance()
    stage.now += 0.099
    stage.router.advance()
    assert answers == []
    stage.now += 0.002
    stage.router.advance()
    (decision,) = answers
    assert isinstance(decision, Decision)
    assert stage.explained()["reason"] == "late"
    assert stage.page["requests"]["late"] == 1


def test_an_answer_to_the_question_of_an_earlier_configuration_fails_no_request() -> None:
    stage = Stage(CONFIG.replace("streamingMode: true", "streamingMode: false"))
    stage.link.answers_at_once = False
    answers: list[Decision | Refusal] = []
    assert isinstance(stage.ask(answers.append), Waiting)
    stage.router.advance()
    stage.link.answer()
    assert stage.router.apply_config(CONFIG)
    (decision,) = answers
    assert isinstance(decision, Decision)


@pytest.mark.parametrize(
    ("state", "reason"), [(State.WARMING, "warming"), (State.DEGRADED, "degraded"), (None, "failed")]
)
def test_the_explanation_says_why_a_request_had_no_prediction(state: State | None, reason: str) -> None:
    stage = Stage()
    stage.link.state = state
    stage.decide()
    assert stage.explained() == {
        "reason": reason,
        "policy": "heuristic",
        "ttftObjectiveSeconds": None,
        "tpotObjectiveSeconds": None,
    }
    assert stage.page["requests"][reason] == 1


def test_requests_opt_in_by_a_header_unless_the_mode_is_all() -> None:
    stage = Stage(CONFIG.replace("mode: All", "mode: OptIn"))
    stage.decide()
    assert stage.explained()["reason"] == "not-asked"
    stage.decide(x_prediction_based_scheduling="true")
    assert stage.explained()["reason"] == "predicted"


def test_prediction_that_does_worse_goes_out_but_for_the_held_out_part_and_comes_back() -> None:
    stage = Stage(CONFIG.replace("holdoutPercent: 0", "holdoutPercent: 50"))
    counts, proof = stage.router.pool.desk.counts, stage.router.pool.desk.proof

    def serve_until(over: Callable[[], bool], predicted_s: float, heuristic_s: float) -> None:
        for _ in range(4_000):
            before = counts[Reason.PREDICTED]
            decision = stage.decide()
            predicted = counts[Reason.PREDICTED] > before
            spread = 1.0 + stage.number % 7 / 10.0
            stage.router.ended(
                decision, stage.record(spread * (predicted_s if predicted else heuristic_s), e2e_s=9.0)
            )
            stage.now += 0.1
            if over():
                return
        raise AssertionError("no verdict")

    serve_until(lambda: proof.is_out, 1.2, 1.0)
    gain = stage.page["gain"]["latency"]
    assert stage.page["isOutForNoGain"]
    assert gain["enough"]
    assert gain["high"] < 0.0
    assert (stage.page["routes"], stage.page["reason"]) == (False, "no-gain")
    before = stage.page["requests"]
    for _ in range(200):
        stage.serve(1.0)
    after = stage.page["requests"]
    # By their ids half of the requests are picked by prediction, so that its errors and gain stay known.
    assert after["holdout"] == before["holdout"]
    assert 60 < after["predicted"] - before["predicted"] < 140
    assert after["no-gain"] - before["no-gain"] == 200 - (after["predicted"] - before["predicted"])
    serve_until(lambda: not proof.is_out, 0.8, 1.0)
    assert (stage.page["routes"], stage.page["reason"]) == (True, "")


def test_without_streaming_mode_the_time_to_the_end_is_predicted_and_judged_as_ttft() -> None:
    stage = Stage(CONFIG.replace("streamingMode: true", "streamingMode: false"))
    decision = stage.decide(x_slo_ttft_ms="2500", x_slo_tpot_ms="1")
    assert stage.link.targets == (Target.E2E,)
    shown = stage.explained()["endpoints"][0]
    assert shown["firstHeadroomSeconds"] == pytest.approx(0.5)  # the bound is 2 s
    assert (shown["tpotSeconds"], shown["tpotHeadroomSeconds"]) == (None, 0.0)
    stage.router.ended(decision, stage.record(1.0, e2e_s=3.0))
    batch = stage.router.pool.desk.samples.take()
    assert batch is not None
    assert np.isnan(batch.actual[0]).tolist() == [True, True, False]
    assert batch.actual[0, 2] == 3.0
    figures = stage.router.pool.desk.figures.models["m"]
    assert (figures.missed_ttft, figures.missed_tpot) == (1, 0)
    assert figures.ttft.total == pytest.approx(3.0)
    assert set(stage.page["errors"]) == {"e2e"}


def test_a_configuration_without_the_producer_does_not_predict() -> None:
    stage = Stage("plugins: [{type: queue-scorer}]")
    stage.decide()
    assert (stage.page["enabled"], stage.page["routes"]) == (False, False)


def test_engines_of_two_kinds_are_named_unless_their_endpoints_have_a_class() -> None:
    engine = "inference.networking.k8s.io/engine-type"
    one_kind = Stage(a={engine: "vllm"}, b={})
    assert (one_kind.page["engines"], one_kind.page["enginesWithoutClass"]) == (["vllm"], [])
    two_kinds = Stage(a={engine: "vllm", "gpu": "h200"}, b={engine: "sglang"})
    assert two_kinds.page["engines"] == ["sglang", "vllm"]
    assert two_kinds.page["enginesWithoutClass"] == ["sglang"]
    two_kinds.replace(a={engine: "vllm", "gpu": "h200"}, b={engine: "sglang", "gpu": "b200"})
    assert two_kinds.page["enginesWithoutClass"] == []


@pytest.mark.parametrize("answers", [False, True])
def test_a_request_that_ends_after_its_endpoint_left_says_nothing_of_the_rows_next_one(answers: bool) -> None:
    stage = Stage(a={})
    decision = stage.decide(x_slo_tpot_ms="50")
    row, record = decision.reservations[0].row, stage.record(1.0)
    if answers:
        stage.router.first_byte(decision, record)
    stage.replace(b={})
    other = stage.decide()
    assert other.reservations[0].row == row
    before = stage.features(row)
    assert before["prefill_tokens_in_flight"] > 0.0
    if not answers:
        stage.router.first_byte(decision, record)
    stage.router.ended(decision, record)
    after = stage.features(row)
    for name in ("prefill_tokens_in_flight", "decode_tokens_in_flight"):
        assert after[name] == before[name]
    assert np.isnan(after["recent_tpot_s"])
    assert stage.router.pool.desk.limits.of(np.array([row])) is None


def test_the_strictest_objective_of_a_row_is_that_of_the_requests_that_still_run() -> None:
    stage = Stage(a={})
    limits, rows = stage.router.pool.desk.limits, np.array([0])
    strict, loose = stage.decide(x_slo_tpot_ms="20"), stage.decide(x_slo_tpot_ms="80")
    rows = np.array([strict.reservations[0].row])
    found = limits.of(rows)
    assert found is not None
    assert found.tolist() == [0.02]
    stage.router.ended(strict, stage.record(1.0))
    found = limits.of(rows)
    assert found is not None
    assert found.tolist() == [0.08]
    stage.router.ended(loose, stage.record(1.0))
    assert limits.of(rows) is None


def test_an_answer_that_came_in_one_piece_has_no_tpot() -> None:
    stage = Stage()
    stage.router.ended(stage.decide(), stage.record(1.0, e2e_s=1.0))
    batch = stage.router.pool.desk.samples.take()
    assert batch is not None
    assert batch.actual[0, [0, 2]].tolist() == [1.0, 1.0]
    assert np.isnan(batch.actual[0, 1])
