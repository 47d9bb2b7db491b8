"""The manifest of a bundle: what a version's models are, how they are calibrated and how well they did. Pure.

A bundle is a directory `models/<version>/` with one `<target>.ubj` for each target that has a model, and
`manifest.json`. Versions sort by age as text: `<milliseconds since the epoch, 13 digits>-<8 hex digits>`.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from latency_contract.base_model import TERMS
from latency_contract.errors import BundleError, SchemaMismatchError
from latency_contract.regimes import REGIMES
from latency_contract.schema import SCHEMA_HASH, TARGET_NAMES, Target
from latency_contract.states import State

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
#: Largest manifest that is read.
MAX_MANIFEST_BYTES: Final = 1 << 20

_VERSION: Final = re.compile(r"[0-9]{13}-[0-9a-f]{8}")


def is_version(name: str) -> bool:
    """Tell whether a name is that of a version."""
    return _VERSION.fullmatch(name) is not None


def version_name(milliseconds: int, digest: str) -> str:
    """Return the version of a time and of the first 8 hex digits of a digest."""
    return f"{milliseconds:013d}-{digest[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetModel:
    """One target's model. Its seconds are `calibration.seconds(margins + trees, offsets, regimes)`."""

    file: str
    """`<target>.ubj`: XGBoost, one output a quantile, fed with the whole matrix; base score 0."""
    sha256: str
    quantiles: tuple[float, ...]
    """Ascending; heads of the model."""
    bound: int
    """Which of the quantiles is the upper bound; the median is the head nearest to 0.5."""
    coefficients: tuple[float, ...]
    """Of `base_model.TERMS[target]`."""
    offsets: tuple[tuple[float, ...], ...]
    """[quantiles][REGIMES]: what calibration adds in log seconds."""
    degraded: tuple[bool, ...]
    """[REGIMES]: whether errors or bounds do not hold there."""
    samples: int
    """That the model was fitted to."""
    stratified_error: float | None
    """Median absolute relative error of the median on the stratified hold-out; None: not measured."""
    recent_error: float | None
    """The same on the most recent samples."""
    coverage: float | None
    """Part of the hold-out below the upper bound."""

    @property
    def median(self) -> int:
        """Return which of the heads is the median."""
        return min(range(len(self.quantiles)), key=lambda at: abs(self.quantiles[at] - 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A bundle."""

    version: str
    schema: str
    """SCHEMA_HASH, hex."""
    created_s: float
    """Seconds since the epoch."""
    state: State
    models: Mapping[Target, TargetModel]
    parent: str = ""
    """Version whose trees these are when only calibration or state changed; else ""."""


def to_json(manifest: Manifest) -> bytes:
    """Return the text of `manifest.json`."""
    models = {target.name.lower(): asdict(model) for target, model in manifest.models.items()}
    content = {
        "format": FORMAT,
        "version": manifest.version,
        "parent": manifest.parent,
        "schema": manifest.schema,
        "created_s": manifest.created_s,
        "state": manifest.state.name.lower(),
        "models": models,
    }
    return json.dumps(content, indent=1, allow_nan=False).encode()


def from_json(text: bytes) -> Manifest:
    """Return the manifest. Raises SchemaMismatchError for another schema, else BundleError."""
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            msg = f"bundle format {content['format']!r}, and this program reads {FORMAT}"
            raise BundleError(msg)
        schema = str(content["schema"])
        if schema != SCHEMA_HASH.hex():
            raise SchemaMismatchError(bytes.fromhex(schema))
        models = {
            Target(TARGET_NAMES.index(name)): _model(name, each) for name, each in content["models"].items()
        }
        manifest = Manifest(
            version=str(content["version"]),
            schema=schema,
            created_s=_number(content["created_s"]),
            state=State[str(content["state"]).upper()],
            models=models,
            parent=str(content["parent"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{MANIFEST} cannot be used: {type(error).__name__}: {error}"
        raise BundleError(msg) from error
    if not is_version(manifest.version) or not manifest.models:
        msg = f"{MANIFEST} cannot be used: version {manifest.version[:60]!r}, {len(models)} models"
        raise BundleError(msg)
    return manifest


def _model(name: str, content: Mapping[str, object]) -> TargetModel:
    target = Target(TARGET_NAMES.index(name))
    fields = dict(content)
    fields["quantiles"] = _numbers(fields["quantiles"])
    fields["coefficients"] = _numbers(fields["coefficients"])
    fields["offsets"] = tuple(_numbers(each) for each in _list(fields["offsets"]))
    fields["degraded"] = tuple(bool(each) for each in _list(fields["degraded"]))
    model = TargetModel(**fields)  # type: ignore[arg-type]
    heads = len(model.quantiles)
    if model.file != f"{name}.ubj":
        raise ValueError(f"file {model.file!r} of {name}")
    if not heads or list(model.quantiles) != sorted(set(model.quantiles)):
        raise ValueError(f"quantiles of {name}")
    if not (model.quantiles[0] > 0 and model.quantiles[-1] < 1 and 0 <= model.bound < heads):
        raise ValueError(f"quantiles or bound of {name}")
    if len(model.coefficients) != len(TERMS[target]):
        raise ValueError(f"coefficients of {name}")
    if [len(each) for each in model.offsets] != [REGIMES] * heads or len(model.degraded) != REGIMES:
        raise ValueError(f"offsets or regimes of {name}")
    return model


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _numbers(value: object) -> tuple[float, ...]:
    return tuple(_number(each) for each in _list(value))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("not a finite number")
    return float(value)
