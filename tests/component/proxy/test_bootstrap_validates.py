"""Envoy itself says whether a bootstrap is one."""

import subprocess
from itertools import product

import pytest

from inference_operator.core.desired.proxy_bootstrap import ProxySettings, proxy_args
from local_cluster.images import DEFAULT_IMAGES


@pytest.mark.parametrize(("fail_open", "http2"), list(product((True, False), repeat=2)))
def test_envoy_accepts_every_kind_of_bootstrap_without_a_warning(fail_open: bool, http2: bool) -> None:
    settings = ProxySettings(
        pool_namespace="team-a",
        pool_name="vllm-qwen",
        picker_host="vllm-qwen-epp.team-a.svc",
        fail_open=fail_open,
        upstream_http2=http2,
        address="127.0.0.1",
    )
    envoy = DEFAULT_IMAGES["envoyproxy/envoy"].argv[0]

    said = subprocess.run(
        [envoy, "--mode", "validate", *proxy_args(settings)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert said.returncode == 0, said.stderr
    assert said.stderr.strip() == ""
