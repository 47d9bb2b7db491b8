"""Builders of the shapes that recur in an Envoy configuration. Pure."""

from typing import Any

Config = dict[str, Any]


def socket(address: str, port: int) -> Config:
    """Return a TCP address."""
    return {"socket_address": {"address": address, "port_value": port}}


def pipe(path: str) -> Config:
    """Return the address of a UNIX socket; with a leading @ it is abstract and has no file."""
    return {"pipe": {"path": path}}


def extension(name: str, message: str, **fields: Any) -> Config:
    """Return a named extension with the protobuf message that configures it."""
    return {"name": name, "typed_config": typed(message, **fields)}


def typed(message: str, **fields: Any) -> Config:
    """Return a protobuf message as google.protobuf.Any carries it in JSON."""
    return {"@type": f"type.googleapis.com/{message}", **fields}
