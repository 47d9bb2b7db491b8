"""Anthropic's messages and OpenAI's responses API, as vLLM serves them beside its own. Pure.

A body of either becomes a body of a chat, which `protocol.parse` checks; the answer is written in the API's
own form. Fields that change nothing in a simulated answer are ignored.
"""

import json
from collections.abc import Mapping
from typing import Any

from model_server_sim import prompt
from model_server_sim.protocol import ApiError, Generation, Usage, dumps

#: Types of errors in Anthropic's form, by status.
_ANTHROPIC_ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
Fields = dict[str, Any]


def sse(name: str, fields: Mapping[str, object]) -> bytes:
    """Return a named server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + dumps(fields) + b"\n\n"


def texts(content: object, param: str) -> str:
    """Return a text, or the texts of a list of parts. Raises ApiError 400."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join([part["text"] for part in content if isinstance(part.get("text"), str)])
    raise ApiError(400, f"{param} must be a string or a list of parts", param=param)


class Messages:
    """Anthropic's messages API."""

    prefix = "msg"

    @staticmethod
    def chat(fields: Fields, *, counts: bool = False) -> Fields:
        """Return the chat that a body asks for; `counts`: of the call that only counts tokens."""
        if not counts and type(fields.get("max_tokens")) is not int:
            raise ApiError(400, "max_tokens: Field required", param="max_tokens")
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ApiError(400, "messages: at least one message is required", param="messages")
        system = fields.get("system")
        if system is not None:
            messages = [{"role": "system", "content": texts(system, "system")}, *messages]
        chat = {**fields, "messages": messages, "tools": None, "tool_choice": None}
        choice = fields.get("tool_choice")
        if fields.get("tools") and isinstance(choice, dict) and choice.get("type") in {"any", "tool"}:
            name = choice.get("name") or fields["tools"][0].get("name")
            chat["tool_choice"] = {"type": "function", "function": {"name": name}}
        return chat

    @staticmethod
    def error(error: ApiError) -> bytes:
        """Return an error in Anthropic's form."""
        kind = _ANTHROPIC_ERRORS.get(
            error.status, "api_error" if error.status >= 500 else "invalid_request_error"
        )
        return dumps({"type": "error", "error": {"type": kind, "message": str(error)}})

    @classmethod
    def answer(cls, made: Generation, answer_id: str, created: int, usage: Usage) -> bytes:
        """Return the whole answer of a request that does not stream."""
        text = prompt.text(made.digest, made.output_tokens)
        block = cls._block(made, answer_id, text)
        reported = {**_anthropic_input(usage), "output_tokens": usage.completion_tokens}
        return dumps({**cls._head(made, answer_id), "content": [block], **cls._stop(made), "usage": reported})

    @staticmethod
    def _head(made: Generation, answer_id: str) -> Fields:
        return {"id": answer_id, "type": "message", "role": "assistant", "model": made.model}

    @staticmethod
    def _block(made: Generation, answer_id: str, text: str) -> Fields:
        if made.tool:
            given = {"text": text} if text else {}
            return {"type": "tool_use", "id": f"toolu_{answer_id}", "name": made.tool, "input": given}
        return {"type": "text", "text": text}

    @staticmethod
    def _stop(made: Generation) -> Fields:
        ends = {"stop": "end_turn", "length": "max_tokens"}
        return {"stop_reason": "tool_use" if made.tool else ends[made.finish_reason], "stop_sequence": None}

    class Writer:
        """Turns tokens into the events of a stream."""

        def __init__(self, made: Generation, answer_id: str, created: int) -> None:
            self._made = made
            self._id = answer_id

        def opening(self) -> bytes:
            """Return what precedes the first token."""
            made = self._made
            message = {**Messages._head(made, self._id), "content": [], "stop_reason": None}
            message["usage"] = {"input_tokens": made.prompt_tokens, "output_tokens": 0}
            block = Messages._block(made, self._id, "")
            start = {"type": "content_block_start", "index": 0, "content_block": block}
            return (
                sse("message_start", {"type": "message_start", "message": message})
                + sse("content_block_start", start)
                + sse("ping", {"type": "ping"})
            )

        def tokens(self, start: int, stop: int) -> bytes:
            """Return the events of the tokens `start` to `stop` (excluded)."""
            made, events = self._made, []
            for word in prompt.words(made.digest, start, stop):
                delta = {"type": "text_delta", "text": word}
                if made.tool:
                    part = ("" if start else '{"text":"') + word
                    delta = {"type": "input_json_delta", "partial_json": part}
                events.append(_delta(delta))
                start += 1
            return b"".join(events)

        def ending(self, usage: Usage) -> bytes:
            """Return what follows the last token."""
            made = self._made
            closing = _delta({"type": "input_json_delta", "partial_json": '"}'}) if made.tool else b""
            counts = {**_anthropic_input(usage), "output_tokens": usage.completion_tokens}
            last = {"type": "message_delta", "delta": Messages._stop(made), "usage": counts}
            return (
                closing
                + sse("content_block_stop", {"type": "content_block_stop", "index": 0})
                + sse("message_delta", last)
                + sse("message_stop", {"type": "message_stop"})
            )


def _delta(delta: Fields) -> bytes:
    return sse("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta})


def _anthropic_input(usage: Usage) -> Fields:
    """Return the tokens of the prompt as Anthropic counts them: without those from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


class Responses:
    """OpenAI's responses API."""

    prefix = "resp"

    @staticmethod
    def chat(fields: Fields, stored: Mapping[str, list[Fields]]) -> Fields:
        """Return the chat that a body asks for; `stored` holds the turns of earlier responses by id."""
        previous = fields.get("previous_response_id")
        if previous is not None and previous not in stored:
            message = f"Response with id '{previous}' not found."
            raise ApiError(404, message, kind="NotFoundError", param="previous_response_id")
        turns = list(stored[previous]) if previous is not None else []
        if isinstance(fields.get("instructions"), str):
            turns.insert(0, {"role": "system", "content": fields["instructions"]})
        given = fields.get("input")
        if isinstance(given, str):
            turns.append({"role": "user", "content": given})
        elif isinstance(given, list):
            turns += [item for item in given if isinstance(item, dict) and "role" in item]
        else:
            raise ApiError(400, "input must be a string or a list of items", param="input")
        return {
            **fields,
            "messages": turns,
            "max_tokens": fields.get("max_output_tokens"),
            "tools": None,
            "tool_choice": None,
        }

    @classmethod
    def answer(cls, made: Generation, answer_id: str, created: int, usage: Usage) -> bytes:
        """Return the whole answer of a request that does not stream."""
        return dumps(cls.response(made, answer_id, created, usage))

    @classmethod
    def response(cls, made: Generation, answer_id: str, created: int, usage: Usage | None) -> Fields:
        """Return the response object; without `usage` the one of a response under way."""
        text = prompt.text(made.digest, made.output_tokens)
        done = usage is not None
        status = "in_progress" if not done else "completed" if made.finish_reason == "stop" else "incomplete"
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": answer_id,
            "object": "response",
            "created_at": created,
            "status": status,
            "incomplete_details": reason,
            "error": None,
            "model": made.model,
            "output": [cls.item(answer_id, text)] if done else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if usage is None else _responses_usage(usage),
        }

    @staticmethod
    def item(answer_id: str, text: str | None) -> Fields:
        """Return the message of an output; with None the one that has just begun."""
        content = [] if text is None else [{"type": "output_text", "text": text, "annotations": []}]
        status = "in_progress" if text is None else "completed"
        item_id = f"msg_{answer_id}"
        return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    class Writer:
        """Turns tokens into the events of a stream."""

        def __init__(self, made: Generation, answer_id: str, created: int) -> None:
            self._made = made
            self._id = answer_id
            self._created = created
            self._number = 0

        def _event(self, name: str, **fields: object) -> bytes:
            numbered = {"type": name, "sequence_number": self._number, **fields}
            self._number += 1
            return sse(name, numbered)

        def opening(self) -> bytes:
            """Return what precedes the first token."""
            response = Responses.response(self._made, self._id, self._created, None)
            part = {"type": "output_text", "text": "", "annotations": []}
            begun = {"output_index": 0, "item": Responses.item(self._id, None)}
            at = {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}
            return (
                self._event("response.created", response=response)
                + self._event("response.in_progress", response=response)
                + self._event("response.output_item.added", **begun)
                + self._event("response.content_part.added", **at, part=part)
            )

        def tokens(self, start: int, stop: int) -> bytes:
            """Return the events of the tokens `start` to `stop` (excluded)."""
            at = {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}
            words = prompt.words(self._made.digest, start, stop)
            return b"".join(
                [self._event("response.output_text.delta", **at, delta=word, logprobs=[]) for word in words]
            )

        def ending(self, usage: Usage) -> bytes:
            """Return what follows the last token."""
            made = self._made
            text = prompt.text(made.digest, made.output_tokens)
            at = {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}
            item, part = (
                Responses.item(self._id, text),
                {"type": "output_text", "text": text, "annotations": []},
            )
            response = Responses.response(made, self._id, self._created, usage)
            last = "response.completed" if made.finish_reason == "stop" else "response.incomplete"
            return (
                self._event("response.output_text.done", **at, text=text, logprobs=[])
                + self._event("response.content_part.done", **at, part=part)
                + self._event("response.output_item.done", output_index=0, item=item)
                + self._event(last, response=response)
            )


def _responses_usage(usage: Usage) -> Fields:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def as_body(fields: Fields) -> bytes:
    """Return a chat's fields as the body that `protocol.parse` reads."""
    return json.dumps(fields).encode()
