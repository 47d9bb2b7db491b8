"""Parsers: plugins that say which request bodies are read. The reading itself is in `ext_proc.body`."""

from typing import Final

from endpoint_picker.scheduling.plugin import Plugin


class Parser(Plugin):
    """Base of the parsers."""

    __slots__ = ()


class OpenAiParser(Parser):
    """Reads the bodies of the OpenAI APIs, and JSON bodies on other paths that no later parser takes."""

    __slots__ = ()
    type_name = "openai-parser"


class AnthropicParser(Parser):
    """Reads the bodies of Anthropic's messages and count_tokens."""

    __slots__ = ()
    type_name = "anthropic-parser"


class VllmHttpParser(Parser):
    """Reads the bodies of vLLM's own HTTP APIs: generate by token ids, score, pooling, tokenize, rerank."""

    __slots__ = ()
    type_name = "vllmhttp-parser"


class SglangHttpParser(Parser):
    """Reads the bodies of SGLang's generate."""

    __slots__ = ()
    type_name = "sglanghttp-parser"


class VllmGrpcParser(Parser):
    """Reads the messages of vLLM's gRPC engine, for pools that speak h2c."""

    __slots__ = ()
    type_name = "vllmgrpc-parser"


class VertexAiParser(Parser):
    """Reads the chats and responses calls in the messages of Vertex AI's prediction service, over h2c."""

    __slots__ = ()
    type_name = "vertexai-parser"


class PassthroughParser(Parser):
    """Takes every request that the parsers before it leave, and reads no body: no model, no prompt."""

    __slots__ = ()
    type_name = "passthrough-parser"


#: Those that read bodies; all of them are used when a configuration names none.
READING: Final[tuple[type[Parser], ...]] = (
    OpenAiParser,
    AnthropicParser,
    VllmHttpParser,
    SglangHttpParser,
    VllmGrpcParser,
    VertexAiParser,
)
