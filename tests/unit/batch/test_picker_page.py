"""What the subscriber reads of a picker's page."""

from batch_subscriber.flow import Reading
from batch_subscriber.picker_page import read_page

PAGE = b"""\
# HELP llm_d_epp_flow_control_pool_saturation Saturation.
# TYPE llm_d_epp_flow_control_pool_saturation gauge
llm_d_epp_flow_control_pool_saturation{inference_pool="a",stage="decode"} 0.25
llm_d_epp_flow_control_pool_saturation{inference_pool="a",stage="prefill"} 1.5
llm_d_epp_flow_control_pool_saturation{inference_pool="b",stage="all"} 7
inference_extension_flow_control_pool_saturation{inference_pool="a",stage="all"} 99
llm_d_epp_flow_control_queue_size{fairness_id="x,y}",priority="-10",inference_pool="a",model_name="m"} 3
llm_d_epp_flow_control_queue_size{fairness_id="z",priority="-1",inference_pool="a",model_name="m"} 2
llm_d_epp_flow_control_queue_size{fairness_id="z",priority="0",inference_pool="a",model_name="m"} 40
llm_d_epp_ready_endpoints{name="a"} 4
llm_d_epp_ready_endpoints{name="b"} 2
"""


def test_the_fullest_stage_of_the_pool_counts_and_what_waits_below_zero() -> None:
    assert read_page(PAGE, "a") == Reading(saturation=1.5, queued=5, replicas=4)
    assert read_page(PAGE, "b") == Reading(saturation=7.0, queued=0, replicas=2)
    assert read_page(PAGE) == Reading(saturation=7.0, queued=5, replicas=6)


def test_without_flow_control_only_replicas_are_known() -> None:
    assert read_page(b'inference_pool_ready_pods{name="a"} 4\n', "a") == Reading(None, None, 4)
    assert read_page(b"", "a") == Reading()
    assert read_page(b"llm_d_epp_flow_control_pool_saturation +Inf\n").saturation == float("inf")
    assert read_page(b"\xff\x00 llm_d_epp_ready_endpoints{ 4\n") == Reading()
