"""Parsers: plugins that say which request bodies are read. The reading itself is built in."""

from endpoint_picker.scheduling.plugin import Plugin


class Parser(Plugin):
    """Base of the parsers."""

    __slots__ = ()


class OpenAiParser(Parser):
    """Reads the bodies of the OpenAI APIs, and JSON bodies on other paths that no later parser takes."""

    __slots__ = ()
    type_name = "openai-parser"


class PassthroughParser(Parser):
    """Takes every request that the parsers before it leave, and reads no body: no model, no prompt."""

    __slots__ = ()
    type_name = "passthrough-parser"
