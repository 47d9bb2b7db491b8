"""Compiled code of the kernel that an image brings along, so that a prediction server starts at once.

numba looks for a folder that it can write, and an image's root file system is read-only: `PreparedLocator`
takes $NUMBA_CACHE_DIR as it is. numba finds it by $NUMBA_CACHE_LOCATOR_CLASSES. The code is for the CPU that
$NUMBA_CPU_NAME names; `images/image_contents.py` sets all three.
"""

from numba import config
from numba.core.caching import UserProvidedCacheLocator
from typing_extensions import override


class PreparedLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Names the folder, which need neither be writable nor know where the module lies."""

    @override
    def get_cache_path(self) -> str:
        return str(config.CACHE_DIR)

    @override
    def ensure_cache_path(self) -> None:
        """Leave the folder as it is: what cannot be written fails when it is written."""
