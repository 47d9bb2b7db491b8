"""The native HTTP APIs of engines: vLLM's and SGLang's generate. Pure."""

from collections.abc import Iterator
from typing import Final

from ext_proc.body import material
from ext_proc.body.api import Api, Fields


def vllm(fields: Fields) -> Iterator[bytes]:
    """Lay out the token ids, after the content hashes of images and the like."""
    if "cache_salt" in fields or "lora_request" in fields:
        yield from material.isolation(fields.get("cache_salt"), fields.get("lora_request"))
    features = fields.get("features")
    if features is not None and features.raw != b"null":
        yield from (material.MEDIA, material.whole(features.raw), material.NEXT)
    ids = fields.get("token_ids")
    if ids is not None:
        yield from material.sequence(ids)


#: The prompt of a generate without a version: SGLang's text or ids, vLLM's example server's prompt.
_PROMPTS: Final = ("input_ids", "text", "prompt")
_MEDIA: Final = ("image_data", "video_data", "audio_data")


def sglang(fields: Fields) -> Iterator[bytes]:
    """Lay out what separates caches, then media, then ids or text."""
    if "extra_key" in fields or "lora_path" in fields:
        yield from material.isolation(fields.get("extra_key"), fields.get("lora_path"))
    for key in _MEDIA:
        value = fields.get(key)
        if value is not None and value.raw != b"null":
            yield from (material.MEDIA, material.digest(material.whole(value.raw)), material.NEXT)
    for key in _PROMPTS:
        value = fields.get(key)
        if value is not None and value.raw != b"null":
            yield from material.sequence(value)
            return


APIS: Final = (
    Api(
        name="vllm generate",
        paths=("inference/v1/generate",),
        parser="vllmhttp-parser",
        layout=vllm,
        prompt=("token_ids", "features", "cache_salt", "lora_request"),
        max_tokens=("sampling_params.max_tokens",),
    ),
    Api(
        name="generate",
        paths=("generate",),
        parser="sglanghttp-parser",
        layout=sglang,
        prompt=(*_PROMPTS, *_MEDIA, "extra_key", "lora_path"),
        max_tokens=("sampling_params.max_new_tokens", "max_tokens"),
    ),
)
