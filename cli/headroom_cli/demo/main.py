"""`headroom demo`: the operator and a pool on a local cluster, step by step, by a user's commands."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headroom_cli.demo import coexistence, scenarios
from headroom_cli.demo.api import condition, progress, wait_for
from headroom_cli.demo.failure import DemoError
from headroom_cli.demo.prediction import prediction
from headroom_cli.demo.requests import show_requests
from headroom_cli.demo.stage import Measurement, Stage
from headroom_cli.local import add_node_option
from local_cluster.cluster import LocalCluster
from local_cluster.state import PROCESS
from local_cluster.tools import find_kubectl

DEFAULT_DIRECTORY = Path(".local/demo")
GIE_CRDS, OVERLAY, QUICKSTART = (
    Path("manifests/gie-crds"),
    Path("manifests/overlays/demo"),
    Path("manifests/examples/quickstart"),
)
FIRST_ROUTED_GOAL_S = 60.0
CHECK_SLACK = 3.0
"""The check fails above this many times a figure's goal: machines are shared and noisy."""

SCENARIOS: tuple[scenarios.Scenario, ...] = (
    scenarios.bodies_intact,
    scenarios.heal_service,
    scenarios.heal_arguments,
    scenarios.heal_config_map,
    scenarios.silence,
    scenarios.picker_killed,
    scenarios.picker_frozen,
    scenarios.picker_restarted,
    scenarios.scale,
    coexistence.two_pools,
    coexistence.foreign_service,
    coexistence.user_picker_is_applied,
    scenarios.delete_pool,
)


def add_commands(groups: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the group `demo`."""
    demo = groups.add_parser(
        "demo",
        help="the operator and a pool on a local cluster",
        description="Start a local cluster with the operator and the quickstart's pool, send requests "
        "through it and show which endpoint served each. Begin with `headroom demo up`.",
    )
    commands = demo.add_subparsers(required=True, metavar="COMMAND")
    begin = commands.add_parser("up", help="start the demo, show it, leave it up")
    begin.add_argument(
        "--check",
        action="store_true",
        help="verify every promise, print the figures, end the demo; exit 0 or 1",
    )
    begin.add_argument(
        "--predictor",
        action="store_true",
        help="show latency prediction: cold start, trained, and the gain; with --check verify this alone",
    )
    add_node_option(begin)
    begin.set_defaults(run=_begin)
    finish = commands.add_parser("down", help="end the demo and all its processes")
    finish.set_defaults(run=lambda given: down(given.dir))
    for command in (begin, finish):
        command.add_argument(
            "--dir", type=Path, default=DEFAULT_DIRECTORY, help="the demo's folder (default: %(default)s)"
        )


def _begin(given: argparse.Namespace) -> int:
    if given.check:
        return check(given.dir, given.node, (prediction,) if given.predictor else SCENARIOS)
    return up(given.dir, given.node, predictor=given.predictor)


def down(directory: Path) -> int:
    """End the demo; return 0 also when it is not up."""
    LocalCluster(directory).stop()
    progress("The demo is down.")
    return 0


def up(directory: Path, node: str = PROCESS, *, predictor: bool = False) -> int:
    """Bring the demo up, show the requests, the objects and prediction, print further commands."""
    cluster = LocalCluster(directory, node=node)
    try:
        stage, _ = bring_up(cluster)
        show_requests(stage)
        show_objects(stage)
        if predictor:
            progress(f"\n== {prediction.__doc__}")
            print_measurements(prediction(stage))
    except DemoError as error:
        raise DemoError(
            f"{error}. Logs are in {directory}/logs; `{_end_command(directory)}` ends the parts that run."
        ) from error
    except KeyboardInterrupt:
        progress("== interrupted: ending what was started")
        cluster.stop()
        raise
    base = stage.proxy_url()
    progress(
        f"""
The demo stays up. Talk to it:

  curl {base}/v1/models
  curl {base}/v1/completions -H 'content-type: application/json' \\
       -d '{{"model": "qwen", "prompt": "Hello", "max_tokens": 16}}'
  export KUBECONFIG={stage.cluster.kubeconfig.absolute()}
  {_kubectl_command()} get inferencepools,endpointpickers,pods
  {_headroom_command()} explain vllm-qwen

The address is that of the proxy's pod; it changes when the proxy is rolled.

End it with: {_end_command(directory)}"""
    )
    return 0


def _kubectl_command() -> str:
    """Return the command for kubectl: its path where it is installed in the virtual environment only."""
    found = find_kubectl()
    own = found is not None and found.parent == Path(sys.executable).parent
    return os.path.relpath(str(found)) if own else "kubectl"


def _headroom_command() -> str:
    """Return the command `headroom`: its path where the virtual environment is not on the search path."""
    own = Path(sys.executable).parent / "headroom"
    return os.path.relpath(str(own)) if own.exists() and shutil.which("headroom") != str(own) else "headroom"


def _end_command(directory: Path) -> str:
    return "make demo-down" if directory == DEFAULT_DIRECTORY else f"headroom demo down --dir {directory}"


def check(directory: Path, node: str = PROCESS, promises: Sequence[scenarios.Scenario] = SCENARIOS) -> int:
    """Bring the demo up, verify the promises, end it; 0 when no figure exceeds three times its goal."""
    measured: list[Measurement] = []
    broken: list[str] = []
    cluster = LocalCluster(directory, node=node)
    try:
        stage, figures = bring_up(cluster)
        measured += figures
        show_requests(stage)
        show_objects(stage)
        for scenario in promises:
            progress(f"-- {(scenario.__doc__ or scenario.__name__).splitlines()[0]}")
            try:
                measured += scenario(stage)
            except DemoError as error:
                broken.append(f"{scenario.__name__}: {error}")
                progress(f"   BROKEN: {error}")
        stage.close()
    finally:
        progress("-- ending the demo")
        cluster.stop()
        left = cluster.processes()
    broken += [
        f"{m.name} is {m.value:.2f} {m.unit}, goal {m.goal:g}" for m in measured if not m.within(CHECK_SLACK)
    ]
    if left:
        broken.append(f"processes left behind: {left}")
    print_measurements(measured)
    for line in broken:
        progress(f"BROKEN: {line}")
    progress("demo check: " + (f"{len(broken)} broken" if broken else "all promises kept"))
    return 1 if broken else 0


def bring_up(cluster: LocalCluster) -> tuple[Stage, list[Measurement]]:
    """Start the cluster, the operator and the quickstart; return when the first request was routed."""
    for needed in (GIE_CRDS, OVERLAY, QUICKSTART):
        if not needed.is_dir():
            raise DemoError(f"there is no {needed} here; run the demo from the root of the source tree")
    if cluster.processes():
        raise DemoError("a demo is up already")
    started = time.monotonic()
    progress("== starting the control plane and the node")
    cluster.start(progress)
    stage = Stage.open(cluster)
    progress("== installing the CRDs and the operator")
    stage.kubectl("create", "-k", str(GIE_CRDS))
    stage.kubectl("apply", "-k", str(OVERLAY))
    operator = "/apis/apps/v1/namespaces/headroom-system/deployments/headroom-operator"
    wait_for("the operator to be available", lambda: _is_true(stage, operator, "Available"), limit_s=180)
    progress(f"== kubectl apply -f {QUICKSTART}")
    stage.apply(QUICKSTART)
    stage.await_condition("Ready", "True", limit_s=240)
    _, _ = wait_for("the first routed request", lambda: scenarios.one_request(stage), limit_s=60)
    seconds = time.monotonic() - started
    progress(f"== first routed request after {seconds:.1f} s")
    return stage, [Measurement("first_routed_request", seconds, "s", FIRST_ROUTED_GOAL_S)]


def _is_true(stage: Stage, path: str, kind: str) -> bool:
    found = condition(stage.api.get(path), kind)
    return found is not None and found["status"] == "True"


def show_objects(stage: Stage) -> None:
    """Print what kubectl shows, the newest events and the end of the operator's log."""
    progress("\n$ kubectl get inferencepools,endpointpickers,deploy,pods")
    progress(stage.kubectl("get", "inferencepools,endpointpickers,deploy,pods"))
    progress("$ kubectl get events --sort-by=.lastTimestamp | tail -8")
    progress("\n".join(stage.kubectl("get", "events", "--sort-by=.lastTimestamp").splitlines()[-8:]))
    logs = ("logs", "-n", "headroom-system", "deployment/headroom-operator", "--tail=5")
    progress(f"\n$ kubectl {' '.join(logs)}")
    progress(stage.kubectl(*logs).rstrip())


def print_measurements(measured: list[Measurement]) -> None:
    """Print the figures beside their goals."""
    progress(f"\n{'figure':<36}{'measured':>12}{'goal':>10}")
    for entry in measured:
        goal = "" if entry.goal is None else f"{entry.goal:g}"
        progress(f"{entry.name:<36}{entry.value:>12.2f}{goal:>10} {entry.unit}")
