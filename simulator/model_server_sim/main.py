"""`python -m model_server_sim`: flags and environment, listeners, and the end of the process.

The only module that reads the environment or touches signals.
"""

import argparse
import asyncio
import contextlib
import importlib
import ipaddress
import logging
import math
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import uvloop
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from typing_extensions import override

from inference_api.release import release_version
from model_server_sim.engine import Engine
from model_server_sim.params import EngineParams
from model_server_sim.presets import PRESETS
from model_server_sim.server import ModelServer, Publisher, Readiness, Role, ServerSettings

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
#: Environment variable with the default of --role.
ROLE = "MODEL_SERVER_ROLE"
RUNTIME_LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
#: Exit code of an injected crash: that of a process killed by SIGKILL in a container.
CRASH_CODE = 137
MAX_ENGINES = 64
MAX_PORT = 65535
#: Limit on streams after the listeners are closed, seconds. In a pod the grace period usually ends sooner.
FINISH_LIMIT_S = 600.0

_log = logging.getLogger("model_server_sim")


class _CannotPublishError(Exception):
    """A port of the KV-cache events cannot be bound."""


class PeerFaultFilter(logging.Filter):
    """Drops aiohttp's records, with stack traces, of broken HTTP from a peer: aiohttp answers it with 400."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (HttpProcessingError, web.RequestPayloadError))


def _ports(text: str) -> list[int]:
    ports = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if len(set(ports)) != len(ports) or not all(0 < port < 65536 for port in ports):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different ports, such as 8000,8001")
    return ports


def _port(text: str) -> int:
    return _ports(text)[0] if text != "0" else 0


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number of at least 0")
    return value


def _positive(text: str) -> float:
    value = _number(text)
    if not value:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m model_server_sim", description="A model server whose timing follows from its load."
    )
    parser.add_argument("--version", action="version", version=release_version())
    default_host = os.environ.get("POD_IP") or "127.0.0.1"
    parser.add_argument("--host", default=default_host, help="address to bind (default: POD_IP or 127.0.0.1)")
    parser.add_argument(
        "--port", type=_ports, default=[8000], metavar="PORT[,PORT]", help="one engine per port"
    )
    parser.add_argument("--model", action="append", metavar="NAME", help="served name, repeatable")
    parser.add_argument("--lora", action="append", default=[], metavar="NAME", help="adapter, repeatable")
    parser.add_argument(
        "--data-parallel-size", type=int, default=1, metavar="N", help="engines behind each port"
    )
    parser.add_argument(
        "--admin", action="store_true", help="serve /sim/faults and /sim/crash: anyone can break the server"
    )
    parser.add_argument("--api-key", default="", metavar="KEY", help="demand it of calls under /v1")
    parser.add_argument(
        "--kv-events-port",
        type=_port,
        default=0,
        metavar="PORT",
        help="publish KV-cache events over ZMQ; the port of rank 0 (default: off; vLLM's is 5557)",
    )
    parser.add_argument(
        "--kv-events-replay-port",
        type=_port,
        default=0,
        metavar="PORT",
        help="send old KV-cache events again on request; the port of rank 0 (default: off)",
    )
    parser.add_argument(
        "--role",
        choices=[role.value for role in Role if role.value],
        default=os.environ.get(ROLE) or None,
        help=f"the stage that it works for in a disaggregated pool (default: {ROLE}, or none)",
    )
    parser.add_argument(
        "--prefill-limit-s",
        type=_positive,
        default=30.0,
        metavar="SECONDS",
        help="a decode server computes a prompt itself when another has not within this real time",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of outputs and jitter")
    parser.add_argument("--time-scale", type=_positive, default=1.0, help="simulated seconds per real second")
    parser.add_argument(
        "--mean-output-tokens",
        type=int,
        default=128,
        help="mean length of outputs that the model ends itself",
    )
    parser.add_argument("--drain-seconds", type=_number, default=5.0, help="go on serving after SIGTERM")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument(
        "--preset", choices=sorted(PRESETS), help="a model and accelerator; flags override it"
    )
    engine = parser.add_argument_group("engine (defaults resemble an 8B model on one 80 GB accelerator)")
    for spec in fields(EngineParams):
        flag = f"--{spec.name.replace('_', '-')}"
        kind = int if isinstance(spec.default, int) else _number
        engine.add_argument(flag, type=kind, help=f"default {spec.default}")
    arguments = parser.parse_args(argv)
    given = {f.name: getattr(arguments, f.name) for f in fields(EngineParams)}
    try:
        preset = PRESETS[arguments.preset] if arguments.preset else EngineParams()
        arguments.params = replace(preset, **{k: value for k, value in given.items() if value is not None})
    except ValueError as error:
        parser.error(str(error))
    if not 1 <= arguments.data_parallel_size <= MAX_ENGINES:
        parser.error(f"--data-parallel-size must be between 1 and {MAX_ENGINES}")
    if arguments.data_parallel_size > 1 and (arguments.lora or _is_set(RUNTIME_LORA)):
        parser.error("as in vLLM, engines behind one port serve no adapters: use one --port for each engine")
    if arguments.role and arguments.role not in [role.value for role in Role]:
        parser.error(f"{ROLE} is {arguments.role!r}, must be prefill, decode or encode")
    if arguments.mean_output_tokens < 1:
        parser.error("--mean-output-tokens must be at least 1")
    _check_events(parser, arguments)
    if not -(2**63) <= arguments.seed < 2**63:
        parser.error("--seed must fit in 64 bits")
    return arguments


def _check_events(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    ports = [port for port in (arguments.kv_events_port, arguments.kv_events_replay_port) if port]
    if not ports:
        return
    if not arguments.kv_events_port:
        parser.error("--kv-events-replay-port needs --kv-events-port")
    try:
        ipaddress.ip_address(arguments.host)
    except ValueError:
        parser.error(f"KV-cache events need an IP address as --host, not {arguments.host!r}")
    engines = len(arguments.port) * arguments.data_parallel_size
    if max(ports) + engines - 1 > MAX_PORT:
        parser.error(
            f"each of the {engines} engines adds 1 to the ports of KV-cache events: {max(ports)} is too high"
        )
    try:
        importlib.import_module("model_server_sim.kv_publisher")
    except ModuleNotFoundError as missing:
        advice = "pip install 'headroom-operator[simulator]'"
        parser.error(f"--kv-events-port needs {missing.name}: {advice}")


def _settings(arguments: argparse.Namespace, index: int) -> ServerSettings:
    port = arguments.port[index]
    engines = arguments.data_parallel_size
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    address = f"{host}:{port}"
    pod = os.environ.get("POD_NAME")
    name = address if not pod else pod if len(arguments.port) == 1 else f"{pod}:{port}"
    return ServerSettings(
        name=name,
        address=address,
        models=tuple(arguments.model or [DEFAULT_MODEL]),
        adapters=tuple(arguments.lora),
        params=arguments.params,
        seed=arguments.seed,
        time_scale=arguments.time_scale,
        mean_output_tokens=arguments.mean_output_tokens,
        ranks=tuple(range(index * engines, (index + 1) * engines)),
        runtime_lora=_is_set(RUNTIME_LORA),
        dev_mode=_is_set("VLLM_SERVER_DEV_MODE"),
        admin=arguments.admin,
        api_key=arguments.api_key,
        role=Role(arguments.role or ""),
        prefill_limit_s=arguments.prefill_limit_s,
    )


def _is_set(name: str) -> bool:
    """Return whether one of vLLM's switches in the environment is on."""
    return os.environ.get(name, "").lower() in {"1", "true"}


def _uniforms(settings: ServerSettings) -> list[Callable[[], float]]:
    """Return the randomness of each engine and of the faults, each from the seed."""
    names = [*map(str, settings.ranks), f"faults-{settings.ranks[0]}"]
    return [random.Random(f"{settings.seed}/{name}").random for name in names]  # noqa: S311 (no secret)


def _publisher(
    arguments: argparse.Namespace,
    settings: ServerSettings,
    tasks: asyncio.TaskGroup,
    stack: contextlib.AsyncExitStack,
) -> Callable[[Engine, int], Publisher]:
    """Return a maker of publishers on the ports of the flags plus the rank, as vLLM counts them."""
    import zmq  # loaded only when it is used

    from model_server_sim.kv_publisher import KvPublisher

    def make(engine: Engine, rank: int) -> Publisher:
        replay = arguments.kv_events_replay_port
        topic = f"kv@{os.environ.get('POD_NAME') or settings.address}@{settings.models[0]}"
        port, replay_port = arguments.kv_events_port + rank, replay and replay + rank
        try:
            publisher = KvPublisher(engine, arguments.host, port, replay_port, topic, rank)
        except zmq.ZMQError as error:
            ports = f"{port} and {replay_port}" if replay_port else f"{port}"
            raise _CannotPublishError(f"port {ports} of {arguments.host}: {error.strerror}") from error
        stack.callback(publisher.close)
        stack.callback(tasks.create_task(publisher.serve_replays()).cancel)
        return publisher

    return make


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the process at once.

    ExceptionGroup of OSError or of _CannotPublishError when a port cannot be bound.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, number, stop)
    readiness = Readiness()
    runners = []
    # A failed driver ends the process: otherwise requests would wait for an engine that is never stepped.
    async with asyncio.TaskGroup() as drivers, contextlib.AsyncExitStack() as stack:
        for index in range(len(arguments.port)):
            settings = _settings(arguments, index)
            publisher = None
            if arguments.kv_events_port:
                publisher = _publisher(arguments, settings, drivers, stack)
            uniforms = _uniforms(settings)
            server = ModelServer(settings, uniforms, readiness, lambda: os._exit(CRASH_CODE), publisher)
            for driver in server.drivers:
                stack.callback(drivers.create_task(driver.run()).cancel)
            # A client that hangs up cancels its handler, which aborts the sequence.
            runner = web.AppRunner(
                server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=FINISH_LIMIT_S
            )
            await runner.setup()
            runners.append(runner)
            stack.push_async_callback(runner.cleanup)
        # The first port opens last: once it answers a probe, all of them serve.
        for runner, port in reversed([*zip(runners, arguments.port, strict=True)]):
            await web.TCPSite(runner, arguments.host, port, backlog=1024).start()
        _log.info("serving on %s, ports %s", arguments.host, ",".join(map(str, arguments.port)))
        await stop.wait()
        readiness.draining = True
        _log.info("draining for %g s", arguments.drain_seconds)
        await asyncio.sleep(arguments.drain_seconds)
        await asyncio.gather(*(runner.cleanup() for runner in runners))
    _log.info("all streams finished")


def _end(number: int, stop: asyncio.Event) -> None:
    """Begin to drain at the first signal; at the second, exit with a killed process's code, 128 + number."""
    if stop.is_set():
        _log.warning("a second signal: ends without finishing its streams")
        os._exit(128 + number)
    stop.set()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; return the exit code.

    0 after a drain, 1 when a port cannot be bound, 2 when it is one of the KV-cache events.
    """
    arguments = _arguments(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("aiohttp.server").addFilter(PeerFaultFilter())
    code = 0
    try:
        uvloop.run(serve(arguments))
    except* OSError as errors:
        _log.error("cannot serve on %s: %s", arguments.host, errors.exceptions[0])
        code = 1
    except* _CannotPublishError as errors:
        _log.error("cannot publish KV-cache events: %s", errors.exceptions[0])
        code = 2
    return code
