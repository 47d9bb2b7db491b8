"""The version of this release, for `--version`, metrics and the default tags of images."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

_PACKAGE: Final = "headroom-operator"
#: The version of a source tree that runs without being installed: only an installed package names its own.
UNKNOWN: Final = "unknown"


def release_version() -> str:
    """Return the version of the installed package; UNKNOWN when it is not installed."""
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:
        return UNKNOWN
