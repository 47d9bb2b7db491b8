"""Certificates that cannot be served."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from lean_grpc import ServerCertificate, client_context
from lean_grpc.aio.tls import make_self_signed


def test_an_encrypted_key_is_an_error_and_asks_nobody_for_its_passphrase(tmp_path: Path) -> None:
    certificate, key = make_self_signed(["a"])
    kind = serialization.BestAvailableEncryption(b"secret")
    locked = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kind
    )
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(locked)
    with pytest.raises(ssl.SSLError):
        ServerCertificate(tmp_path)
    with pytest.raises(ssl.SSLError):
        client_context(certificate=tmp_path)
