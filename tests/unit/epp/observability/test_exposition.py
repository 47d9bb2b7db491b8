"""The text of /metrics in pieces: together what prometheus_client writes in one go, each of few samples."""

from itertools import islice

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from endpoint_picker.observability.exposition import SAMPLES, pieces
from endpoint_picker.observability.metrics import PickerMetrics
from endpoint_picker.outcomes import Outcome
from endpoint_picker.record import Record
from ext_proc.processor import Ending


def served(metrics: PickerMetrics, model: str) -> None:
    record = Record(1.0)
    record.model, record.outcome, record.ending = model, Outcome.PICKED, Ending.COMPLETED
    metrics.started()
    metrics.decided(record, 0.001)
    record.response_status, record.ended_at = 200, 2.0
    metrics.ended(record)


def test_the_pieces_are_the_page_and_requests_are_counted_between_them() -> None:
    metrics, registry = PickerMetrics(), CollectorRegistry()
    metrics.register(registry)
    for number in range(30):
        served(metrics, f'adapter \\ "{number}"\n')
    found = list(pieces(registry))
    assert b"".join(found) == generate_latest(registry)
    assert max(text.count(b"\n") for text in found) <= SAMPLES + 2
    models = 30
    for _text in islice(pieces(registry), 60):
        models += 1
        served(metrics, f"new {models}")
    assert models > 45
