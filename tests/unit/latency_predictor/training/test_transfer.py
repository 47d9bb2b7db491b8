"""What an older trainer hands over: whole bundles and samples, whatever a peer sends."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latency_contract.bundles import Bundle
from latency_contract.errors import WireError
from latency_contract.sample_wire import encode_batch
from latency_predictor.learning.fit import FitSettings
from latency_predictor.learning.learner import Learner, LearnerSettings
from latency_predictor.training import transfer
from latency_predictor.training.transfer import Receiver, messages, pack, unpack
from latency_samples import START_S, batch


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    learner = Learner(LearnerSettings(fit=FitSettings(rounds=2)))
    learner.take(batch(120), START_S)
    learner.train(START_S)
    return learner.bundle(1_750_000_000_000)


def test_bundles_and_samples_arrive(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PIECE", 1000)
    received = Receiver()
    for message in unpack(pack(messages([bundle], [encode_batch(batch(7))]))):
        received.take(message)
    assert received.bundles == [bundle]
    assert [len(each) for each in received.batches] == [7]
    assert received.errors == []


def test_a_bundle_that_lacks_a_file_is_left_out(bundle: Any) -> None:
    received = Receiver()
    for message in messages([bundle], []):
        if b"manifest.json" not in message[:20]:
            received.take(message)
    assert received.bundles == []
    assert "manifest.json cannot be used" in received.errors[0]


def test_a_peer_cannot_send_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_BYTES", 10_000)
    received = Receiver()
    message = bytes((transfer.Part.SAMPLES,)) + encode_batch(batch(5))
    for _ in range(10_000 // len(message)):
        received.take(message)
    with pytest.raises(WireError, match="more than"):
        received.take(message)


@given(parts=st.lists(st.binary(max_size=60), max_size=10))
def test_no_messages_do_more_than_raise(parts: Any) -> None:
    received = Receiver()
    try:
        for part in parts:
            received.take(part)
    except WireError:
        return
    assert received.bundles == []


@given(content=st.binary(max_size=100))
def test_what_is_no_export_is_refused(content: Any) -> None:
    with contextlib.suppress(WireError):
        list(unpack(b"HPX1" + content))
    with pytest.raises(WireError, match="no export"):
        list(unpack(b"PK" + content))
