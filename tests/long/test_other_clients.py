"""Other client libraries through the real Envoy: what they raise for a refusal. `make test-other_clients`.

litellm, langchain-openai and httpx with HTTP/2 run in a virtual environment of their own, Node's `openai` in
a folder of its own, which the test makes from the registries. Where these cannot be reached it is skipped.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from endpoint_picker.decision import Refusal
from endpoint_picker.outcomes import Outcome
from envoy_stage import Stage

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PACKAGES = ("litellm", "langchain-openai", "httpx[http2]")
SAYS = "the pool is saturated, ask again"

LITELLM = """
import json, sys, litellm
try:
    litellm.completion(model="openai/m", api_base=sys.argv[1] + "/v1", api_key="k", num_retries=0,
                       max_retries=0, messages=[{"role": "user", "content": "Hi"}])
except Exception as error:
    headers = error.response.headers
    print(json.dumps([type(error).__name__, str(error), error.status_code, headers.get("retry-after")]))
"""
LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
try:
    ChatOpenAI(model="m", base_url=sys.argv[1] + "/v1", api_key="k", max_retries=0).invoke("Hi")
except Exception as error:
    headers = error.response.headers
    print(json.dumps([type(error).__name__, str(error), error.status_code, headers.get("retry-after")]))
"""
HTTPX = """
import json, sys, httpx
with httpx.Client(http1=False, http2=True) as client:
    answer = client.post(sys.argv[1] + "/v1/chat/completions", json={"model": "m", "messages": []})
print(json.dumps([answer.http_version, answer.json()["error"]["message"], answer.status_code,
                  answer.headers["retry-after"]]))
"""
NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "k", maxRetries: 0 });
try {
  await client.chat.completions.create({ model: "m", messages: [{ role: "user", content: "Hi" }] });
} catch (error) {
  const delay = error.headers.get("retry-after");
  console.log(JSON.stringify([error.constructor.name, error.message, error.status, delay]));
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


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Serve a pool that refuses everything."""
    async with AsyncExitStack() as stack:
        stage = Stage(stack, tmp_path / "envoy.log")
        await stage.start(servers=1)
        refusal = Refusal(Outcome.SATURATED, SAYS, retry_after=7)
        monkeypatch.setattr(type(stage.router), "decide", lambda *_: refusal)
        yield stage.url


def last_line(output: str) -> list[Any]:
    found = json.loads(output.strip().splitlines()[-1])
    assert isinstance(found, list)
    return found


async def test_pythons_other_clients_show_a_refusal(url: str, tmp_path: Path) -> None:
    await run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    status, output = await run(python, "-m", "pip", "install", "--quiet", *PACKAGES)
    if status:
        pytest.skip(f"the registry does not serve {PACKAGES}: {output[-300:]}")
    for script, kind in ((LITELLM, "RateLimitError"), (LANGCHAIN, "RateLimitError"), (HTTPX, "HTTP/2")):
        status, output = await run(python, "-c", script, url)
        assert status == 0, output
        name, message, code, delay = last_line(output)
        assert name.endswith(kind), name
        assert SAYS in message
        assert (code, delay) == (429, "7")


async def test_nodes_client_shows_a_refusal(url: str, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not there")
    status, output = await run("npm", "install", "--silent", "openai", folder=tmp_path)
    if status:
        pytest.skip(f"the registry does not serve openai: {output[-300:]}")
    script = tmp_path / "ask.mjs"
    script.write_text(NODE)
    status, output = await run("node", str(script), url, folder=tmp_path)
    assert status == 0, output
    name, message, code, delay = last_line(output)
    assert (name, code, delay) == ("RateLimitError", 429, "7")
    assert SAYS in message
