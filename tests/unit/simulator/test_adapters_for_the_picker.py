"""The picker reads the LoRA adapters that a simulated server's metrics page shows."""

import random

from endpoint_picker.datalayer.adapters import AdapterReading
from endpoint_picker.datalayer.metrics_page import ENGINES, PageReader, Reading
from model_server_sim.engine import Engine, Request
from model_server_sim.metrics import EngineMetrics
from model_server_sim.params import EngineParams


def test_running_and_waiting_adapters_and_none_of_the_idle_ones() -> None:
    params = EngineParams(max_num_seqs=2)
    engine = Engine(params, random.Random(0).random)
    metrics = EngineMetrics(params, "m", 0, created=1000.0, with_lora=True)

    def read() -> Reading:
        return PageReader(ENGINES["vllm"]).read(metrics.page(engine, 1.7645e9).encode())

    for index, adapter in enumerate("abc"):
        engine.submit(
            Request(request_id=f"r{index}", prompt_tokens=40, output_tokens=5, adapter=adapter), 0.0
        )
    step = engine.step(0.0)
    assert read().adapters == AdapterReading(frozenset("ab"), frozenset("c"), params.max_loras)
    assert (read().running, read().waiting) == (2, 1)
    while step.next_time is not None:
        step = engine.step(step.next_time)
    assert read().adapters == AdapterReading(frozenset(), frozenset(), params.max_loras)
