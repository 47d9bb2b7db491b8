"""Names that more than one component must agree on: groups, labels, annotations, ports, keys.

A name that only one component uses lives in that component.
"""

from typing import Final

POOL_GROUP: Final = "inference.networking.k8s.io"
POOL_VERSION: Final = "v1"
POOL_KIND: Final = "InferencePool"
POOL_PLURAL: Final = "inferencepools"

#: Groups that serve InferenceObjective and InferenceModelRewrite, preferred first.
OBJECTIVE_GROUPS: Final = ("llm-d.ai", "inference.networking.x-k8s.io")
OBJECTIVE_VERSION: Final = "v1alpha2"
OBJECTIVE_KIND: Final = "InferenceObjective"
OBJECTIVE_PLURAL: Final = "inferenceobjectives"
REWRITE_KIND: Final = "InferenceModelRewrite"
REWRITE_PLURAL: Final = "inferencemodelrewrites"

PICKER_GROUP: Final = "headroom.dev"
PICKER_VERSION: Final = "v1alpha1"
PICKER_KIND: Final = "EndpointPicker"
PICKER_PLURAL: Final = "endpointpickers"

#: Marks an object as made by Headroom. An object with it and the pool uid annotation is a child of that pool.
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE: Final = "headroom"
#: First 16 hex digits of SHA-256 of the pool's name: a pool name may be too long for a label value.
POOL_HASH_LABEL: Final = "headroom.dev/pool-hash"
POOL_NAME_ANNOTATION: Final = "headroom.dev/pool-name"
POOL_UID_ANNOTATION: Final = "headroom.dev/pool-uid"
#: On a pool: "false" keeps the operator from changing anything, "true" makes it take over without waiting.
MANAGED_ANNOTATION: Final = "headroom.dev/managed"
#: The operator's verdict on a pool in one word, shown by `kubectl get inferencepools`.
PICKER_ANNOTATION: Final = "headroom.dev/picker"

#: On a pod: comma-separated target ports that it serves; absent means all of the pool's.
ACTIVE_PORTS_ANNOTATIONS: Final = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")

#: On a pod: the stages that its model server works for, in a pool that serves them on different servers.
ROLE_LABEL: Final = "llm-d.ai/role"

EXT_PROC_PORT: Final = 9002
HEALTH_PORT: Final = 9003
METRICS_PORT: Final = 9090
PROXY_PORT: Final = 8081

#: gRPC health service name that probes and single-replica manifests ask for.
HEALTH_SERVICE: Final = "inference-extension"
EXT_PROC_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"

#: Keys of the two ConfigMaps that a picker reads, and where its pod mounts them.
CONFIG_KEY: Final = "config.yaml"
CONFIG_DIR: Final = "/etc/headroom/config"
PRIORITIES_KEY: Final = "table.json"
PRIORITIES_DIR: Final = "/etc/headroom/priorities"

#: Cluster name under which a picker serves its pool's endpoints over EDS.
EDS_CLUSTER: Final = "pool"

#: Keys of the endpoint picker protocol: request header, and key in dynamic metadata of the namespaces below.
DESTINATION_KEY: Final = "x-gateway-destination-endpoint"
DESTINATION_SERVED_KEY: Final = "x-gateway-destination-endpoint-served"
DESTINATION_SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"

#: Request headers: the objective and its older name (the first wins when both are sent), the id of a request.
OBJECTIVE_HEADER: Final = "x-llm-d-inference-objective"
OLD_OBJECTIVE_HEADER: Final = "x-gateway-inference-objective"
REQUEST_ID_HEADER: Final = "x-request-id"

#: Where the standalone proxy answers its readiness probe and metrics scrapes, beside PROXY_PORT.
PROXY_STATUS_PORT: Final = 8082
PROXY_READY_PATH: Final = "/ready"
PROXY_METRICS_PATH: Final = "/stats/prometheus"
