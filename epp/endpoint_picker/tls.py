"""The certificate of the ext-proc port: a mounted pair, read again when it changes, or a self-signed one.

Gateways do not verify a self-signed certificate; it keeps the traffic from being read on the way.
"""

import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
_LIFETIME: Final = timedelta(days=3650)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its private key, PEM."""

    certificate: bytes
    key: bytes


class CertificateError(Exception):
    """The mounted pair cannot be used; the text says which file and why."""


class CertificateSource(Protocol):
    """Gives the pair to serve with."""

    def current(self) -> KeyPair:
        """Return the pair; a new one once it has changed. May be called from any thread."""
        ...


class SelfSigned:
    """One pair made at start (ECDSA P-256)."""

    __slots__ = ("_pair",)

    def __init__(self, hosts: Sequence[str], now: datetime) -> None:
        self._pair = self_signed(hosts, now)

    def current(self) -> KeyPair:
        """Return the pair."""
        return self._pair


class MountedPair:
    """tls.crt and tls.key in a folder, as a Secret volume has them. Keeps the last good pair."""

    __slots__ = ("_folder", "_pair", "_seen")

    def __init__(self, folder: Path) -> None:
        """Read the pair. Raises CertificateError when there is none that can be used."""
        self._folder = folder
        self._seen = self._stamp()
        self._pair = load_pair(folder)

    def current(self) -> KeyPair:
        """Return the pair, read again when a file was replaced."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self._pair = load_pair(self._folder)
                _log.info("certificate reloaded")
        except CertificateError as error:
            _log.warning("certificate not reloaded", extra={"reason": str(error)})
        return self._pair

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        try:
            files = [(self._folder / name).stat() for name in (CERTIFICATE_FILE, KEY_FILE)]
        except OSError as error:
            raise CertificateError(_unreadable(error)) from None
        return tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)


def load_pair(folder: Path) -> KeyPair:
    """Read a pair and check that its halves belong together. Raises CertificateError."""
    try:
        pair = KeyPair((folder / CERTIFICATE_FILE).read_bytes(), (folder / KEY_FILE).read_bytes())
    except OSError as error:
        raise CertificateError(_unreadable(error)) from None
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError):
        message = f"{folder} does not hold a PEM certificate and an unencrypted PEM key"
        raise CertificateError(message) from None
    if key.public_key() != certificate.public_key():
        message = f"{KEY_FILE} in {folder} is not the key of {CERTIFICATE_FILE}"
        raise CertificateError(message)
    return pair


def self_signed(hosts: Sequence[str], now: datetime) -> KeyPair:
    """Make a certificate for the given names and addresses, valid from an hour ago for ten years."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Headroom endpoint picker")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - timedelta(hours=1))
        .not_valid_after(now.astimezone(UTC) + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _unreadable(error: OSError) -> str:
    return f"cannot read {error.filename}: {error.strerror}"
