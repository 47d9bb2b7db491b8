"""token-producer: the token ids of the prompt, for the plugins that need the real ones."""

import importlib.util
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from cluster_client.durations import seconds
from endpoint_picker.datalayer.table import EndpointTable
from endpoint_picker.datalayer.tokenizing import TokenizePlan, Tokenizing, Wait
from endpoint_picker.decision import Refusal
from endpoint_picker.outcomes import Outcome
from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import TOKENIZED_PROMPT, Candidates
from endpoint_picker.scheduling.hold import Hold
from endpoint_picker.scheduling.plugin import MayWait, PluginParams, Pool, Producer

#: Extra of the distribution that brings the library for tokenizer files.
TOKENIZERS_EXTRA: Final = "tokenizers"
#: Seconds beyond the budget after which a wait that was not released ends by itself.
GRACE_S: Final = 5.0

_LATE: Final = Refusal(Outcome.OVERLOADED, "the prompt's tokens did not come in time")
FilePath = Annotated[str, Field(max_length=4096, pattern=r"^(/[^\x00]*)?$")]


class VllmParams(PluginParams):
    """A vLLM that renders prompts, such as `vllm launch render` beside the picker."""

    url: str = Field(default="http://localhost:8000", pattern=r"^https?://[!-~]+$", max_length=1024)
    """Base address; /v1/completions/render and /v1/chat/completions/render are called."""
    timeout: float = Field(default=5.0, gt=0.0, le=300.0)
    """Time after which a call is given up. A request waits for the budget only."""
    mm_timeout: float = Field(default=30.0, gt=0.0, le=300.0)
    """The same for a prompt with images."""
    ca_cert_path: FilePath = ""
    """PEM file that an https server is verified with; the system's authorities when absent."""
    client_cert_path: FilePath = ""
    """PEM certificate that the server is shown."""
    client_key_path: FilePath = ""
    """Its key; in the certificate's file when absent."""
    insecure_skip_verify: bool = False
    """With https: take any certificate."""

    _durations = field_validator("timeout", "mm_timeout", mode="before")(seconds)

    @model_validator(mode="after")
    def _consistent(self) -> "VllmParams":
        if self.url.startswith("http:") and (
            self.ca_cert_path or self.client_cert_path or self.client_key_path or self.insecure_skip_verify
        ):
            raise ValueError("certificates need a url with https")
        if self.client_key_path and not self.client_cert_path:
            raise ValueError("clientKeyPath needs clientCertPath")
        if self.insecure_skip_verify and self.ca_cert_path:
            raise ValueError("caCertPath does nothing with insecureSkipVerify")
        return self


class ModelServersParams(PluginParams):
    """The pool's own servers, asked in turn."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of /tokenize; the endpoint's own when absent."""
    timeout: float = Field(default=5.0, gt=0.0, le=300.0)
    """Time after which a call is given up. A request waits for the budget only."""

    _duration = field_validator("timeout", mode="before")(seconds)


class LocalParams(PluginParams):
    """A tokenizer file in the picker's own file system; it serves completions, not chats."""

    file: str = Field(pattern=r"^/[^\x00]*$", max_length=4096)
    """Path of the model's tokenizer.json."""


class EstimateParams(PluginParams):
    """No tokenizer: only prompts that consist of token ids have tokens."""


class TokenParams(PluginParams):
    """Parameters of token-producer. At most one of vllm, modelServers, local and estimate may be given."""

    model_name: str = Field(default="", max_length=1024)
    """Model that the renderer is asked about at start; requests are asked about by their own model."""
    budget: float = Field(default=0.05, gt=0.0, le=5.0)
    """Most time that a request waits for its tokens."""
    vllm: VllmParams | None = None
    """Ask a renderer."""
    model_servers: ModelServersParams | None = None
    """Ask the pool's servers at /tokenize; so it is when nothing is given."""
    local: LocalParams | None = None
    """Use a tokenizer file; needs the extra `tokenizers`."""
    estimate: EstimateParams | None = None
    """Ask no tokenizer."""
    backend: Literal["vllm", "estimate"] | None = Field(default=None, deprecated="its section is enough")
    """Deprecated."""

    _duration = field_validator("budget", mode="before")(seconds)

    @model_validator(mode="before")
    @classmethod
    def _take_the_backend(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("backend") in ("vllm", "estimate"):
            return {values["backend"]: {}, **values}
        if isinstance(values, dict) and values.get("modelName") and not _SECTIONS & values.keys():
            return {"vllm": {}, **values}
        return values

    @model_validator(mode="after")
    def _one_of_them(self) -> "TokenParams":
        given = [self.vllm, self.model_servers, self.local, self.estimate]
        if sum(each is not None for each in given) > 1:
            raise ValueError("give one of vllm, modelServers, local and estimate")
        if self.model_name and self.vllm is None:
            raise ValueError(
                "modelName needs vllm: other tokenizers are asked about each request's own model"
            )
        return self

    @property
    def plan(self) -> TokenizePlan:
        """Return who is asked, and how."""
        if self.vllm is not None:
            vllm = self.vllm
            return TokenizePlan(
                backend="render",
                budget=self.budget,
                timeout=vllm.timeout,
                media_timeout=max(vllm.timeout, vllm.mm_timeout),
                url=vllm.url,
                ca_cert_path=vllm.ca_cert_path,
                client_cert_path=vllm.client_cert_path,
                client_key_path=vllm.client_key_path,
                insecure_skip_verify=vllm.insecure_skip_verify,
                model_name=self.model_name,
            )
        if self.local is not None:
            return TokenizePlan(backend="local", budget=self.budget, file=self.local.file)
        if self.estimate is not None:
            return TokenizePlan(backend="none", budget=self.budget)
        servers = self.model_servers or ModelServersParams()
        return TokenizePlan(budget=self.budget, timeout=servers.timeout, port=servers.port or 0)


_SECTIONS: Final = frozenset({"vllm", "modelServers", "local", "estimate"})


class TokenProducer(Producer, MayWait):
    """Writes `InferenceRequest.tokens`, at once or after a wait within the budget; it refuses no request."""

    __slots__ = ("_clock", "_plan", "_tokenizing")
    type_name = "token-producer"
    params_type = TokenParams
    produces = frozenset({TOKENIZED_PROMPT})
    attaches_when_idle = False

    def __init__(self, params: TokenParams) -> None:
        self._plan = params.plan
        if params.local is not None and importlib.util.find_spec("tokenizers") is None:
            msg = f"local needs the tokenizers library: pip install 'headroom-operator[{TOKENIZERS_EXTRA}]'"
            raise ValueError(msg)
        self._tokenizing: Tokenizing

    @override
    def attach(self, pool: Pool) -> None:
        """Have the pool's tokenizing go by this plan."""
        self._tokenizing = pool.tokenizing
        self._clock = pool.clock
        pool.token_plan = self._plan

    @override
    def produce(self, request: InferenceRequest, candidates: Candidates, table: EndpointTable) -> Hold | None:
        """Write the tokens, or return a hold until they come."""
        if request.tokens is not None:  # from an earlier profile, or after the wait
            return None
        now = self._clock()
        servers: list[str] = []
        if self._plan.backend == "servers":
            servers = [table.hostports[row] for row in candidates.rows.tolist()]
        wait = self._tokenizing.ask(request, servers, now)
        if wait is None:
            return None
        hold = Hold(deadline=wait.until + GRACE_S, refusal=_LATE, forget=self._forget, note=wait)
        wait.note = hold
        return hold

    @override
    def advance(self, now: float) -> tuple[Iterable[Hold], float | None]:
        """Return the holds whose tokens came, or whose budget is used up."""
        released, due = self._tokenizing.advance(now)
        return [wait.note for wait in released], due

    def _forget(self, hold: Hold) -> None:
        wait: Wait = hold.note
        self._tokenizing.forget(wait)
