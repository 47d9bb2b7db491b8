"""What the reader of a workload file accepts, and what it says of a faulty one."""

import pytest

from endpoint_picker import yaml_text
from endpoint_picker.config_errors import ConfigError
from pool_simulation.workloads import spec

GOOD = """\
duration_s: 60
streams:
- name: chat
  preset: chat
  arrivals: {type: poisson, rate: 3}
  output_tokens: 7
"""


def test_a_stream_takes_from_its_preset_what_it_does_not_say() -> None:
    stream = spec.load(GOOD).streams[0]
    assert stream.turns is not None
    assert stream.max_prompt_tokens == 16_000
    assert stream.output_tokens.model_dump()["value"] == 7


def test_the_complete_form_reads_as_the_same_workload() -> None:
    read = spec.load(GOOD)
    assert spec.load(spec.dump(read)) == read


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        pytest.param("3}", "-3}", 5, "streams[0].arrivals.rate: Input should be greater than 0", id="rate"),
        pytest.param(
            "poisson", "poison", 5, "type poison is unknown; there are constant, poisson", id="type"
        ),
        pytest.param("type: poisson, ", "", 5, "arrivals: must be a mapping with a type", id="no-type"),
        pytest.param(": 7", ": many", 6, "output_tokens: must be a number, or a mapping", id="word"),
        pytest.param(": 7", ": '7'", 6, "output_tokens: must be a number, or a mapping", id="text"),
        pytest.param(
            ": 7",
            ": {type: lognormal, median: 9}",
            6,
            "streams[0].output_tokens.p90: is missing",
            id="missing",
        ),
        pytest.param(
            ": 7", ": {type: uniform, low: 9, high: 2}", 6, "output_tokens: low 9 is above high 2", id="order"
        ),
        pytest.param(
            "output_tokens", "output_token", 6, "streams[0].output_token: unknown key", id="unknown-key"
        ),
        pytest.param(
            "preset: chat", "preset: cat", 4, "'cat' is no preset; there are sharegpt, chat", id="preset"
        ),
        pytest.param("name: chat", "name: a b", 3, "streams[0].name: String should match", id="name"),
        pytest.param("duration_s: 60", "warmup_s: 3", 0, "duration_s is missing", id="no-duration"),
        pytest.param("60", "60\nwarmup_s: 60", 0, "warmup_s (60) leaves nothing of duration_s", id="warmup"),
        pytest.param(GOOD, "duration_s: 60\n", 0, "give at least one of streams and traces", id="nothing"),
        pytest.param(GOOD, "- a\n", 0, "a workload is a mapping", id="list"),
        pytest.param(GOOD, "a: [\n", 0, "not YAML at line 2", id="not-yaml"),
    ],
)
def test_a_fault_is_named_by_line_path_and_remedy(old: str, new: str, line: int, says: str) -> None:
    text = GOOD.replace(old, new)
    with pytest.raises(ConfigError) as refused:
        spec.load(text)
    (fault,) = refused.value.faults
    assert says in str(fault)
    assert yaml_text.lines_of(text, [fault.path]) == [line]


def test_all_faults_are_named_at_once() -> None:
    text = GOOD.replace("rate: 3", "rate: 0").replace(": 7", ": {type: fixed, value: -1}") + "extra: 1\n"
    with pytest.raises(ConfigError) as refused:
        spec.load(text)
    assert {fault.path for fault in refused.value.faults} == {
        "streams[0].arrivals.rate",
        "streams[0].output_tokens.value",
        "extra",
    }


def test_two_streams_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="several streams are named chat"):
        spec.load(GOOD + GOOD[GOOD.index("- name") :])
