"""An OpenTelemetry exporter that cannot be loaded, as where pip mixed two packages' files."""

import logging
import sys

import pytest

from endpoint_picker import servers
from endpoint_picker.settings import parse


def test_the_picker_serves_without_traces_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    settings = parse(["--endpoints-file=e.yaml", "--tracing-endpoint=http://127.0.0.1:1"], {})

    assert servers.tracing_of(settings) is None
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "--no-deps opentelemetry-proto" in record.getMessage()
