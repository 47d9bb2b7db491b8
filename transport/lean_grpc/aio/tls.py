"""TLS contexts with ALPN h2: from a mounted certificate, which may be replaced, or a self-signed one."""

import datetime
import logging
import os
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509

_log = logging.getLogger("lean_grpc.tls")

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
SELF_SIGNED_DAYS: Final = 3_650

_NO_PASSPHRASE: Final = ""
"""Makes an encrypted key an error; without it OpenSSL asks for the passphrase on the terminal, and waits."""

# RFC 9113, 9.2.2: with TLS 1.2 only suites with forward secrecy and an AEAD; those of TLS 1.3 all are.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"


def _context(purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["h2"])
    # RFC 9113, 9.2.1: no compression, no renegotiation.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


class ServerCertificate:
    """A server's certificate from a folder with `tls.crt` and `tls.key`, as a Secret of type TLS is mounted.

    `context` serves new handshakes; call `refresh` now and then (say every ten seconds) to follow a rotation.
    """

    def __init__(self, folder: Path) -> None:
        """Load the pair.

        Raises:
            OSError: A file cannot be read.
            ssl.SSLError: The files are no certificate and key, or do not belong together.
        """
        self._folder = folder
        self._loaded = self._read()
        self._refused: tuple[bytes, bytes] | None = None
        self._fault: str | None = None
        self.context = server_context(*self._loaded)

    def refresh(self) -> bool:
        """Load the pair again if it has changed; return whether it was.

        A broken pair is not used, and is logged once.
        """
        try:
            pair = self._read()
            if pair in (self._loaded, self._refused):
                if pair == self._loaded:
                    self._refused = self._fault = None
                return False
            self._refused = pair
            replace_certificate(self.context, *pair)
        except (OSError, ssl.SSLError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                _log.warning("the certificate in %s is not used: %s", self._folder, error)
            return False
        self._loaded, self._refused, self._fault = pair, None, None
        return True

    def _read(self) -> tuple[bytes, bytes]:
        return (self._folder / CERTIFICATE).read_bytes(), (self._folder / KEY).read_bytes()


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return a server's context with a pair in PEM.

    Raises:
        ssl.SSLError: They are no certificate and key, or do not belong together.
    """
    context = _context(ssl.Purpose.CLIENT_AUTH)
    _load(context, certificate, key)
    return context


def replace_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Have new handshakes of a server's context use another pair; a bad pair changes nothing.

    Raises:
        ssl.SSLError: They are no certificate and key, or do not belong together.
    """
    # A load that fails leaves half of the pair in the context: try it on a new one first.
    server_context(certificate, key)
    _load(context, certificate, key)


def self_signed_server(names: Sequence[str] = ("localhost", "127.0.0.1")) -> ssl.SSLContext:
    """Return a server's context with a new self-signed certificate for `names` (DNS names, addresses).

    It protects against passive listeners only; clients that verify refuse it. Needs `cryptography`.
    """
    return server_context(*make_self_signed(names))


def client_context(
    *, authorities: Path | None = None, verify: bool = True, certificate: Path | None = None
) -> ssl.SSLContext:
    """Return a client's context: the system's authorities, those in a file, or no verification at all.

    `certificate` is a folder with the client's own `tls.crt` and `tls.key`.

    Raises:
        OSError: A file cannot be read.
        ssl.SSLError: A file does not hold what it should.
    """
    context = _context(ssl.Purpose.SERVER_AUTH)
    if authorities is not None:
        context.load_verify_locations(authorities)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate / CERTIFICATE, certificate / KEY, _NO_PASSPHRASE)
    return context


def make_self_signed(names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a new certificate for `names` and its key, both PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), secret


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a pair from memory: `ssl` takes paths only, and the pair's files may change between two reads.

    `memfd_create`, where the system has it, gives memory a path: a container's file system is often
    read-only, and a key should not be written to a disk.
    """
    with ExitStack() as stack:
        if hasattr(os, "memfd_create"):
            pair = [_in_memory(content, stack) for content in (certificate, key)]
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lean-grpc-")))
            pair = [str(folder / name) for name in (CERTIFICATE, KEY)]
            for path, content in zip(pair, (certificate, key), strict=True):
                Path(path).touch(mode=0o600)
                Path(path).write_bytes(content)
        context.load_cert_chain(pair[0], pair[1], _NO_PASSPHRASE)


def _in_memory(content: bytes, stack: ExitStack) -> str:
    """Return the path of a file in memory; closing `stack` frees it."""
    file = stack.enter_context(os.fdopen(os.memfd_create("lean-grpc"), "wb"))
    file.write(content)
    file.flush()
    return f"/proc/self/fd/{file.fileno()}"
