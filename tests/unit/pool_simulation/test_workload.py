from pool_simulation.workload import Segment, SimulatedRequest


def test_a_prompt_is_as_long_as_its_segments() -> None:
    request = SimulatedRequest(
        request_id="a",
        arrival_s=0.0,
        prompt=(Segment(1, 100), Segment(2, 23)),
        output_tokens=5,
        output_segment=3,
        model="m",
    )
    assert request.prompt_tokens == 123
