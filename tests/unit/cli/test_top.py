"""`headroom top`: frames of frozen pages, and the whole command against a picker's real metrics port."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from decided_picker import decided, serving
from headroom_cli.kubectl_plugin import plugin
from headroom_cli.main import main
from headroom_cli.top.frame import MOST_ENDPOINTS, MOST_FLOWS, frame_of, plain
from headroom_cli.top.main import drawn

HOST = "127.0.0.1"


def endpoint(number: int, **more: Any) -> dict[str, Any]:
    return {
        "endpoint": f"10.0.0.{number}:8000", "name": f"server-{number:02}", "ready": True,
        "contact": "answers",
        "waiting": 2.0, "running": 8.0, "kvUsage": 0.25, "inFlightRequests": number, "stalls": False,
        "recentPrefixHit": 0.5, **more,
    }  # fmt: skip


def state(*endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    more = {"latencyPrediction": {"enabled": False}} | more
    index = {"entries": 40, "blockTokens": 16, "promptBlocks": 200, "matchedBlocks": 50}
    return {
        "pool": {"name": "qwen", "namespace": "ml"},
        "draining": False,
        "synced": True,
        "router": {"endpoints": list(endpoints), "saturation": 0.5, "prefixIndex": index, **more},
    }


def flow(number: int) -> dict[str, Any]:
    return {
        "tenant": f"t{number}", "priority": -10, "requests": 3, "bytes": 1500, "inFlight": 1,
        "oldestWaitSeconds": 12.0,
    }  # fmt: skip


def queue(*flows: dict[str, Any]) -> dict[str, Any]:
    band = {
        "priority": -10, "requests": 30, "bytes": 15_000, "maxRequests": 5000, "maxBytes": 10**9,
        "oldestWaitSeconds": 12.0, "dispatchRate": 2.5, "retryAfterSeconds": 13,
    }  # fmt: skip
    return {
        "enabled": True, "requests": 30, "bytes": 15_000, "maxRequests": None, "maxBytes": None,
        "setAside": 0, "poolEmpty": False, "saturation": {"decode": 1.2, "effective": 1.2},
        "staleEndpoints": 0, "failedOpenEndpoints": 0, "dispatchRate": 2.5, "oldestWaitSeconds": 12.0,
        "bands": [band], "flows": list(flows), "otherFlows": {"flows": 4, "requests": 9},
    }  # fmt: skip


OFF = {"enabled": False, "bands": []}


def test_a_frame_without_a_queue() -> None:
    silent = endpoint(2, ready=False, contact="unreachable", waiting=None, kvUsage=None, recentPrefixHit=None)
    stuck = endpoint(3, stalls=True)
    assert plain(frame_of("picker-1", state(endpoint(1), silent, stuck), OFF)) == (
        """Pool         ml/qwen
Picker       picker-1
Endpoints    2 ready of 3
Saturation   0.500
Queue        off
Prefix hits  25% of 200 blocks since the start, 40 blocks known
Predictor    off

Endpoints
ENDPOINT       NAME       READY  CONTACT          WAITING  RUNNING  KV USED  IN FLIGHT  PREFIX HITS
10.0.0.1:8000  server-01  yes    answers          2        8        25%      1          50%
10.0.0.2:8000  server-02  no     unreachable      ?        8        ?        2          -
10.0.0.3:8000  server-03  yes    answers, stalls  2        8        25%      3          50%"""
    )


def test_a_frame_with_a_queue() -> None:
    shown = plain(frame_of("picker-1", state(endpoint(1)), queue(flow(1))))
    assert "Saturation   1.200\n" in shown
    assert "Queue        30 requests, 15kB, the oldest for 12s, 2.5 requests/s leave\n" in shown
    bands, tenants = shown.split("\n\n")[2:]
    assert bands == (
        """Queue by band
PRIORITY  WAITING  OF    BYTES  OF     OLDEST  LEAVE/S  RETRY-AFTER
-10       30       5000  15kB   1.0GB  12s     2.5      13s"""
    )
    assert tenants == (
        """Queue by tenant
TENANT  PRIORITY  WAITING  BYTES  IN FLIGHT  OLDEST
t1      -10       3        1.5kB  1          12s
and 4 flows with 9 requests"""
    )


HOSTILE = "\x1b]0;title\x07\x1b[2Ja\u009b31m\u202eb\nc"


def test_names_of_clients_cannot_act_on_the_terminal() -> None:
    frame = frame_of("picker-1", state(endpoint(1)), queue({**flow(1), "tenant": HOSTILE}))
    screen = io.StringIO()
    Console(file=screen, width=200).print(drawn([frame], HOSTILE))
    for shown in (plain(frame), screen.getvalue()):
        assert "]0;title" in shown
        assert not [each for each in shown.replace("\n", "") if not each.isprintable()]


def test_stages_set_aside_requests_and_an_empty_pool_are_named() -> None:
    page = queue() | {"setAside": 2, "poolEmpty": True, "failedOpenEndpoints": 1}
    page["saturation"] = {"prefill": 0.25, "decode": 1.5, "effective": 1.5}
    shown = plain(frame_of("picker-1", state(), page))
    assert "1.500 (prefill 0.250, decode 1.500); 1 endpoints judged without metrics\n" in shown
    assert "; 2 wait for an endpoint of their hint; the pool is empty\n" in shown


def test_large_pools_and_many_tenants_are_cut() -> None:
    endpoints = [endpoint(number) for number in range(100)]
    shown = plain(frame_of("p", state(*endpoints), queue(*[flow(number) for number in range(50)])))
    assert "server-99" in shown
    assert "server-01" not in shown
    assert f"and {100 - MOST_ENDPOINTS} with fewer requests in flight" in shown
    rest = 50 - MOST_FLOWS
    assert f"and {4 + rest} flows with {9 + 3 * rest} requests" in shown


PREDICTION: dict[str, Any] = {
    "enabled": True,
    "state": "trained",
    "routes": True,
    "reason": "",
    "errors": {"ttft": {"medianAbsolute": 0.123}},
    "gain": {
        "goodput": None,
        "latency": {
            "mean": 0.21, "low": 0.17, "high": 0.25, "predicted": 900, "heuristic": 450, "enough": True,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("prediction", "text"),
    [
        ({"enabled": False}, "off"),
        (PREDICTION, "trained, routes; error ttft 12%; gain latency +21% (+17% to +25%)"),
        (
            PREDICTION
            | {"state": "warming", "routes": False, "reason": "warming", "errors": {}}
            | {"gain": {"goodput": None, "latency": None}},
            "warming, does not route (warming)",
        ),
    ],
)
def test_prediction_is_shown_in_a_line(prediction: Any, text: str) -> None:
    shown = plain(frame_of("p", state(latencyPrediction=prediction), OFF))
    assert f"Predictor    {text}\n" in shown


@pytest.fixture
def picker() -> Iterator[str]:
    """The address of the metrics port of a picker with two requests in its queue."""
    router = decided("featureGates: [flowControl]")
    page = {
        "pool": {"name": "qwen", "namespace": "ml"}, "draining": False, "synced": True,
    }  # fmt: skip
    with serving(router, HOST, lambda: {**page, "router": router.state()}) as port:
        yield f"{HOST}:{port}"


@pytest.mark.parametrize("command", [main, plugin], ids=["headroom", "kubectl headroom"])
def test_one_frame_of_a_picker(picker: str, capsys: pytest.CaptureFixture[str], command: Any) -> None:
    assert command(["top", "--address", picker, "--once"]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert f"Picker       {picker}\n" in shown
    assert "Endpoints    2 ready of 2\n" in shown
    line = next(each for each in shown.splitlines() if each.startswith("10.0.0.0:8000"))
    assert line.split() == ["10.0.0.0:8000", "p0", "yes", "answers", "0", "1", "25%", "0", "-"]
    tenants = shown.split("Queue by tenant\n")[1].splitlines()
    assert tenants[1].split()[:3] == ["default-flow", "0", "2"]
    assert command(["top", "--address", picker]) == 0  # no terminal
    assert "Queue by band\n" in capsys.readouterr().out


def test_json_is_the_pickers_pages(picker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--address", picker, "-o", "json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["picker"] == picker
    assert len(answer["state"]["router"]["endpoints"]) == 2
    assert [each["priority"] for each in answer["queue"]["bands"]] == [0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--address", f"{HOST}:1"], "does not answer on its metrics port"),
        (["pool", "--interval", "0"], "--interval is a number of seconds from 0.1 to 3600"),
        ([], "name the InferencePool, or a picker by --address HOST:PORT"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert plugin(["top", *arguments]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("kubectl headroom: ")
    assert sentence in told.err
    assert len(told.err.splitlines()) == 1


def test_a_picker_without_these_pages_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(decided(), HOST) as port:
        assert main(["top", "--address", f"{HOST}:{port}"]) == 1
    assert f"{HOST}:{port} has no /debug/state with router" in capsys.readouterr().err
