"""Command `headroom-epp check-config FILE`: prints the effective configuration, or every fault in it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from endpoint_picker import yaml_text
from endpoint_picker.config.build import build
from endpoint_picker.config.registry import Registry
from endpoint_picker.config_errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Check one file. Exit status: 0 it can be used, 1 it cannot, 2 it cannot be read.

    Standard output has the effective configuration: defaults filled in, added plugins listed. The picker
    accepts it as a configuration. Standard error has faults and warnings, one a line in the form
    "FILE:LINE: path: what to do".
    """
    parser = argparse.ArgumentParser(
        prog="headroom-epp check-config",
        description="Print the effective EndpointPickerConfig, or every fault in it.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help='YAML or JSON; "-" is standard input')
    file = parser.parse_args(arguments).file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}\n")
        return 2
    try:
        config = build(text, Registry.installed())
    except ConfigError as error:
        lines = yaml_text.lines_of(text, [fault.path for fault in error.faults])
        for fault, line in zip(error.faults, lines, strict=True):
            sys.stderr.write(f"{file}:{line}: {fault}\n" if line else f"{file}: {fault}\n")
        return 1
    for warning in config.warnings:
        sys.stderr.write(f"{file}: warning: {warning}\n")
    sys.stdout.write(yaml.safe_dump(config.effective, sort_keys=False))
    return 0
