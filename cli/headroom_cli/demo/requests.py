"""The requests that the demo shows: plain, streaming, GET /v1/models, and the picker's reasons for each."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from headroom_cli.demo.api import progress
from headroom_cli.demo.failure import DemoError
from headroom_cli.demo.load import MODEL, Once
from headroom_cli.demo.scenarios import picker_page
from headroom_cli.demo.stage import Stage
from inference_api.names import OBJECTIVE_HEADER, REQUEST_ID_HEADER
from model_server_sim.client import Ask, InferenceClient, Result

Send = Callable[[InferenceClient, Mapping[str, str]], Coroutine[Any, Any, Result]]

_STORY = "Once upon a time there was a queue that never grew. " * 40


def _models(client: InferenceClient, headers: Mapping[str, str]) -> Coroutine[Any, Any, Result]:
    return client.models(headers)


def _ask(prompt: str, *, stream: bool = False, chat: bool = False) -> Send:
    def send(client: InferenceClient, headers: Mapping[str, str]) -> Coroutine[Any, Any, Result]:
        return client.send(Ask(model=MODEL, prompt=prompt, stream=stream, chat=chat, headers=headers))

    return send


#: The requests in order, each with its label in the table.
REQUESTS: tuple[tuple[str, Send], ...] = (
    ("GET /v1/models", _models),
    ("plain", _ask("Say something short.")),
    ("plain chat", _ask("Say something short.", chat=True)),
    ("streaming", _ask(_STORY + "What happened then?", stream=True)),
    ("streaming, same prefix", _ask(_STORY + "And who told you?", stream=True)),
    ("streaming, same prefix", _ask(_STORY + "Is that all?", stream=True)),
)


def show_requests(stage: Stage) -> None:
    """Send the requests through the proxy; print each one's endpoint and the picker's reasons."""
    once = Once(stage.proxy_url())
    address = stage.picker_pod()["status"]["podIP"]
    progress(f"\n{'request':<24}{'status':>6}  {'served by':<34}why")
    for number, (label, send) in enumerate(REQUESTS):
        request_id = f"demo-{number}"

        def ask(
            client: InferenceClient, send: Send = send, request_id: str = request_id
        ) -> Coroutine[Any, Any, Result]:
            return send(client, {REQUEST_ID_HEADER: request_id, OBJECTIVE_HEADER: "chat"})

        result = once(ask)
        if not result.ok:
            raise DemoError(f"request '{label}' failed: {result.error}")
        progress(f"{label:<24}{result.status:>6}  {result.served_by:<34}{_why(address, request_id)}")


def _why(picker_address: str, request_id: str) -> str:
    """Return the picker's reasons for a request in a few words."""
    decisions = picker_page(picker_address, f"/debug/explain?request_id={request_id}")["decisions"]
    if not decisions:
        return "no decision of the picker"
    found = decisions[0]
    scored = found["profiles"][0]["scored"]
    chosen = next(each for each in scored if each["endpoint"] == found["endpoint"])
    scores = ", ".join(f"{name} {score['weighted']:.2f}" for name, score in chosen["scores"].items())
    return f"{scores or 'no scores'}; prefix hit {found['prefixHit']:.0%}; {found['candidates']} candidates"
