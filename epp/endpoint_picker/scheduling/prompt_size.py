"""The length of a request's prompt, as far as its body shows it. Pure."""

from endpoint_picker.datalayer.prefix_index import BYTES_PER_TOKEN
from endpoint_picker.request import InferenceRequest
from ext_proc.body.openai import MAX_MATERIAL_BYTES


def prompt_tokens(request: InferenceRequest) -> int:
    """Return the tokens of the prompt, estimated from its bytes.

    Prompt material ends at MAX_MATERIAL_BYTES; a longer prompt is estimated by the size of the body.
    """
    size = len(request.prompt)
    return (size if size < MAX_MATERIAL_BYTES else request.body_bytes) // BYTES_PER_TOKEN
