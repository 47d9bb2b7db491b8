"""Certificates for tests: makes a new pair, and writes it as a kubelet writes a Secret volume."""

from dataclasses import dataclass
from pathlib import Path

from lean_grpc.aio.tls import make_self_signed


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


def new_pair(name: str) -> KeyPair:
    return KeyPair(*make_self_signed([name]))


def mount(folder: Path, pair: KeyPair) -> None:
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        fresh = folder / f"{name}.new"
        fresh.write_bytes(content)
        fresh.rename(folder / name)
