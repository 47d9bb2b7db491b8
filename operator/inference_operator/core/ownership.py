"""Which pools Headroom runs, which objects are its own, and why a pool cannot work. Pure.

An object is Headroom's when it carries Headroom's label and names the pool, by annotation or, without one, by
its controller reference. The annotation is needed because `kubectl delete --cascade=orphan` and backups strip
ownerReferences.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from inference_api import names
from inference_operator.core import reasons
from inference_operator.core.kinds import DEPLOYMENT, PICKER, POOL, Kind, Object
from inference_operator.core.naming import (
    FIELD_MANAGER,
    SERVICE_NAME_LIMIT,
    pool_of,
    pool_owner,
    selector_labels,
)
from inference_operator.core.observation import Observation
from inference_operator.core.reasons import Finding
from inference_operator.core.settings import TAKE_UP_WAIT

_SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_LABEL_LIMIT: Final = 63
_LABEL_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Stance(Enum):
    """What the operator does with a pool."""

    MANAGED = "managed"
    """Make, heal and remove its children."""
    WAITING = "waiting"
    """Do nothing yet: TAKE_UP_WAIT is not over."""
    LET_GO = "let go"
    """Remove Headroom's other children and leave the Service, which is not Headroom's (any more)."""
    UNWORKABLE = "unworkable"
    """Make only the EndpointPicker, which carries the reason: the pool names no picker that can be run.

    A picker that runs under an earlier name stays as it is.
    """
    HELD = "held"
    """Make only the EndpointPicker: a field of it or of the pool is invalid or not understood.

    Also when EndpointPickers cannot be read. The children that run stay as they are.
    """
    HANDS_OFF = "hands off"
    """Do nothing: the pool is gone, being deleted, not visible, or not to be managed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A stance with its reason."""

    stance: Stance
    finding: Finding
    recheck_after: float | None = None
    """Seconds after which the answer may change without any event."""


def judge(seen: Observation) -> Verdict:
    """Return the verdict of the first rule that applies to the pool."""
    return (
        _not_to_manage(seen)
        or _pool_not_understood(seen)
        or _bad_reference(seen)
        or _name_taken(seen)
        or _foreign_service(seen)
        or _still_waiting(seen)
        or _bad_selector(seen)
        or _settings_unknown(seen)
        or Verdict(Stance.MANAGED, reasons.ACCEPTED.say())
    )


def ours(body: Object, pool_name: str, pool_uid: str) -> bool:
    """Return whether the object was made by Headroom for the pool with that name and uid."""
    metadata = body.get("metadata", {})
    if not _labelled(metadata.get("labels")):
        return False
    if named := (metadata.get("annotations") or {}).get(names.POOL_NAME_ANNOTATION):
        return bool(named == pool_name)
    owner = pool_owner(body)
    return owner is not None and bool(pool_uid) and owner.get("uid") == pool_uid


def _labelled(labels: Mapping[str, str] | None) -> bool:
    return (labels or {}).get(names.MANAGED_BY_LABEL) == names.MANAGED_BY_VALUE


def selector_taker(service: Object) -> str | None:
    """Return the first manager but the operator that owns the Service's selector; None without one."""
    for entry in service.get("metadata", {}).get("managedFields", ()):
        fields = entry.get("fieldsV1", {}).get("f:spec", {})
        manager = entry.get("manager", "")
        if "f:selector" in fields and not manager.startswith(FIELD_MANAGER):
            return str(manager)
    return None


def users_own(picker: Object, pool_name: str, pool_uid: str) -> bool:
    """Return whether the EndpointPicker is a user's: not made by the operator, or applied by a user since.

    Applying a copy of the operator's object does not count: `kubectl apply` of a backup does that. A copy has
    an empty spec and Headroom's label in the applied fields.
    """
    if not ours(picker, pool_name, pool_uid):
        return True
    copied = not picker.get("spec")
    metadata = picker["metadata"]
    text = (metadata.get("annotations") or {}).get(_LAST_APPLIED)
    if text is not None and not (copied and _labelled(_applied_labels(text))):
        return True
    label = f"f:{names.MANAGED_BY_LABEL}"
    return any(
        entry.get("operation") == "Apply"
        and not entry.get("manager", "").startswith(FIELD_MANAGER)
        and not (copied and label in entry.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {}))
        for entry in metadata.get("managedFields", ())
    )


def _applied_labels(text: str) -> Mapping[str, str] | None:
    """Return the labels in kubectl's last-applied annotation; None when there are none."""
    try:
        labels = json.loads(text)["metadata"]["labels"]
    except (ValueError, KeyError, TypeError):
        return None
    return labels if isinstance(labels, Mapping) else None


def invalid_label_key(key: str) -> bool:
    """Return whether no label can have this key."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _LABEL_PREFIX.fullmatch(prefix)):
        return True
    return not (len(name) <= _LABEL_LIMIT and _LABEL_NAME.fullmatch(name))


def _takes_over(seen: Observation) -> bool:
    return seen.managed_annotation == "true"


def _not_to_manage(seen: Observation) -> Verdict | None:
    absent = seen.pool_object is None
    if absent and POOL not in seen.access.served:
        return Verdict(Stance.HANDS_OFF, reasons.KIND_NOT_INSTALLED.say(kind=POOL.kind))
    if absent and POOL in seen.access.blind:
        rights = _rights_on(POOL, seen)
        return Verdict(Stance.HANDS_OFF, reasons.ACCESS_DENIED.say(rights=rights))
    if absent:
        return Verdict(Stance.HANDS_OFF, reasons.POOL_NOT_FOUND.say(pool=seen.pool_name))
    if seen.pool_metadata.get("deletionTimestamp"):
        return Verdict(Stance.HANDS_OFF, reasons.POOL_TERMINATING.say())
    annotation = seen.managed_annotation
    if annotation == "false":
        return Verdict(Stance.HANDS_OFF, reasons.MANAGED_FALSE.say(annotation=names.MANAGED_ANNOTATION))
    if seen.settings.manage == "annotated" and annotation != "true":
        return Verdict(Stance.HANDS_OFF, reasons.NOT_MANAGED.say(annotation=names.MANAGED_ANNOTATION))
    return None


def _pool_not_understood(seen: Observation) -> Verdict | None:
    """Hold the pool: its children were made from an earlier version, which the type accepted."""
    if not seen.pool_fault:
        return None
    finding = reasons.POOL_NOT_UNDERSTOOD.say(fault=seen.pool_fault)
    return _wait_for_picker(seen) or Verdict(Stance.HELD, finding)


def _rights_on(kind: Kind, seen: Observation) -> str:
    return ", ".join(sorted({each.right for each in seen.access.lacking if each.kind is kind}))


def _bad_reference(seen: Observation) -> Verdict | None:
    ref = seen.picker_ref
    finding: Finding | None = None
    if ref is None:
        finding = reasons.REF_MISSING.say()
    elif ref.group or ref.kind != "Service":
        finding = reasons.UNSUPPORTED_REF_KIND.say(kind=ref.kind, group=ref.group)
    elif len(ref.name) > SERVICE_NAME_LIMIT or not _SERVICE_NAME.fullmatch(ref.name):
        finding = reasons.INVALID_PICKER_NAME.say(name=ref.name, limit=SERVICE_NAME_LIMIT)
    if finding is None:
        return None
    return _wait_for_picker(seen) or Verdict(Stance.UNWORKABLE, finding)


def _name_taken(seen: Observation) -> Verdict | None:
    pool = seen.present
    created = pool.metadata.creation_timestamp
    mine = (created, pool.metadata.uid)
    elder = min(
        ((rival.created, rival.uid, rival.name) for rival in seen.rivals),
        default=None,
    )
    if elder is None or created is None or mine < elder[:2]:
        return None
    finding = reasons.PICKER_NAME_TAKEN.say(other=elder[2], name=seen.picker_name)
    return _wait_for_picker(seen) or Verdict(Stance.UNWORKABLE, finding)


def _foreign_service(seen: Observation) -> Verdict | None:
    service = seen.service
    if service is None:
        return None
    name = seen.picker_name
    if service.get("spec", {}).get("type") == "ExternalName":
        return Verdict(Stance.LET_GO, reasons.SERVICE_IS_EXTERNAL_NAME.say(service=name))
    if _takes_over(seen):
        return None
    if not ours(service, seen.pool_name, seen.pool_uid):
        return Verdict(Stance.LET_GO, _whose(service, name))
    # An unchanged selector is not taken: restoring a backup or applying a copy makes that client an owner,
    # too.
    unchanged = service.get("spec", {}).get("selector") == selector_labels(name)
    if not unchanged and (manager := selector_taker(service)) is not None:
        finding = reasons.SELECTOR_TAKEN.say(
            service=name, manager=manager, annotation=names.MANAGED_ANNOTATION
        )
        return Verdict(Stance.LET_GO, finding)
    return None


def _whose(service: Object, name: str) -> Finding:
    other = pool_of(service)
    if other and ours(service, other, ""):
        return reasons.SERVICE_OF_ANOTHER_POOL.say(service=name, other=other)
    return reasons.SERVICE_NOT_OURS.say(service=name, annotation=names.MANAGED_ANNOTATION)


def _still_waiting(seen: Observation) -> Verdict | None:
    if seen.service is not None or seen.child(DEPLOYMENT, seen.picker_name) is not None:
        return None
    return _wait(seen, seen.absent_for)


def _wait_for_picker(seen: Observation) -> Verdict | None:
    """Wait while there is no EndpointPicker: one would have to be made to carry the reason."""
    return _wait(seen, seen.known_for) if seen.picker_object is None else None


def _wait(seen: Observation, passed: float) -> Verdict | None:
    """Return WAITING until TAKE_UP_WAIT is over: a user may be about to create an object of that name."""
    left = TAKE_UP_WAIT - passed
    if left <= 0 or _takes_over(seen):
        return None
    finding = reasons.WAITING.say(service=seen.picker_name or "of a picker", seconds=TAKE_UP_WAIT)
    return Verdict(Stance.WAITING, finding, recheck_after=left)


def _bad_selector(seen: Observation) -> Verdict | None:
    for key in seen.present.spec.selector.match_labels:
        if invalid_label_key(key):
            return Verdict(Stance.HELD, reasons.INVALID_SELECTOR.say(key=key))
    return None


def _settings_unknown(seen: Observation) -> Verdict | None:
    """Hold the pool while its EndpointPicker cannot be read: defaults would replace the user's settings."""
    if seen.picker_fault:
        return Verdict(Stance.HELD, reasons.PICKER_NOT_UNDERSTOOD.say(fault=seen.picker_fault))
    if PICKER not in seen.access.blind:
        return None
    rights = _rights_on(PICKER, seen) or f"read {PICKER.resource}"
    return Verdict(Stance.HELD, reasons.ACCESS_DENIED.say(rights=rights))
