"""The OpenAI wire: parses request bodies, writes results as JSON and server-sent events. Pure.

Errors are raised as ApiError and shaped as vLLM shapes them. Unknown fields are ignored, as vLLM does.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from model_server_sim import prompt

#: vLLM's default for completions; a chat goes on until the model stops.
DEFAULT_COMPLETION_TOKENS = 16
#: Tokens that one image counts, whatever its size in bytes.
IMAGE_TOKENS = 576
IMAGE_BYTES = IMAGE_TOKENS * prompt.BYTES_PER_TOKEN

#: Types of a message's parts that an encode server takes.
MEDIA_TYPES = ("image_url", "video_url", "audio_url", "input_audio")

#: A part of a prompt: its bytes, or an image's JSON object, which stands for IMAGE_BYTES.
_Piece: TypeAlias = bytes | dict[str, object]

#: Longest name of an adapter, characters.
MAX_NAME = 256
#: Prompts of one request.
MAX_PROMPTS = 256

BAD_REQUEST = "BadRequestError"


class ApiError(Exception):
    """A refused request; `status` is the HTTP status."""

    def __init__(
        self, status: int, message: str, *, kind: str = BAD_REQUEST, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """Return the OpenAI-style error object."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What requests are checked against."""

    models: tuple[str, ...]
    """Served names of the base model; a request without a model is answered under the first."""
    adapters: tuple[str, ...]
    max_model_len: int
    block_size: int
    mean_output_tokens: int
    """Mean length of an output that the model ends by itself, tokens."""
    seed: int
    keeps_tokens: bool = False
    """Checked requests carry the token ids of their prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A checked request."""

    chat: bool
    model: str
    adapter: str | None
    stream: bool
    include_usage: bool
    prompt_tokens: int
    block_hashes: tuple[int, ...]
    """Of the prompt and of the answer as a next turn repeats it."""
    digest: int
    """`prompt.digest_of` prompt and seed: determines the output's words."""
    output_tokens: int
    max_tokens: int | None
    """The request's limit, None when it has none."""
    finish_reason: str
    remote_prefill: bool = False
    remote_decode: bool = False
    token_ids: tuple[int, ...] = ()
    tool: str = ""
    """The tool that the answer calls, "" for an answer in text."""


def parse(body: bytes, limits: Limits, *, chat: bool) -> Generation:
    """Check a body of /v1/completions or /v1/chat/completions. Raises ApiError 400 or 404."""
    fields = object_of(body)
    model = model_of(fields, limits)
    if fields.get("n", 1) != 1:
        raise ApiError(400, "n must be 1: the simulator gives one choice", param="n")
    adapter = model if model in limits.adapters else None
    max_tokens = _max_tokens(fields, chat=chat)
    pieces = _chat_pieces(fields) if chat else _prompt_pieces(fields)
    material = _fitting(pieces, limits, max_tokens or 1, "messages" if chat else "prompt")
    prompt_tokens = prompt.count_tokens(material)
    room = limits.max_model_len - prompt_tokens
    digest = prompt.digest_of(material, limits.seed)
    natural = prompt.natural_length(digest, limits.mean_output_tokens)
    longest = min(room, max_tokens or room)
    stops = natural <= longest and not _flag(fields, "ignore_eos")
    stream = _flag(fields, "stream")
    remote_prefill, remote_decode = _transfer(fields, max_tokens)
    output_tokens = natural if stops else longest
    # What a next turn repeats: its prompt then begins with these bytes, and finds their blocks.
    said = material + (b"<|assistant|>" if chat else b"") + prompt.text(digest, output_tokens).encode()
    return Generation(
        chat=chat,
        model=model,
        adapter=adapter,
        stream=stream,
        include_usage=stream and _include_usage(fields),
        prompt_tokens=prompt_tokens,
        block_hashes=prompt.block_hashes(said, limits.block_size, adapter or ""),
        digest=digest,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        finish_reason="stop" if stops else "length",
        remote_prefill=remote_prefill,
        remote_decode=remote_decode,
        token_ids=tuple(prompt.decode_ids(said)) if limits.keeps_tokens else (),
        tool=_tool(fields) if chat else "",
    )


def _tool(fields: dict[str, object]) -> str:
    """Return the tool that the answer must call, "" when none must be."""
    choice, tools = fields.get("tool_choice"), fields.get("tools")
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
    elif choice == "required" and isinstance(tools, list) and tools and isinstance(tools[0], dict):
        function = tools[0].get("function")
        name = function.get("name") if isinstance(function, dict) else None
    else:
        return ""
    if not isinstance(name, str) or not name:
        raise ApiError(400, "tool_choice must name a function", param="tool_choice")
    return name


def model_of(fields: Mapping[str, object], limits: Limits) -> str:
    """Return the model that a body names. Raises ApiError 400 or 404."""
    model = fields.get("model", limits.models[0])
    if not isinstance(model, str):
        raise ApiError(400, "model must be a string", param="model")
    if model not in limits.models and model not in limits.adapters:
        raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")
    return model


def _transfer(fields: dict[str, object], max_tokens: int | None) -> tuple[bool, bool]:
    """Return whether the prompt's keys and values come from another engine, and go to another."""
    value = fields.get("kv_transfer_params")
    if value is None:
        return False, False
    if not isinstance(value, dict):
        raise ApiError(400, "kv_transfer_params must be an object", param="kv_transfer_params")
    take, give = _flag(value, "do_remote_prefill"), _flag(value, "do_remote_decode")
    if give and max_tokens != 1:
        message = "do_remote_decode needs max_tokens 1: the other engine generates the rest"
        raise ApiError(400, message, param="max_tokens")
    return take, give


def prefill_body(body: bytes) -> bytes:
    """Return the request by which another server computes the prompt of this one. Raises ApiError 400."""
    fields = object_of(body)
    for name in ("max_completion_tokens", "stream_options"):
        fields.pop(name, None)
    wanted = {"do_remote_decode": True, "do_remote_prefill": False}
    return dumps({**fields, "max_tokens": 1, "stream": False, "kv_transfer_params": wanted})


def media_bodies(body: bytes) -> list[bytes]:
    """Return for each image, video or audio of a chat the request by which another server encodes it."""
    fields = object_of(body)
    messages = fields.get("messages")
    found: list[bytes] = []
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in MEDIA_TYPES:
                chat = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
                found.append(dumps(chat | ({"model": fields["model"]} if "model" in fields else {})))
    return found


def object_of(body: bytes) -> dict[str, Any]:
    """Return a body's JSON object. Raises ApiError 400."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object")
    return fields


def _flag(fields: dict[str, object], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", param=name)
    return value


def _include_usage(fields: dict[str, object]) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    return _flag(options, "include_usage")


def _max_tokens(fields: dict[str, object], *, chat: bool) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ApiError(400, f"{name} must be an integer of at least 1", param=name)
        return value
    return None if chat else DEFAULT_COMPLETION_TOKENS


def _prompt_pieces(fields: dict[str, object]) -> Iterator[_Piece]:
    """Yield a prompt's one piece."""
    value = fields.get("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str):
        yield _utf8(value, "prompt")
    elif isinstance(value, list) and value and all(type(number) is int for number in value):
        yield _encoded(value, "prompt")
    else:
        raise ApiError(400, "prompt must be one string or one list of token ids", param="prompt")


def _encoded(ids: list[int], param: str) -> bytes:
    try:
        return prompt.encode_ids(ids)
    except ValueError as error:
        raise ApiError(400, f"{param}: {error}", param=param) from None


def _chat_pieces(fields: dict[str, object]) -> Iterator[_Piece]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list of at least one message", param="messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "each message must be an object with a role", param="messages")
        yield _utf8(f"<|{message['role']}|>", "messages")
        yield from _content(message.get("content"))


def _content(content: object) -> Iterator[_Piece]:
    if isinstance(content, str):
        yield _utf8(content, "messages")
        return
    if content is None:  # an assistant's tool call
        return
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ApiError(400, "content must be a string or a list of parts", param="messages")
    for part in content:
        text = part.get("text")
        yield _utf8(text, "messages") if isinstance(text, str) else part


def _size(piece: _Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else IMAGE_BYTES


def _fitting(pieces: Iterable[_Piece], limits: Limits, wanted: int, param: str) -> bytes:
    """Return a prompt's bytes. Raises ApiError 400 when the model has no room for it and `wanted` tokens.

    Nothing is made before all is known to fit: an image of a few bytes of JSON becomes thousands.
    """
    fitting: list[_Piece] = []
    size = 0
    for piece in pieces:
        fitting.append(piece)
        size += _size(piece)
        tokens = prompt.tokens_in(size)
        if limits.max_model_len - tokens < wanted:
            message = (
                f"This model's maximum context length is {limits.max_model_len} tokens. However, the prompt "
                f"has at least {tokens} tokens and {wanted} more are asked for. Shorten one of them."
            )
            raise ApiError(400, message, param=param)
    return _material(fitting)


def _material(pieces: Iterable[_Piece]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else _image(piece) for piece in pieces)


def _image(part: dict[str, object]) -> bytes:
    """Return an image's tokens, made from the digest of its JSON."""
    try:
        canonical = json.dumps(part, sort_keys=True).encode()
    except RecursionError:
        raise ApiError(400, "a part of content is nested too deeply", param="messages") from None
    return hashlib.shake_128(canonical).digest(IMAGE_BYTES)


def _utf8(text: str, param: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{param} holds a lone surrogate, which is not text", param=param) from None


def tokenized(body: bytes, limits: Limits) -> bytes:
    """Return the answer of /tokenize to a prompt or messages. Raises ApiError 400 or 404.

    vLLM lists the tokens of a prompt of any length. Here the answer to a prompt beyond `max_model_len`, which
    cannot be served, has its count and no tokens: images of a few bytes would become gigabytes.
    """
    fields = object_of(body)
    model_of(fields, limits)
    pieces = list(_chat_pieces(fields) if "messages" in fields else _prompt_pieces(fields))
    count = -(-sum(map(_size, pieces)) // prompt.BYTES_PER_TOKEN)
    ids = prompt.decode_ids(_material(pieces)) if count <= limits.max_model_len else []
    answered: dict[str, object] = {"count": count, "max_model_len": limits.max_model_len, "tokens": ids}
    answered["token_strs"] = None
    if _flag(fields, "return_token_strs"):
        answered["token_strs"] = [prompt.encode_ids([number]).decode(errors="replace") for number in ids]
    return dumps(answered)


def detokenized(body: bytes, limits: Limits) -> bytes:
    """Return the answer of /detokenize to token ids. Raises ApiError 400 or 404."""
    fields = object_of(body)
    model_of(fields, limits)
    ids = fields.get("tokens")
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise ApiError(400, "tokens must be a list of token ids", param="tokens")
    material = _encoded(ids, "tokens")
    return dumps({"prompt": material.rstrip(b"\0").decode(errors="replace")})


def lora_name(body: bytes, *, load: bool) -> str:
    """Return the adapter that a load or unload names. Raises ApiError 400."""
    fields = object_of(body)
    name = fields.get("lora_name")
    path = fields.get("lora_path")
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        raise ApiError(400, f"lora_name must be a string of 1 to {MAX_NAME} characters", param="lora_name")
    _utf8(name, "lora_name")
    if load and (not isinstance(path, str) or not path):
        raise ApiError(400, "lora_path must be a string", param="lora_path")
    return name


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def fields(self) -> dict[str, object]:
        """Return the OpenAI `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def single_prompts(body: bytes) -> list[bytes]:
    """Return a body for each prompt of a list of several; [] for any other body."""
    fields = object_of(body)
    prompts = fields.get("prompt")
    if not isinstance(prompts, list) or len(prompts) < 2 or type(prompts[0]) is int:
        return []
    if len(prompts) > MAX_PROMPTS:
        raise ApiError(400, f"prompt must hold at most {MAX_PROMPTS} prompts", param="prompt")
    return [json.dumps({**fields, "prompt": each}).encode() for each in prompts]


def batch_answer(made: list[Generation], answer_id: str, created: int, usages: list["Usage"]) -> bytes:
    """Return the whole answer to several prompts."""
    choices = [
        {
            "index": index,
            "logprobs": None,
            "finish_reason": each.finish_reason,
            "text": prompt.text(each.digest, each.output_tokens),
        }
        for index, each in enumerate(made)
    ]
    usage = Usage(
        sum(each.prompt_tokens for each in usages),
        sum(each.completion_tokens for each in usages),
        sum(each.cached_tokens for each in usages),
    )
    return dumps({**_head(made[0], answer_id, created, ""), "choices": choices, "usage": usage.fields()})


def answer(
    made: Generation, answer_id: str, created: int, usage: Usage, transfer: dict[str, object] | None = None
) -> bytes:
    """Return the whole answer of a request that does not stream.

    `transfer` says where its keys and values can be fetched.
    """
    text = prompt.text(made.digest, made.output_tokens)
    choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": made.finish_reason}
    if made.tool:
        call = tool_call(made.tool, answer_id, json.dumps({"text": text}))
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
    elif made.chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    whole = {**_head(made, answer_id, created, ""), "choices": [choice], "usage": usage.fields()}
    if transfer:
        whole["kv_transfer_params"] = transfer
    return dumps(whole)


def tool_call(name: str, answer_id: str, arguments: str) -> dict[str, object]:
    """Return a call of a tool in a chat's answer."""
    return {"id": f"call_{answer_id}", "type": "function", "function": {"name": name, "arguments": arguments}}


class SseWriter:
    """Turns an answer's tokens into server-sent events, one a token."""

    __slots__ = ("_head", "_made", "_token")

    def __init__(self, made: Generation, answer_id: str, created: int) -> None:
        self._made = made
        self._head = _head(made, answer_id, created, ".chunk" if made.chat else "")
        self._token = self._template()

    def opening(self) -> bytes:
        """Return what precedes the first token: a chat's role."""
        if not self._made.chat:
            return b""
        role = self._event([_choice({"delta": {"role": "assistant", "content": ""}}, None)])
        if not self._made.tool:
            return role
        call = tool_call(self._made.tool, str(self._head["id"]), '{"text": "')
        return role + self._event([_choice({"delta": {"tool_calls": [{"index": 0, **call}]}}, None)])

    def tokens(self, start: int, stop: int) -> bytes:
        """Return the events of the tokens `start` to `stop` (excluded)."""
        events = [self._token(word) for word in prompt.words(self._made.digest, start, stop)]
        return "".join(events).encode()

    def ending(self, usage: Usage) -> bytes:
        """Return what follows the last token: finish reason, usage if asked for, and [DONE]."""
        empty: dict[str, object] = {"delta": {}} if self._made.chat else {"text": ""}
        events, reason = b"", self._made.finish_reason
        if self._made.tool:
            events, reason = self._arguments('"}'), "tool_calls"
        events += self._event([_choice(empty, reason)])
        if self._made.include_usage:
            events += self._event([], usage.fields())
        return events + b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, object]], usage: dict[str, object] | None = None) -> bytes:
        fields = {**self._head, "choices": choices}
        if self._made.include_usage:
            fields["usage"] = usage
        return b"data: " + dumps(fields) + b"\n\n"

    def _arguments(self, text: str) -> bytes:
        call = {"index": 0, "function": {"arguments": text}}
        return self._event([_choice({"delta": {"tool_calls": [call]}}, None)])

    def _template(self) -> Callable[[str], str]:
        mark = "\u0000"
        if self._made.tool:
            before, after = self._arguments(mark).decode().rsplit(json.dumps(mark), 1)
            return lambda word: f'{before}"{word}"{after}'
        content: dict[str, object] = {"delta": {"content": mark}} if self._made.chat else {"text": mark}
        event = self._event([_choice(content, None)]).decode()
        before, after = event.rsplit(json.dumps(mark), 1)
        return lambda word: f'{before}"{word}"{after}'  # no word needs escaping


def _choice(content: dict[str, object], finish_reason: str | None) -> dict[str, object]:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}


def _head(made: Generation, answer_id: str, created: int, suffix: str) -> dict[str, object]:
    kind = f"chat.completion{suffix}" if made.chat else "text_completion"
    return {"id": answer_id, "object": kind, "created": created, "model": made.model}


def dumps(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
