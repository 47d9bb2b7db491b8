"""Other client libraries through the real Envoy: what they raise for a refusal. `make test-other_clients`.

litellm, langchain-openai and httpx with HTTP/2 run in a virtual environment of their own, Node's `openai` in
a folder of its own, which the test makes from the registries. Where these cannot be reached it is skipped.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType

import pytest

from endpoint_picker.decision import Refusal
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from envoy_stage import Stage

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PACKAGES = ("litellm", "langchain-openai", "httpx[http2]")
#: What the picker refuses with, the seconds after which a retry makes sense, and the name of the exception.
REFUSALS = (
    (Refusal(Outcome.SATURATED, "the pool is saturated, ask again", retry_after=7), "7", "RateLimitError"),
    (Refusal(Outcome.BAD_REQUEST, "the model must be a string"), None, "BadRequestError"),
    (Refusal(Outcome.NO_ENDPOINTS, "no endpoint is ready"), "2", "InternalServerError"),
)
#: Names of litellm's own.
LITELLMS = {"InternalServerError": "ServiceUnavailableError"}
#: langchain-openai's, which are subclasses of openai's.
LANGCHAINS = {
    "RateLimitError": "OpenAIRateLimitError",
    "BadRequestError": "OpenAIInvalidRequestError",
    "InternalServerError": "OpenAIAPIError",
}

LITELLM = """
import json, sys, litellm
try:
    litellm.completion(model="openai/m", api_base=sys.argv[1] + "/v1", api_key="k", num_retries=0,
                       max_retries=0, messages=[{"role": "user", "content": "Hi"}])
except Exception as error:
    headers = error.response.headers
    print(json.dumps([type(error).__name__, str(error), error.status_code, headers.get("retry-after"),
                      headers.get("x-request-id")]))
"""
LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
try:
    ChatOpenAI(model="m", base_url=sys.argv[1] + "/v1", api_key="k", max_retries=0).invoke("Hi")
except Exception as error:
    headers = error.response.headers
    print(json.dumps([type(error).__name__, str(error), error.status_code, headers.get("retry-after"),
                      headers.get("x-request-id")]))
"""
HTTPX = """
import json, sys, httpx
with httpx.Client(http1=False, http2=True) as client:
    answer = client.post(sys.argv[1] + "/v1/chat/completions", json={"model": "m", "messages": []})
print(json.dumps([answer.http_version, answer.json()["error"]["message"], answer.status_code,
                  answer.headers.get("retry-after"), answer.headers.get("x-request-id")]))
"""
NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "k", maxRetries: 0 });
try {
  await client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "Hi" }] });
} catch (error) {
  const delay = error.headers.get("retry-after");
  console.log(JSON.stringify([error.constructor.name, error.message, error.status, delay, error.requestID]));
}
"""


async def run(*command: str, folder: Path | None = None, limit_s: float = 900) -> tuple[int, str]:
    """Run a program; return its exit status and its output."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return -1, f"not done within {limit_s} s"
    return process.returncode or 0, output.decode()


class Refusing:
    """A pool that refuses everything with `refusal`, and the ids of the requests that it got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.refusal = REFUSALS[0][0]
        self.ids: list[str] = []

    def decide(self, request: InferenceRequest, *_more: object) -> Refusal:
        self.ids.append(request.request_id)
        return self.refusal


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Refusing]:
    async with AsyncExitStack() as stack:
        stage = Stage(stack, tmp_path / "envoy.log")
        await stage.start(servers=1)
        refusing = Refusing(stage.url)
        monkeypatch.setattr(type(stage.router), "decide", refusing.decide)
        yield refusing


async def shows_each_refusal(
    pool: Refusing, *command: str, folder: Path, names: Mapping[str, str] | str = MappingProxyType({})
) -> None:
    """Assert that a client shows exception, sentence, status, delay and request id of each refusal.

    `names` has the client's own names of exceptions; text: the client raises none and prints this.
    """
    for refusal, delay, name in REFUSALS:
        pool.refusal = refusal
        pool.ids.clear()
        status, output = await run(*command, pool.url, folder=folder)
        assert status == 0, output
        shown, message, code, retry_after, request_id = json.loads(output.strip().splitlines()[-1])
        assert shown == (names if isinstance(names, str) else names.get(name, name))
        assert refusal.message in message
        assert (code, retry_after) == (refusal.outcome.http_status, delay)
        assert [request_id] == pool.ids


async def test_pythons_other_clients_show_each_refusal(pool: Refusing, tmp_path: Path) -> None:
    await run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    status, output = await run(python, "-m", "pip", "install", "--quiet", *PACKAGES)
    if status:
        pytest.skip(f"the registry does not serve {PACKAGES}: {output[-300:]}")
    await shows_each_refusal(pool, python, "-c", LITELLM, folder=tmp_path, names=LITELLMS)
    await shows_each_refusal(pool, python, "-c", LANGCHAIN, folder=tmp_path, names=LANGCHAINS)
    await shows_each_refusal(pool, python, "-c", HTTPX, folder=tmp_path, names="HTTP/2")


async def test_nodes_client_shows_each_refusal(pool: Refusing, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not there")
    status, output = await run("npm", "install", "--silent", "openai", folder=tmp_path)
    if status:
        pytest.skip(f"the registry does not serve openai: {output[-300:]}")
    script = tmp_path / "ask.mjs"
    script.write_text(NODE)
    await shows_each_refusal(pool, "node", str(script), folder=tmp_path)
