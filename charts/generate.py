"""Writes the Helm chart's templates from manifests/base, so that both ways to install hold the same objects.

    python charts/generate.py            write
    python charts/generate.py --check    exit 1 if a file differs

Each object of the base is dumped as YAML with placeholders at the places that `values.yaml` sets; then each
placeholder becomes a template expression. A place that the base does not have raises KeyError.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

_ROOT: Final = Path(__file__).parents[1]
_BASE: Final = _ROOT / "manifests" / "base"
_GIE: Final = _ROOT / "manifests" / "gie-crds"
_CHART: Final = _ROOT / "charts" / "headroom"
_HEAD: Final = "{{- /* Generated from manifests/base by `make chart`. */ -}}\n"

_NAMESPACE: Final = "{{ .Release.Namespace }}"
_OPERATOR: Final = '{{ include "headroom.operatorName" . }}'
_ACCOUNT: Final = '{{ include "headroom.serviceAccountName" . }}'
_PICKER_ROLE: Final = '{{ include "headroom.pickerRoleName" . }}'
_LABELS: Final = '{{- include "headroom.labels" . | nindent %d }}'
_INSTANCE: Final = "{{ .Release.Name }}"

Object = dict[str, Any]


class Template:
    """One object of the base on its way to a template."""

    def __init__(self, body: Object) -> None:
        self.body = body
        self._expressions: list[str] = []

    def set(self, path: str, expression: str) -> None:
        """Put an expression at a dotted path that the object has; a number is an index."""
        parent, key = self._place(path)
        if isinstance(parent, dict) and key not in parent:
            raise KeyError(path)
        parent[key] = self._placeholder(expression)

    def lines(self, path: str, text: str) -> None:
        """Append lines of template to the mapping or list at a dotted path, at its indentation."""
        parent, key = self._place(path)
        place = parent[key]
        if isinstance(place, dict):
            place[self._placeholder(text)] = None
        else:
            place.append(self._placeholder(text))

    def dump(self) -> str:
        """Return the template's text."""
        text = yaml.safe_dump(self.body, sort_keys=False, width=1000)
        for number, expression in enumerate(self._expressions):
            text = _filled(text, f"@@{number}@@", expression)
        return text

    def _placeholder(self, expression: str) -> str:
        self._expressions.append(expression)
        return f"@@{len(self._expressions) - 1}@@"

    def _place(self, path: str) -> tuple[Any, Any]:
        *parents, last = [int(step) if step.isdigit() else step for step in path.split("/")]
        place: Any = self.body
        for step in parents:
            place = place[step]
        return place, last


def _filled(text: str, placeholder: str, expression: str) -> str:
    """Return the YAML text with an expression where a placeholder stands: a value, a key, or an item.

    The dumper quotes placeholders. A key, and an item whose expression is an action, become whole lines.
    """
    lines = re.compile(rf"^( *)(?:'{placeholder}': null|- '{placeholder}')$", re.MULTILINE)
    if (found := lines.search(text)) and (found[0].endswith("null") or expression.startswith("{{-")):
        block = "\n".join(found[1] + line for line in expression.split("\n"))
        return text[: found.start()] + block + text[found.end() :]
    return text.replace(f"'{placeholder}'", expression)


def _optional(field: str, value: str, indent: int) -> str:
    """Return lines that set a field only where the value is given."""
    return (
        f"{{{{- with .Values.{value} }}}}\n{field}:\n  {{{{- toYaml . | nindent {indent} }}}}\n{{{{- end }}}}"
    )


def _metadata(template: Template, name: str, *, namespaced: bool) -> None:
    template.set("metadata/name", name)
    if namespaced:
        template.set("metadata/namespace", _NAMESPACE)
    template.lines("metadata/labels", _LABELS % 4)


def _service_account(template: Template) -> None:
    _metadata(template, _ACCOUNT, namespaced=True)
    template.lines("metadata", _optional("annotations", "serviceAccount.annotations", 4))


def _cluster_role(template: Template) -> None:
    _metadata(template, _OPERATOR, namespaced=False)
    (bind,) = (at for at, rule in enumerate(template.body["rules"]) if "bind" in rule["verbs"])
    template.set(f"rules/{bind}/resourceNames/0", _PICKER_ROLE)


def _cluster_role_binding(template: Template) -> None:
    _metadata(template, _OPERATOR, namespaced=False)
    template.set("roleRef/name", _OPERATOR)
    template.set("subjects/0/name", _ACCOUNT)
    template.set("subjects/0/namespace", _NAMESPACE)


def _role(template: Template) -> None:
    _metadata(template, _OPERATOR, namespaced=True)
    (named,) = (at for at, rule in enumerate(template.body["rules"]) if "resourceNames" in rule)
    template.set(f"rules/{named}/resourceNames/0", _ACCOUNT)


def _role_binding(template: Template) -> None:
    _metadata(template, _OPERATOR, namespaced=True)
    template.set("roleRef/name", _OPERATOR)
    template.set("subjects/0/name", _ACCOUNT)
    template.set("subjects/0/namespace", _NAMESPACE)


def _picker_role(template: Template) -> None:
    _metadata(template, _PICKER_ROLE, namespaced=False)


def _deployment(template: Template) -> None:
    _metadata(template, _OPERATOR, namespaced=True)
    instance = f"app.kubernetes.io/instance: {_INSTANCE}"
    template.lines("spec/selector/matchLabels", instance)
    template.lines("spec/template/metadata/labels", instance)
    template.lines(
        "spec/template/metadata/labels",
        "{{- with .Values.podLabels }}\n{{- toYaml . | nindent 8 }}\n{{- end }}",
    )
    template.lines("spec/template/metadata", _optional("annotations", "podAnnotations", 8))
    template.set("spec/template/spec/serviceAccountName", _ACCOUNT)
    container = "spec/template/spec/containers/0"
    template.set(
        f"{container}/image", '{{ include "headroom.image" (list . .Values.image "headroom-operator") }}'
    )
    template.lines(container, "{{- with .Values.image.pullPolicy }}\nimagePullPolicy: {{ . }}\n{{- end }}")
    arguments = template.body["spec"]["template"]["spec"]["containers"][0]["args"]
    template.set(f"{container}/args/{arguments.index('--manage=all')}", "--manage={{ .Values.manage }}")
    template.lines(f"{container}/args", _ARGUMENTS)
    for at, variable in enumerate(template.body["spec"]["template"]["spec"]["containers"][0]["env"]):
        if (expression := _VARIABLES.get(variable["name"])) is not None:
            template.set(f"{container}/env/{at}/value", expression)
    template.set(f"{container}/resources", "{{- toYaml .Values.resources | nindent 12 }}")
    for value in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity"):
        template.lines("spec/template/spec", _optional(value, value, 8))
    template.lines(
        "spec/template/spec",
        "{{- with .Values.priorityClassName }}\npriorityClassName: {{ . }}\n{{- end }}",
    )


_ARGUMENTS: Final = """\
{{- with .Values.namespaces }}
- --namespaces={{ join "," . }}
{{- end }}
{{- with .Values.resyncInterval }}
- --resync-interval={{ . }}
{{- end }}
{{- with .Values.workers }}
- --workers={{ . }}
{{- end }}
{{- with .Values.logLevel }}
- --log-level={{ . }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}"""

_VARIABLES: Final[Mapping[str, str]] = {
    "EPP_IMAGE": '{{ include "headroom.image" (list . .Values.epp.image "headroom-epp") }}',
    "PROXY_IMAGE": "{{ .Values.proxy.image }}",
    "PREDICTOR_IMAGE": '{{ include "headroom.image" (list . .Values.predictor.image "headroom-predictor") }}',
    "PICKER_CLUSTER_ROLE": _PICKER_ROLE,
}

_KINDS: Final[Mapping[tuple[str, str], Callable[[Template], None]]] = {
    ("ServiceAccount", "headroom-operator"): _service_account,
    ("ClusterRole", "headroom-operator"): _cluster_role,
    ("ClusterRoleBinding", "headroom-operator"): _cluster_role_binding,
    ("Role", "headroom-operator"): _role,
    ("RoleBinding", "headroom-operator"): _role_binding,
    ("ClusterRole", "headroom-epp"): _picker_role,
    ("Deployment", "headroom-operator"): _deployment,
}

#: Objects that only an operator of all namespaces gets; one of some namespaces gets namespaced-rights.yaml.
_ALL_NAMESPACES: Final = frozenset({("ClusterRoleBinding", "headroom-operator")})


def files() -> Iterator[tuple[Path, str]]:
    """Yield each generated file and its text."""
    listed = yaml.safe_load((_BASE / "kustomization.yaml").read_text("utf-8"))["resources"]
    for name in listed:
        text = (_BASE / name).read_text("utf-8")
        if name.startswith("crds/"):
            yield _CHART / "files" / name, text
        elif name != "namespace.yaml":  # Helm makes the release's namespace itself
            yield _CHART / "templates" / name, _HEAD + "---\n".join(_templates(text))
    for path in sorted(_GIE.glob("*_*.yaml")):
        yield _CHART / "files" / "gie-crds" / path.name, path.read_text("utf-8")
    version = re.search(r'^version = "(.+)"', (_ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    if version is None:
        raise LookupError("pyproject.toml names no version")
    yield _CHART / "Chart.yaml", _chart(version[1])


def _templates(text: str) -> Iterator[str]:
    for body in yaml.safe_load_all(text):
        key = (body["kind"], body["metadata"]["name"])
        template = Template(body)
        _KINDS[key](template)
        dumped = template.dump()
        if key in _ALL_NAMESPACES:
            dumped = "{{- if not .Values.namespaces }}\n" + dumped + "{{- end }}\n"
        yield dumped


def _chart(version: str) -> str:
    return f"""\
# Generated by `make chart`: the versions are those of pyproject.toml.
apiVersion: v2
name: headroom
description: Kubernetes operator for inference traffic on the Gateway API Inference Extension
type: application
version: {version}
appVersion: "{version}"
kubeVersion: ">=1.30.0-0"
keywords: [inference, gateway-api, endpoint-picker, llm]
annotations:
  artifacthub.io/license: Apache-2.0
"""


def main() -> int:
    """Write the files, or tell which differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    check = parser.parse_args().check
    stale = 0
    for path, text in files():
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if check:
            stale += 1
            print(f"{path.relative_to(_ROOT)} differs from manifests/base; make chart writes it")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
