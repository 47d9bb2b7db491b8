"""What each container image holds. Its packages of Headroom follow from its command: what that imports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: The time of every file and image, seconds: a constant, so that a digest depends on content alone.
#: It is 1980-01-01, the earliest that a zip archive can hold.
EPOCH: Final = 315_532_800


#: Where an image keeps code that is compiled while it is built.
KERNEL_DIR: Final = "/usr/share/headroom/kernel"


@dataclass(frozen=True, slots=True)
class Contents:
    """One image. Its key in IMAGES names its lock."""

    name: str
    """Its repository's name."""
    title: str
    extra: str
    """The extra of pyproject.toml whose dependencies it holds."""
    command: str
    """The console script of pyproject.toml that is the image's entry point."""
    also: tuple[str, ...] = ()
    """Further console scripts of the same package, which a pod names as its command."""
    left_out: tuple[str, ...] = ()
    """Patterns of files and folders of dependencies that the image's code never loads."""
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: str = ""
    """Statements that are run while the image is built, with `environment`; what they write to KERNEL_DIR
    stays."""
    without: tuple[str, ...] = ()
    """Distributions that a dependency asks for and that the image's code never imports."""
    optional: tuple[str, ...] = ()
    """Extras that the image does not hold. Its code imports what they bring inside functions alone, and names
    the extra in the error where a configuration needs it."""


IMAGES: Final = {
    "operator": Contents(
        name="headroom-operator",
        title="Headroom operator",
        extra="operator",
        command="headroom-operator",
    ),
    "epp": Contents(
        name="headroom-epp",
        title="Headroom endpoint picker",
        extra="epp",
        command="headroom-epp",
        # xds-protos asks for it for its client stubs; the picker uses its messages alone.
        without=("grpcio",),
        # Tokenizer files in the picker: TOKENIZERS_EXTRA of endpoint_picker.
        optional=("tokenizers",),
    ),
    # Apart from the picker's: what evaluates and trains models is larger than the picker.
    "predictor": Contents(
        name="headroom-predictor",
        title="Headroom latency predictor",
        extra="predictor",
        command="headroom-predictor",
        also=("headroom-trainer",),
        # Pools of threads, which the kernel does not use and which want another library; tests.
        left_out=("numba/np/ufunc/*pool.*.so", "numba/tests", "scipy/*/tests", "numpy/*/tests"),
        # One code for every machine: some 3 % slower than that of the machine itself, and there at the start.
        environment={
            "NUMBA_CPU_NAME": "generic",
            "NUMBA_CACHE_DIR": KERNEL_DIR,
            "NUMBA_CACHE_LOCATOR_CLASSES": "latency_predictor.serving.kernel_cache.PreparedLocator",
        },
        prepare="from latency_predictor.serving.kernel import compile_kernel; compile_kernel()",
    ),
    "batch": Contents(
        name="headroom-batch",
        title="Headroom batch subscriber and batches API",
        extra="batch",
        command="headroom-batch",
        # asyncpg and redis ask for it before Python 3.11.3.
        without=("async-timeout",),
    ),
    "simulator": Contents(
        name="headroom-model-server-sim",
        title="Headroom model server simulator",
        extra="simulator",
        command="headroom-model-server-sim",
        # pyzmq asks for it under PyPy alone; the lock merges that marker with cryptography's.
        without=("cffi",),
    ),
}
