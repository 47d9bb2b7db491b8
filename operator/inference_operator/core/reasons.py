"""The one table of reasons: each is a CamelCase word and a sentence that says what to do.

Pure data. `Reason.say` fills the facts into the sentence.
"""

from dataclasses import dataclass
from typing import Final

#: The most characters of a message. The API server refuses a whole status with a message of more than 32,768
#: (metav1.Condition), and the text of a refused write, which messages quote, may be longer.
MESSAGE_LIMIT: Final = 4096


@dataclass(frozen=True, slots=True)
class Reason:
    """A CamelCase word for programs and a sentence for people."""

    word: str
    sentence: str

    def say(self, **facts: object) -> "Finding":
        """Return the reason with its facts filled in, cut to `MESSAGE_LIMIT`."""
        message = self.sentence.format(**facts)
        return Finding(
            self.word, message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """Reason and message of a condition or an event."""

    reason: str
    message: str


# Accepted
ACCEPTED: Final = Reason("Accepted", "Headroom runs the picker of this pool.")
PAUSED: Final = Reason(
    "Paused", "spec.paused is true: nothing is changed or healed until it is set to false or removed."
)
WAITING: Final = Reason(
    "WaitingForTakeUp",
    "No Service {service} yet: it has to be absent for {seconds:g} seconds before the pool is taken up.",
)
POOL_NOT_FOUND: Final = Reason(
    "PoolNotFound",
    "There is no InferencePool {pool} in this namespace: create it, or delete this EndpointPicker.",
)
POOL_TERMINATING: Final = Reason("PoolTerminating", "The InferencePool is being deleted.")
NOT_MANAGED: Final = Reason(
    "NotManaged", 'Set the annotation {annotation}: "true" on the pool to let Headroom manage it.'
)
MANAGED_FALSE: Final = Reason(
    "NotManaged",
    'The pool has the annotation {annotation}: "false": what runs is left as it is and no longer healed. '
    'Remove the annotation, or set it to "true", to let Headroom manage the pool.',
)
POOL_NOT_UNDERSTOOD: Final = Reason(
    "InvalidPool",
    "The pool has a field that this version of Headroom does not understand ({fault}): correct it. What runs "
    "is left as it is.",
)
PICKER_NOT_UNDERSTOOD: Final = Reason(
    "InvalidEndpointPicker",
    "This EndpointPicker has a field that this version of Headroom does not understand ({fault}): correct "
    "it, or apply the operator's version of the CRD. What runs is left as it is.",
)
REF_MISSING: Final = Reason(
    "EndpointPickerRefMissing",
    "The pool names no endpoint picker: set spec.endpointPickerRef to the name and port of a Service "
    "that Headroom shall make. What runs is left as it is.",
)
UNSUPPORTED_REF_KIND: Final = Reason(
    "UnsupportedRefKind",
    "spec.endpointPickerRef is of kind {kind} in group {group!r}: use kind Service of the core group. "
    "What runs is left as it is.",
)
INVALID_PICKER_NAME: Final = Reason(
    "InvalidPickerName",
    "spec.endpointPickerRef.name {name!r} cannot name a Service: use at most {limit} lower-case letters, "
    "digits and dashes, beginning with a letter and not ending with a dash. What runs is left as it is.",
)
PICKER_NAME_TAKEN: Final = Reason(
    "PickerNameTaken",
    "The older pool {other} already names the picker {name}: give this pool a spec.endpointPickerRef.name "
    "of its own. What runs is left as it is.",
)
SERVICE_NOT_OURS: Final = Reason(
    "ServiceNotOurs",
    "The Service {service} was not made by Headroom and is left alone: delete it to let Headroom run the "
    'picker, or set the annotation {annotation}: "true" on the pool to take it over.',
)
SERVICE_OF_ANOTHER_POOL: Final = Reason(
    "ServiceNotOurs",
    "The Service {service} was made for the pool {other}: give this pool a spec.endpointPickerRef.name of "
    "its own, or delete the Service if that pool is gone.",
)
SELECTOR_TAKEN: Final = Reason(
    "ServiceNotOurs",
    "The selector of the Service {service} was taken by {manager}; Headroom let go of it: delete the Service "
    'to let Headroom run the picker, or set the annotation {annotation}: "true" on the pool.',
)
SERVICE_IS_EXTERNAL_NAME: Final = Reason(
    "ServiceIsExternalName",
    "The Service {service} is of type ExternalName, which no gateway may follow: delete it, or name another "
    "Service in spec.endpointPickerRef.",
)
INVALID_SELECTOR: Final = Reason(
    "InvalidSelector",
    "spec.selector.matchLabels has the key {key!r}, which no label can have: correct the key.",
)

# ResolvedRefs
RESOLVED_REFS: Final = Reason("ResolvedRefs", "All that the picker needs is there.")
NO_OBJECTIVES: Final = Reason(
    "ResolvedRefs",
    "InferenceObjective is not installed, so every request has priority 0: install its CRD for priorities.",
)
IGNORED_OBJECTIVES: Final = Reason(
    "ResolvedRefs",
    "All that the picker needs is there. Ignored: {count} InferenceObjectives of the group {group} that name "
    "this pool; make them anew in the group {used}.",
)
OPTIONAL_NOT_INSTALLED: Final = Reason(
    "ResolvedRefs",
    "All that the picker needs is there. Left out: {children}; to have them, install the CRDs of {kinds}.",
)
OBJECTIVES_NOT_FOUND: Final = Reason(
    "ObjectiveNotFound",
    "spec.flowControl names InferenceObjectives that this pool does not have ({names}), so that their "
    "requests have priority 0: create them with a poolRef to this pool, or correct spec.flowControl.",
)
ACCESS_DENIED: Final = Reason(
    "AccessDenied", "The operator may not {rights}: grant this to the ClusterRole headroom-operator."
)
KIND_NOT_INSTALLED: Final = Reason("KindNotInstalled", "{kind} is not installed: apply its CRD.")
APPLY_FAILED: Final = Reason("ApplyFailed", "{kind} {name} could not be applied: {message}")
UNCHANGEABLE: Final = Reason(
    "ApplyFailed",
    "{kind} {name} has a field that cannot be changed: delete it, and Headroom makes it anew. The API server "
    "says: {message}",
)
FIELD_CONFLICT: Final = Reason(
    "FieldConflict",
    "{kind} {name} has fields that another field manager owns; Headroom does not force them: {message}",
)
NAME_TAKEN: Final = Reason(
    "NameTaken",
    "There is a {kind} {name} that Headroom did not make: delete it, or give the pool's "
    "spec.endpointPickerRef another name.",
)
NAME_IN_USE: Final = Reason(
    "NameTaken",
    "The {kind} {name} belongs to the pool {other}: give one of the two pools another "
    "spec.endpointPickerRef.name.",
)
NAMESPACE_TERMINATING: Final = Reason(
    "NamespaceTerminating", "The namespace is being deleted: nothing is made in it any more."
)
CHANGED_BACK: Final = Reason(
    "ChangedBack",
    "{kind} {name} does not keep what was applied ({path}): see which admission webhook changes it.",
)

# PickerReady and ProxyReady
PICKER_READY: Final = Reason("PickerReady", "{ready} of {wanted} picker pods ready.")
PROXY_READY: Final = Reason("ProxyReady", "{ready} of {wanted} proxy pods ready.")
INVALID_PROXY_NAME: Final = Reason(
    "InvalidProxyName",
    "The proxy would be called {name}, and a Service name has at most {limit} characters: shorten the pool's "
    "spec.endpointPickerRef.name, or set spec.proxy.mode: None.",
)
NOT_CREATED: Final = Reason("NotCreated", "The Deployment {name} does not exist yet.")
PROGRESSING: Final = Reason("Progressing", "The Deployment {name} is being rolled out.")
PODS_NOT_READY: Final = Reason(
    "PodsNotReady",
    "{ready} of {wanted} pods of the Deployment {name} ready: see `kubectl describe pod -l app={name}`.",
)
CRASH_LOOPING: Final = Reason(
    "CrashLooping",
    "Container {container} of pod {pod} keeps failing ({detail}): see `kubectl logs -p {pod} {container}`.",
)
OUT_OF_MEMORY: Final = Reason(
    "OutOfMemory",
    "Container {container} of pod {pod} was killed at its memory limit{limit}: raise "
    "spec{field}.resources.limits.memory of the EndpointPicker.",
)
IMAGE_NOT_PULLED: Final = Reason(
    "ImageNotPulled", "The image of container {container} of pod {pod} cannot be pulled: {detail}"
)
UNSCHEDULABLE: Final = Reason("Unschedulable", "Pod {pod} finds no node: {detail}")
PODS_REFUSED: Final = Reason("PodsRefused", "The pods of the Deployment {name} cannot be made: {detail}")

# EndpointsReady
ENDPOINTS_READY: Final = Reason("EndpointsReady", "{ready} of {total} endpoints ready.")
NO_ENDPOINTS: Final = Reason(
    "NoEndpoints", "No pod of the namespace carries the labels {selector}: start model servers that do."
)
ENDPOINTS_NOT_READY: Final = Reason(
    "EndpointsNotReady", "None of {total} endpoints is ready: see `kubectl get pods -l {selector}`."
)

# EndpointsReachable
ENDPOINTS_REACHABLE: Final = Reason("EndpointsReachable", "The picker reaches the endpoints on all ports.")
SOME_UNREACHABLE: Final = Reason("SomeUnreachable", "The picker does not reach all endpoints: {ports}.")
WITHOUT_METRICS: Final = Reason(
    "WithoutMetrics",
    "The picker reaches the endpoints but picks some without knowing their load: {ports}. See which model "
    "server runs there, and the picker's metrics-data-source.",
)
SIGNAL_MISSING: Final = Reason(
    "SignalMissing",
    "The picker finds on no endpoint's metrics page: {signals}. See which model server runs there, and the "
    "picker's core-metrics-extractor.",
)
PORT_UNREACHABLE: Final = Reason(
    "PortUnreachable",
    "{ports}. Start the model servers on that port, or correct spec.targetPorts of the pool.",
)
CONTACTS_UNKNOWN: Final = Reason(
    "NotAsked", "No picker has said whether it reaches the endpoints: one has to be ready first."
)
CONTACTS_NOT_HEARD: Final = Reason(
    "NotHeard",
    "The picker has no results for the pool's target ports: no endpoint is ready there, none has been "
    "scraped often enough yet, or the picker does not scrape metrics.",
)

# PickerReachable
PICKER_REACHABLE: Final = Reason(
    "PickerReachable", "No gateway has failed to connect to the picker in the last minutes."
)
GATEWAY_WITHOUT_TLS: Final = Reason(
    "GatewayWithoutTLS",
    "A gateway speaks HTTP/2 without TLS to port {port} of the picker, which has TLS, and so gets no answer: "
    "have it use TLS; with Istio, apply the DestinationRule of docs/install.md.",
)
GATEWAY_WITHOUT_HTTP2: Final = Reason(
    "GatewayWithoutALPN",
    "A gateway connects to port {port} of the picker with TLS, but without offering HTTP/2 (ALPN h2), and so "
    "gets no answer: have it speak HTTP/2 to the picker's Service.",
)
CERTIFICATE_NOT_TRUSTED: Final = Reason(
    "CertificateNotTrusted",
    "A gateway does not accept the certificate at port {port} of the picker, which is self-signed: have it "
    "skip verification; with Istio, insecureSkipVerify in the DestinationRule of docs/install.md.",
)
HANDSHAKES_UNKNOWN: Final = Reason(
    "NotAsked", "No picker has said whether gateways connect to it: one has to be ready first."
)

# ConfigAccepted
CONFIG_ACCEPTED: Final = Reason("ConfigAccepted", "The picker uses the configuration that it was given.")
CONFIG_REFUSED: Final = Reason(
    "ConfigRefused",
    "The picker refuses spec.config and serves with {instead}: {error}. Correct spec.config of the "
    "EndpointPicker.",
)
DEFAULT_REFUSED: Final = Reason(
    "ConfigRefused",
    "The picker refuses the default configuration and serves with {instead}: {error}. Its image is not of "
    "the operator's version: correct spec.image, or the operator's --epp-image.",
)
PRIORITIES_REFUSED: Final = Reason(
    "ConfigRefused",
    "The picker refuses the table of priorities and serves with {instead}: {error}. Its image is not of the "
    "operator's version: correct spec.image, or the operator's --epp-image.",
)
NOT_ASKED: Final = Reason(
    "NotAsked", "No picker pod has been asked about its configuration yet: one has to be ready first."
)
NOT_ANSWERED: Final = Reason(
    "NotAnswered",
    "Whether the picker uses its configuration is not known, {problem}: let the operator reach port {port} "
    "of the picker's pods (NetworkPolicy), and see their logs for `configuration refused`.",
)

# PredictorReady
TRAINED: Final = Reason("Trained", "Requests that ask for it are routed by predicted latency: {about}.")
WARMING_UP: Final = Reason(
    "WarmingUp",
    "There is no model yet: {sent} samples were sent to the trainer, and the first model comes at about "
    "{least} requests that were served. Until then the heuristic profile picks.",
)
DEGRADED: Final = Reason(
    "Degraded",
    "The predictions do not hold (median error: {error}), and the heuristic profile picks until the trainer "
    "has learned anew. After a change of models or servers this passes by itself; else `headroom predictor "
    "flush`.",
)
NO_GAIN: Final = Reason(
    "NoGain",
    "Prediction does worse than the heuristic profile ({gain}), which picks all but "
    "spec.latencyPredictor.holdout percent of the requests until that changes.",
)
PREDICTOR_UNREACHABLE: Final = Reason(
    "Unreachable",
    "None of the picker's {servers} prediction servers answers, and the heuristic profile picks: see the "
    "logs of the containers predictor-N of the picker's pods.",
)
PREDICTION_NOT_CONFIGURED: Final = Reason(
    "NotConfigured",
    "spec.latencyPredictor.enabled is true, but spec.config has no predicted-latency-producer: add it and "
    "the plugins that act on predictions, or leave spec.config out.",
)
PREDICTION_UNKNOWN: Final = Reason(
    "NotAsked",
    "No picker has reported on prediction: one has to be ready and to use the configuration with "
    "predicted-latency-producer first.",
)

# PredictionSupported
PREDICTION_SUPPORTED: Final = Reason(
    "Supported", "The pool's requests and servers are of one kind, and the prediction servers suffice."
)
MIXED_RESPONSES: Final = Reason(
    "MixedResponses",
    "The pool serves both streams and other responses, whose times do not compare, so that predictions are "
    "less exact: give each kind a pool of its own.",
)
MIXED_ENGINES: Final = Reason(
    "MixedEngines",
    "The pool has model servers of several kinds, and no class label tells apart: {kinds}. Set "
    "endpointClassLabel of predicted-latency-producer to a pod label that does.",
)
TOO_FEW_SERVERS: Final = Reason(
    "TooFewServers",
    "{requests} requests a second with {rows} candidates are too much for {servers} prediction servers, so "
    "that some are picked without prediction: set spec.latencyPredictor.predictionServerCount to {needed}.",
)

# Ready, and NotJudged for conditions that only Accepted explains
READY: Final = Reason("Ready", "The picker answers and the pool has ready endpoints.")
NOT_JUDGED: Final = Reason(
    "NotJudged", "See Accepted: not judged while Headroom does not manage the pool's picker."
)

# Objectives
OBJECTIVE_ACCEPTED: Final = Reason(
    "Accepted", "The picker of pool {pool} gives these requests priority {priority}."
)
OBJECTIVE_POOL_NOT_FOUND: Final = Reason(
    "PoolNotFound", "There is no InferencePool {pool} in this namespace: create it, or correct spec.poolRef."
)
OBJECTIVE_POOL_NOT_MANAGED: Final = Reason(
    "PoolNotManaged", "Headroom does not run the picker of pool {pool} ({reason})."
)

# Model rewrites
REWRITE_ACCEPTED: Final = Reason("Accepted", "The picker of pool {pool} uses these rules.")
REWRITE_HIDDEN: Final = Reason(
    "Overlaps", "The picker of pool {pool} uses these rules, but an older rewrite comes first for: {models}."
)
REWRITE_PARTLY_WEIGHTED: Final = Reason(
    "PartlyWeighted",
    "The picker of pool {pool} uses these rules. A rule has targets with a weight and targets without: those "
    "without get no requests. Give every target of the rule a weight, or none.",
)

# The standalone proxy's entry in a pool's status.parents
PROXY_ACCEPTS: Final = Reason("Accepted", "Headroom's standalone proxy routes to this pool.")
PROXY_RESOLVES: Final = Reason("ResolvedRefs", "The proxy asks the picker Service {service}.")

# Events only
CHILD_HEALED: Final = Reason("Healed", "{kind} {name} was {action}.")
LET_GO: Final = Reason("LetGo", "Removed {objects}, which Headroom had made: {why}")
REMOVED: Final = Reason("Removed", "Removed {objects}, which the pool no longer uses.")

# Several installations of the operator: events about its own Lease, log lines and /readyz
STANDS_ASIDE: Final = Reason(
    "StandsAside",
    "The older operator {other} works in {namespaces}, too: this one writes nothing there. Give the two "
    "disjoint --namespaces, or remove one of them.",
)
YOUNGER_STANDS_ASIDE: Final = Reason(
    "YoungerStandsAside",
    "The younger operator {other} is to work in {namespaces}, too, and writes nothing there while this one "
    "does. Give the two disjoint --namespaces, or remove one of them.",
)
NO_LONGER_ASIDE: Final = Reason(
    "TookOver", "The older operator {other} no longer works in {namespaces}: this one does."
)
LEASE_NOT_WRITTEN: Final = Reason(
    "LeaseNotWritten",
    "The operator's Lease cannot be written, so that other operators do not see this one, and it leaves "
    "all namespaces in common to them: apply the present RBAC of manifests/base or of the chart. The API "
    "server says: {message}",
)
LEASES_NOT_READ: Final = Reason(
    "LeasesNotRead",
    "The Leases of other operators cannot be read, so that an overlap is not noticed: apply the present RBAC "
    "of manifests/base or of the chart. The API server says: {message}",
)
