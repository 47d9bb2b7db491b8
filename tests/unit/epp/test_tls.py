"""Mounted certificates that cannot be used; how a good one is followed is in the component tests."""

import asyncio
from pathlib import Path
from typing import cast

import pytest
from cryptography.hazmat.primitives import serialization

from certificates import KeyPair, mount, new_pair
from endpoint_picker.tls import LOOK_S, CertificateError, follow, mounted_pair
from lean_grpc import ServerCertificate
from virtual_time import run_virtual


def encrypted(key: bytes) -> bytes:
    kind = serialization.BestAvailableEncryption(b"secret")
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kind
    )


def test_a_pair_that_belongs_together_is_loaded(tmp_path: Path) -> None:
    mount(tmp_path, new_pair("picker"))
    assert mounted_pair(tmp_path).context.cert_store_stats()["x509"] >= 0


def test_a_missing_pair_is_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"tls\.crt: No such file"):
        mounted_pair(tmp_path)


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    mount(tmp_path, KeyPair(new_pair("a").certificate, new_pair("b").key))
    with pytest.raises(CertificateError, match=r"tls\.key in .* is not the key of tls\.crt"):
        mounted_pair(tmp_path)


def test_what_is_no_pem_or_wants_a_passphrase_is_refused(tmp_path: Path) -> None:
    good = new_pair("a")
    for pair in (KeyPair(b"x", b"y"), KeyPair(good.certificate, encrypted(good.key))):
        mount(tmp_path, pair)
        with pytest.raises(CertificateError, match="PEM"):
            mounted_pair(tmp_path)


def test_a_fault_while_looking_at_the_pair_does_not_end_the_looking(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Pair:
        looks = 0

        def refresh(self) -> bool:
            self.looks += 1
            if self.looks == 1:
                raise MemoryError
            return False

    pair = Pair()

    async def body() -> None:
        following = asyncio.create_task(follow(cast("ServerCertificate", pair)))
        await asyncio.sleep(5 * LOOK_S)
        assert not following.done()
        following.cancel()

    run_virtual(body())
    assert pair.looks > 2
    assert caplog.text.count("could not be looked at") == 1
