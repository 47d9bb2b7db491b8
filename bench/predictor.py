"""Cost of prediction: a prediction server beside XGBoost, a picker that predicts beside one that does not.

    python bench/predictor.py                 with a bundle of its own: 150 rounds of depth 6, p50 and p90
    python bench/predictor.py --bundle DIR    with the newest bundle of a folder, such as bench-accuracy's
    python bench/predictor.py --no-picker     without the picker, which needs Envoy
    python bench/predictor.py --only-picker   the picker alone

One core. Prints one JSON line a figure; CPU seconds of the work measured, medians of interleaved rounds. The
server's figures have the wire in them: a packed question is decoded, p50 and p90 of TTFT and TPOT of each row
are evaluated and calibrated, the answer is packed. XGBoost's are `inplace_predict` of the same trees alone.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import paired
import picker
import uvloop
import xgboost

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import latency_bundle
from latency_contract import bundles
from latency_contract.bundles import Bundle, sha256
from latency_contract.manifest import Manifest, TargetModel, version_name
from latency_contract.prediction_wire import decode_request, encode_answer, encode_request
from latency_contract.regimes import REGIMES
from latency_contract.schema import SCHEMA_HASH, Target
from latency_contract.states import State
from latency_predictor.serving import kernel
from latency_predictor.serving.model import ServingModel, serving_model

ROUNDS: Final = 9
ROWS: Final = (1, 10, 100, 1000)
ASKED: Final = (Target.TTFT, Target.TPOT)
QUANTILES: Final = (0.5, 0.9)
#: Least CPU time of one timing, in seconds.
LEAST_S: Final = 0.05
PREDICTED: Final = """
plugins:
- {type: prediction-profile-handler}
- type: predicted-latency-producer
  parameters: {mode: All, streamingMode: true, holdoutPercent: 0, budgetMs: 5000}
- {type: latency-scorer}
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
schedulingProfiles:
- {name: predicted, plugins: [{pluginRef: latency-scorer}, {pluginRef: max-score-picker}]}
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""


def own_bundle(rounds: int, depth: int) -> Bundle:
    """Return a bundle of two targets, each with trees of its own."""
    trees = {target: latency_bundle.trees(rounds, depth, seed=1 + target) for target in ASKED}
    made = latency_bundle.bundle(targets=ASKED)
    models = {
        target: TargetModel(
            file=f"{target.name.lower()}.ubj",
            sha256=sha256(trees[target]),
            quantiles=QUANTILES,
            bound=1,
            coefficients=made.manifest.models[target].coefficients,
            offsets=((0.0,) * REGIMES,) * 2,
            degraded=(False,) * REGIMES,
            samples=2000,
            stratified_error=None,
            recent_error=None,
            coverage=None,
        )
        for target in ASKED
    }
    manifest = Manifest(
        version=version_name(1, "00000001"),
        schema=SCHEMA_HASH.hex(),
        created_s=1.0,
        state=State.TRAINED,
        models=models,
    )
    return Bundle(manifest, trees)


def emit(figure: str, value: float, unit: str, goal: str = "", ok: bool = True, **more: Any) -> bool:
    """Print one figure; return whether it meets its goal."""
    line = {"figure": figure, "value": round(value, 4), "unit": unit, "goal": goal, "ok": ok, **more}
    print(json.dumps(line), flush=True)
    return ok


def cpu_of(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    count = 1
    while True:
        begun = time.process_time()
        for _ in range(count):
            work()
        spent = time.process_time() - begun
        if spent >= LEAST_S:
            return spent / count
        count *= 2


def boosters(bundle: Bundle) -> list[xgboost.Booster]:
    """Return XGBoost's own models of the asked targets, on one thread."""
    found = []
    for target in ASKED:
        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(bundle.trees[target]))
        found.append(booster)
    return found


def answer(model: ServingModel, message: bytes) -> bytes:
    """Do what the server does with a message."""
    return encode_answer(model.predict(decode_request(message)))


def by_rows(bundle: Bundle) -> bool:
    """Print the server's cost beside XGBoost's by number of rows."""
    ok = True
    model, own = serving_model(bundle, None), boosters(bundle)
    for rows in ROWS:
        matrix = latency_bundle.rows_of(rows, seed=rows)
        message = encode_request(matrix, ASKED, QUANTILES)
        heads = [len(bundle.manifest.models[target].quantiles) for target in ASKED]
        margins = [np.zeros((rows, each), dtype=np.float32) for each in heads]

        def xgboost_alone(matrix: Any = matrix, margins: Any = margins) -> None:
            for booster, margin in zip(own, margins, strict=True):
                booster.inplace_predict(matrix, predict_type="margin", base_margin=margin)

        worst = max(
            float(
                np.abs(
                    kernel.sums_of(model.trees[target], matrix) - sums_of_xgboost(booster, matrix, margin)
                ).max()
            )
            for target, booster, margin in zip(ASKED, own, margins, strict=True)
        )
        mine, theirs = [], []
        for _ in range(ROUNDS):
            mine.append(cpu_of(partial(answer, model, message)))
            theirs.append(cpu_of(xgboost_alone))
        ratio = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
        cost = statistics.median(mine)
        ok &= emit(f"predict_{rows}_rows_difference_to_xgboost", worst, "log s", "<= 1e-5", worst <= 1e-5)
        goal = ">= 2" if rows >= 100 else ""
        ok &= emit(f"predict_{rows}_rows_against_xgboost", ratio, "x its rate", goal, not goal or ratio >= 2)
        spread = [round(min(mine) * 1e6, 1), round(max(mine) * 1e6, 1)]
        goal = "< 300" if rows == 1 else ""
        ok &= emit(f"predict_{rows}_rows_cpu", cost * 1e6, "us", goal, not goal or cost < 3e-4, spread=spread)
        if rows == 1000:
            emit(
                "cores_for_10000_requests_a_second_at_100_endpoints", cost / rows * 1e6, "cores", upstream=112
            )
    return ok


def sums_of_xgboost(booster: xgboost.Booster, matrix: Any, margin: Any) -> Any:
    """Return float32[heads, rows] as XGBoost sums leaves."""
    found = booster.inplace_predict(matrix, predict_type="margin", base_margin=margin)
    return np.asarray(found, dtype=np.float32).T


def train_for_ever() -> None:
    """Fit models until killed, on one thread as the trainer does."""
    matrix = latency_bundle.rows_of(20_000, seed=3)
    target = np.log1p(np.nan_to_num(matrix[:, 0]))
    while True:
        xgboost.train(
            {"objective": "reg:quantileerror", "quantile_alpha": np.array(QUANTILES), "nthread": 1},
            xgboost.QuantileDMatrix(matrix, target, nthread=1),
            150,
        )


def beside_training(bundle: Bundle) -> bool:
    """Print how much more CPU a call takes while a training runs on the same core, in turns."""
    model = serving_model(bundle, None)
    message = encode_request(latency_bundle.rows_of(100), ASKED, QUANTILES)
    ratios = []
    for _ in range(ROUNDS):
        alone = cpu_of(lambda: answer(model, message))
        training = multiprocessing.get_context("spawn").Process(target=train_for_ever, daemon=True)
        training.start()
        time.sleep(2.0)
        ratios.append(cpu_of(lambda: answer(model, message)) / alone)
        training.kill()
        training.join()
    ratio = statistics.median(ratios)
    return emit(
        "predict_cpu_while_training",
        ratio,
        "ratio",
        "<= 1.1",
        ratio <= 1.1,
        spread=[min(ratios), max(ratios)],
    )


async def pickers(bundle: Bundle, endpoints: int, rounds: int) -> bool:
    """Print the picker's CPU of a predicted request over that of a heuristic one, behind Envoy."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bundles.publish(folder / "models", bundle)
        address = f"unix:{folder / 'predictor.sock'}"
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "latency_predictor.serving.main", "--models", str(folder / "models")),
            *("--listen", address, "--http", ""),
            stderr=(folder / "predictor.log").open("wb"),
        )
        stack.callback(server.kill)
        config = folder / "predicted.yaml"
        config.write_text(PREDICTED)
        listener = await asyncio.get_running_loop().create_server(picker.ModelServer, "0.0.0.0", 0)
        port = listener.sockets[0].getsockname()[1]
        entries = [
            {"name": f"s{at}", "namespace": "default", "address": f"127.0.0.{at}", "port": port}
            for at in range(1, endpoints + 1)
        ]
        listed = folder / "endpoints.json"
        listed.write_text(json.dumps({"endpoints": entries}))
        flags = ("--config-file", str(config), "--predictor", address)
        contenders = {
            "heuristic": picker.Contender(None, False),
            "predicted": picker.Contender(None, False, flags),
        }
        for each in contenders.values():
            await each.start(stack, folder, listed)
        costs: dict[str, list[float]] = {name: [] for name in contenders}
        for done in range(rounds):
            for name in sorted(contenders, reverse=bool(done % 2)):
                cost, _ = await contenders[name].cost_us("request")
                costs[name].append(cost)
        ratio, low, high = paired.interval(list(zip(costs["predicted"], costs["heuristic"], strict=True)))
        for name, values in costs.items():
            emit(f"picker_{name}_request_cpu", statistics.median(values), "us", endpoints=endpoints)
        return emit(
            "picker_predicted_over_heuristic", ratio, "ratio", "<= 1.5", ratio <= 1.5, interval=[low, high]
        )


def main() -> int:
    """Run the bench; exit 1 when a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, help="folder of bundles; its newest one is measured")
    parser.add_argument("--rounds", type=int, default=150, help="of the bundle of its own (default 150)")
    parser.add_argument("--depth", type=int, default=6, help="of its trees (default 6)")
    parser.add_argument("--endpoints", type=int, default=10, help="of the picker's pool (default 10)")
    parser.add_argument("--no-picker", action="store_true", help="leave the picker out")
    parser.add_argument("--only-picker", action="store_true", help="leave the server's own figures out")
    given = parser.parse_args()
    if given.bundle is not None:
        found, errors = bundles.load_newest(given.bundle)
        if found is None:
            parser.error(f"no bundle in {given.bundle}: {'; '.join(errors)}")
        bundle = found
    else:
        bundle = own_bundle(given.rounds, given.depth)
    ok = True
    if not given.only_picker:
        kernel.compile_kernel()
        emit("evaluation_is_compiled", float(kernel.IS_COMPILED), "")
        ok &= by_rows(bundle)
        ok &= beside_training(bundle)
    if not given.no_picker:
        ok &= uvloop.run(pickers(bundle, given.endpoints, picker.ROUNDS))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
