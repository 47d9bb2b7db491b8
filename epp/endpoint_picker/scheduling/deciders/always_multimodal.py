"""always-disagg-multimodal-decider: requests with images, video or audio go through an encode server."""

from typing_extensions import override

from endpoint_picker.request import InferenceRequest
from endpoint_picker.scheduling.candidates import Candidates
from endpoint_picker.scheduling.decider import Decider
from ext_proc.body.material import has_media


class AlwaysMultimodalDecider(Decider):
    """Yes when a chat message has a part `image_url`, `video_url`, `audio_url` or `input_audio`."""

    __slots__ = ()
    type_name = "always-disagg-multimodal-decider"
    reads_prompt = True

    @override
    def wants(self, request: InferenceRequest, decode: Candidates) -> bool:
        """Tell whether the prompt has such a part."""
        return has_media(request.prompt)
