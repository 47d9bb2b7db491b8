"""Certificates that cannot be served."""

import ssl
import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from lean_grpc import ServerCertificate, client_context
from lean_grpc.aio.tls import make_self_signed, server_context


def test_an_encrypted_key_is_an_error_without_a_passphrase_prompt(tmp_path: Path) -> None:
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


def test_a_pair_that_stays_broken_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def write(certificate: bytes, key: bytes) -> None:
        (tmp_path / "tls.crt").write_bytes(certificate)
        (tmp_path / "tls.key").write_bytes(key)

    def warnings() -> int:
        return caplog.text.count("is not used")

    good = make_self_signed(["a"])
    write(*good)
    pair = ServerCertificate(tmp_path)
    write(good[0], b"no key")
    for _ in range(5):
        assert not pair.refresh()
    assert warnings() == 1
    (tmp_path / "tls.key").unlink()
    for _ in range(5):
        assert not pair.refresh()
    assert warnings() == 2
    write(*good)
    assert not pair.refresh()
    write(good[0], b"no key")
    assert not pair.refresh()
    assert warnings() == 3


def test_a_pair_is_loaded_without_a_folder_to_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    certificate, key = make_self_signed(["a"])
    assert isinstance(server_context(certificate, key), ssl.SSLContext)
