"""What a configuration of the llm-d router may have and this version does not offer, each with the reason.

A configuration that has one is answered with the reason, and docs/plugins.md lists the types.
"""

from collections.abc import Mapping
from typing import Final

_EVICTION: Final = "as a key: `flowControl.enableEviction`, which always goes by it"
_CLUSTERS: Final = "no: endpoints are servers here, not clusters"

#: Type -> why it is not offered: "not yet: ..." or "no: ...".
NOT_OFFERED: Final[Mapping[str, str]] = {
    "p2p-source-producer": "not yet: no server reads its header, which names a peer to fetch blocks from",
    "burst-prefix-cache-producer": "not yet: speculativeIndexing of precise-prefix-cache-producer keeps "
    "equal prompts together",
    **dict.fromkeys(("priority-then-time-eviction-order-policy", "sheddable-eviction-filter"), _EVICTION),
    **dict.fromkeys(
        ("models-data-source", "models-data-extractor"), "no: no plugin reads the models that it lists"
    ),
    **dict.fromkeys(
        (
            "multicluster-queue-scorer",
            "multicluster-kv-cache-utilization-scorer",
            "multicluster-prefix-cache-scorer",
            "multicluster-session-affinity-filter",
            "multicluster-approx-prefix-cache-producer",
            "multicluster-metrics-data-source",
            "multicluster-metrics-extractor",
        ),
        _CLUSTERS,
    ),
    "k8s-notification-source": "no: the picker follows no objects beyond its own",
    "file-discovery": "as a flag: `--endpoints-file`",
}

_SYNC: Final = "no: nothing in the field implements it"

#: Path of a key, without indices -> why it is not offered. Keys below it share its reason.
KEYS_NOT_OFFERED: Final[Mapping[str, str]] = {
    "dataLayer.discovery": "as a flag: `--endpoints-file`",
    "dataLayer.peerDiscovery": _SYNC,
    "dataLayer.crossReplicaSyncerPluginRef": _SYNC,
    "dataLayer.crossReplicaSyncInterval": _SYNC,
}

#: Feature gate -> why its other value is not offered.
GATES_NOT_OFFERED: Final[Mapping[str, str]] = {
    "haPopulateNonLeaderDatastore": "no: every replica has the endpoints",
}


def sentence(reason: str) -> str:
    """Return the reason as the end of a sentence about what is not offered."""
    text = reason.removeprefix("not yet: ").removeprefix("no: ")
    return f"it {text}" if text.startswith("comes") else text
