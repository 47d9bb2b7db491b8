"""Upstream's CRDs are created where missing and left alone where not; then the quickstart is applied."""

from typing import Any

from manifest_files import BASE, GIE_CRDS, QUICKSTART

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POOL_CRD = "inferencepools.inference.networking.k8s.io"


def test_creating_refuses_to_replace_what_another_party_installed(cluster: Any) -> None:
    theirs = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": POOL_CRD,
            "annotations": {"api-approved.kubernetes.io": "https://example.com/theirs"},
        },
        "spec": {
            "group": "inference.networking.k8s.io",
            "names": {"kind": "InferencePool", "plural": "inferencepools"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                    },
                }
            ],
        },
    }
    assert cluster.api.create(CRDS, theirs).code == 201

    created = cluster.kubectl("create", "-k", str(GIE_CRDS))

    assert created.returncode == 1
    assert f'"{POOL_CRD}" already exists' in created.stderr
    assert created.stdout.count(" created\n") == 2
    held = cluster.api.get(f"{CRDS}/{POOL_CRD}").body
    assert held["metadata"]["annotations"] == theirs["metadata"]["annotations"]  # type: ignore[index]
    assert held["metadata"]["generation"] == 1
    assert cluster.api.request("DELETE", f"{CRDS}/{POOL_CRD}").code == 200
    gone = cluster.kubectl("wait", "--for=delete", f"crd/{POOL_CRD}", "--timeout=60s")
    assert gone.returncode == 0, gone.stderr


def test_the_quickstart_is_applied_to_what_the_manifests_install(cluster: Any) -> None:
    cluster.kubectl("create", "-k", str(GIE_CRDS))
    assert cluster.kubectl("apply", "-k", str(BASE)).returncode == 0
    waited = cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    assert waited.returncode == 0, waited.stderr

    applied = cluster.kubectl("apply", "-f", str(QUICKSTART))

    assert applied.returncode == 0, applied.stderr
    again = cluster.kubectl("apply", "-f", str(QUICKSTART))
    assert again.stdout.count(" unchanged\n") == applied.stdout.count(" created\n") == 5
