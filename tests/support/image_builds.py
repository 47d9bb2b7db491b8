"""The images under test."""

from dataclasses import dataclass
from pathlib import Path

from build_images import Build
from containers import Engine
from image_contents import IMAGES


@dataclass(frozen=True, slots=True)
class Built:
    """The images' names, by their keys, and what they were built with."""

    engine: Engine
    build: Build
    names: dict[str, str]

    def sbom(self, key: str) -> Path:
        return self.build.output / f"{IMAGES[key].name}-{self.build.version}.cdx.json"
