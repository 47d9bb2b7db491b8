"""Where the API server is and who asks it, from a ServiceAccount's folder or a kubeconfig file."""

from base64 import b64encode
from pathlib import Path

import pytest

from cluster_client.access import ApiAccess
from cluster_client.errors import ApiError
from lean_grpc.aio.tls import make_self_signed


def test_access_from_inside_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=r"KUBERNETES_SERVICE_HOST.*; stand on your head"):
        ApiAccess.in_cluster(tmp_path, {}, otherwise="stand on your head")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ApiError, match="ServiceAccount token"):
        ApiAccess.in_cluster(tmp_path, env)
    (tmp_path / "token").write_text("t")
    access = ApiAccess.in_cluster(tmp_path, env)
    assert access.server == "https://[fd00::1]:6443"
    assert access.headers() == {"Authorization": "Bearer t"}


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_token_that_cannot_be_read_is_an_error_that_does_not_show_it(
    tmp_path: Path, content: bytes | None
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(ApiError, match="cannot be read") as refused:
        ApiAccess("https://x", token_file=token).headers()
    assert "\\xff" not in str(refused.value)


CONTEXT = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"


def kubeconfig(cluster: str, user: str = "{}") -> str:
    return f"{CONTEXT}clusters: [{{name: c, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "contexts: []",
        "current-context: x\ncontexts: []",
        "{",
        "!!int ''",
        kubeconfig("{server: https://x, certificate-authority-data: '#'}"),
        kubeconfig("{server: https://x, certificate-authority: nowhere}"),
    ],
)
def test_a_kubeconfig_without_a_usable_context(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ApiError, match="current context"):
        ApiAccess.from_kubeconfig(path)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        pytest.param(
            kubeconfig("{server: https://x, insecure-skip-tls-verify: true}"),
            "certificate-authority",
            id="no verification",
        ),
        pytest.param(kubeconfig("{server: http://x}", "{token: t}"), "https", id="a token in the clear"),
        pytest.param(kubeconfig("{server: http://x}", "{tokenFile: t}"), "https", id="a token file"),
        pytest.param(kubeconfig("{server: https://x}", "{exec: {command: c}}"), "tokenFile", id="exec"),
    ],
)
def test_a_kubeconfig_that_would_not_be_safe_or_would_not_let_us_in(
    tmp_path: Path, text: str, advice: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ApiError, match=advice):
        ApiAccess.from_kubeconfig(path)


def test_files_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "my-token").write_text("t\n")
    path = tmp_path / "config"
    path.write_text(kubeconfig("{server: https://x/}", "{tokenFile: my-token}"))
    access = ApiAccess.from_kubeconfig(path)
    assert access.server == "https://x"
    assert access.headers() == {"Authorization": "Bearer t"}
    assert access.tls is not None
    assert access.tls.check_hostname


def test_an_embedded_client_certificate_needs_no_folder_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = (b64encode(each).decode() for each in make_self_signed(["me"]))
    path = tmp_path / "config"
    user = f"{{client-certificate-data: {certificate}, client-key-data: {key}}}"
    path.write_text(kubeconfig("{server: https://x}", user))
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    assert ApiAccess.from_kubeconfig(path).tls is not None
    path.write_text(kubeconfig("{server: https://x}", user.replace(key, certificate)))
    with pytest.raises(ApiError, match="SSLError"):
        ApiAccess.from_kubeconfig(path)
