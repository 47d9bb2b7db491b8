"""Certificates: made, mounted, replaced."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from endpoint_picker.tls import CertificateError, KeyPair, MountedPair, SelfSigned, self_signed

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def write(folder: Path, pair: KeyPair) -> None:
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        fresh = folder / f"{name}.new"
        fresh.write_bytes(content)
        fresh.rename(folder / name)


def test_a_self_signed_pair_names_its_hosts_and_loads(tmp_path: Path) -> None:
    pair = SelfSigned(("10.0.0.1", "picker"), NOW).current()
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["10.0.0.1", "picker"]
    assert certificate.not_valid_before_utc < NOW < certificate.not_valid_after_utc
    write(tmp_path, pair)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        tmp_path / "tls.crt", tmp_path / "tls.key"
    )


def test_a_mounted_pair_is_read_again_when_replaced(tmp_path: Path) -> None:
    first, second = self_signed(("a",), NOW), self_signed(("b",), NOW)
    write(tmp_path, first)
    mounted = MountedPair(tmp_path)
    assert mounted.current() == first
    write(tmp_path, second)
    assert mounted.current() == second


def test_a_faulty_replacement_keeps_the_last_pair(tmp_path: Path) -> None:
    first, second = self_signed(("a",), NOW), self_signed(("b",), NOW)
    write(tmp_path, first)
    mounted = MountedPair(tmp_path)
    write(tmp_path, KeyPair(second.certificate, first.key))
    assert mounted.current() == first
    (tmp_path / "tls.key").unlink()
    assert mounted.current() == first
    write(tmp_path, second)
    assert mounted.current() == second


def test_a_missing_or_mismatched_pair_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        MountedPair(tmp_path)
    first, second = self_signed(("a",), NOW), self_signed(("b",), NOW)
    write(tmp_path, KeyPair(first.certificate, second.key))
    with pytest.raises(CertificateError, match="not the key"):
        MountedPair(tmp_path)
    write(tmp_path, KeyPair(b"x", b"y"))
    with pytest.raises(CertificateError, match="PEM"):
        MountedPair(tmp_path)
