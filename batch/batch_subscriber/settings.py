"""The settings of `headroom-batch run`: a YAML file, and flags that win over it. One model holds them all."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from batch_subscriber.errors import ConfigurationError
from batch_subscriber.flow import FlowSettings
from batch_subscriber.jobs import MAX_BODY_BYTES, MAX_NAME_CHARS
from batch_subscriber.retries import Limits

#: Largest settings file, bytes.
MAX_FILE_BYTES: Final = 2**20


class Settings(BaseModel):
    """What a subscriber is started with. The field `max_in_flight` is the flag `--max-in-flight`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: Annotated[str, Field(description="URL of the queue, e.g. sqlite:/var/lib/headroom/queue.db")]
    results: Annotated[str, Field(description="URL of the result store, e.g. file:/var/lib/headroom/results")]
    gateway: Annotated[
        str,
        Field(pattern=r"^https?://[^/\s]+(/[^\s?#]*)?$", description="URL that the jobs' paths are added to"),
    ]
    cancellations: Annotated[
        str, Field(description="URL of the cancelled groups; by default the queue's, where it keeps them")
    ] = ""
    objective: Annotated[
        str, Field(max_length=MAX_NAME_CHARS, description="InferenceObjective of jobs that name none")
    ] = ""
    api_key_file: Annotated[
        str, Field(description="file with the key that is sent as Authorization: Bearer")
    ] = ""
    picker_metrics: Annotated[
        str,
        Field(pattern=r"^(https?://\S+)?$", description="URL of the picker's metrics page, '' for none"),
    ] = ""
    pool: Annotated[str, Field(description="name of the pool on that page, '' for all of them")] = ""
    read_every_s: Annotated[
        float, Field(ge=0.05, le=60, description="seconds between two readings of that page")
    ] = 0.5
    first_in_flight: Annotated[int, Field(ge=1, le=10_000, description="requests in flight at the start")] = 4
    max_in_flight: Annotated[int, Field(ge=1, le=10_000, description="requests in flight at most")] = 256
    stretch: Annotated[
        float,
        Field(gt=1, le=1000, description="longest mean time of a request over the shortest one measured"),
    ] = 4.0
    max_held: Annotated[
        int, Field(ge=1, le=100_000, description="jobs in hand at most, those in flight included")
    ] = 512
    max_held_bytes: Annotated[
        int, Field(ge=MAX_BODY_BYTES, description="bytes of bodies in hand, above which no job is fetched")
    ] = 256 * 2**20
    max_response_bytes: Annotated[int, Field(ge=1024, description="longest answer, bytes")] = 16 * 2**20
    request_timeout_s: Annotated[float, Field(gt=0, le=86400, description="longest request, seconds")] = (
        1800.0
    )
    visibility_s: Annotated[
        float,
        Field(ge=1, le=600, description="seconds for which a job in hand is hidden; extended meanwhile"),
    ] = 60.0
    max_hold_s: Annotated[
        float, Field(gt=0, le=86400, description="seconds after which a job in hand is not extended any more")
    ] = 3600.0
    max_attempts: Annotated[int, Field(ge=1, le=1000, description="attempts of a job that may fail")] = 5
    max_deliveries: Annotated[
        int, Field(ge=1, le=10_000, description="deliveries without an end, after which a job is poison")
    ] = 20
    max_age_s: Annotated[
        float, Field(gt=0, description="age at which a job expires that has no earlier deadline, seconds")
    ] = 7 * 86400.0
    backoff_s: Annotated[
        float, Field(gt=0, le=3600, description="mean wait after a first failure, seconds; it doubles")
    ] = 1.0
    max_backoff_s: Annotated[float, Field(gt=0, le=86400, description="longest mean wait, seconds")] = 60.0
    outage_s: Annotated[
        float,
        Field(gt=0, description="failures count only while another job was served within this, seconds"),
    ] = 30.0
    cancel_every_s: Annotated[
        float, Field(ge=0.05, le=60, description="seconds between two looks for cancelled groups")
    ] = 0.3
    drain_s: Annotated[
        float, Field(ge=0, le=86400, description="seconds that requests in flight have after SIGTERM")
    ] = 25.0
    http: Annotated[
        str, Field(pattern=r"^(.*:\d{1,5})?$", description="HOST:PORT of metrics and health, '' for none")
    ] = "0.0.0.0:9091"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        if self.max_held < self.max_in_flight:
            msg = f"max_held ({self.max_held}) must be at least max_in_flight ({self.max_in_flight})"
            raise ValueError(msg)
        return self

    def flow(self) -> FlowSettings:
        """Return the part that the flow is made from."""
        return FlowSettings(first=self.first_in_flight, most=self.max_in_flight, stretch=self.stretch)

    def limits(self) -> Limits:
        """Return the bounds of a job's life."""
        return Limits(
            attempts=self.max_attempts,
            deliveries=self.max_deliveries,
            age_s=self.max_age_s,
            backoff_s=self.backoff_s,
            longest_backoff_s=self.max_backoff_s,
            outage_s=self.outage_s,
        )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for each setting."""
    parser.add_argument("--config", type=Path, help="YAML file of settings, named as the flags with _ for -")
    for name, field in Settings.model_fields.items():
        default = "" if field.is_required() else f" ({field.default})"
        text = (field.description or "DEBUG, INFO, WARNING or ERROR") + default
        parser.add_argument(
            f"--{name.replace('_', '-')}", dest=name, default=None, help=text.replace("%", "%%")
        )


def load(arguments: argparse.Namespace) -> Settings:
    """Return the settings of a command line. Raises ConfigurationError, which names each fault."""
    values: dict[str, Any] = {} if arguments.config is None else _file(arguments.config)
    for name in Settings.model_fields:
        if (given := getattr(arguments, name)) is not None:
            values[name] = given
    try:
        return Settings.model_validate(values)
    except ValidationError as wrong:
        faults = "; ".join(_fault(error) for error in wrong.errors())
        raise ConfigurationError(faults) from wrong


def _fault(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"]) or "settings"
    if error["type"] == "extra_forbidden":
        return f"{name}: there is no such setting"
    if error["type"] == "missing":
        return f"{name}: is needed; give --{name.replace('_', '-')} or {name} in the file"
    return f"{name}: {error['msg']}"


def _file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        values = yaml.safe_load(text) if len(text) <= MAX_FILE_BYTES else None
    except OSError as fault:
        msg = f"{path}: {fault.strerror}"
        raise ConfigurationError(msg) from fault
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        msg = f"{path} is no YAML: {fault}"
        raise ConfigurationError(msg) from fault
    if not isinstance(values, dict):
        msg = f"{path} must be a mapping of settings, of at most {MAX_FILE_BYTES} bytes"
        raise ConfigurationError(msg)
    return values


def parse(arguments: Sequence[str]) -> Settings:
    """Return the settings of the flags alone, for tests and tools. Raises ConfigurationError."""
    parser = argparse.ArgumentParser(prog="headroom-batch run")
    add_flags(parser)
    return load(parser.parse_args(arguments))
