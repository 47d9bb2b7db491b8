"""What the containers of all child Deployments have in common. Pure."""

from inference_operator.core.kinds import Object


def pod_security() -> Object:
    """Return the pod's securityContext, as the restricted Pod Security Standard requires."""
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> Object:
    """Return a container's securityContext, as the restricted Pod Security Standard requires."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def field_env(name: str, path: str) -> Object:
    """Return an environment variable that the kubelet fills from the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
