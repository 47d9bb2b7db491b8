{{/*
Prefix of every object's name: "headroom" for the release of that name, so that the objects are called as in
manifests/base; the release's name elsewhere, with "-headroom" behind it unless that is part of it.
*/}}
{{- define "headroom.name" -}}
{{- if .Values.nameOverride -}}
{{ .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains "headroom" .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-headroom" (.Release.Name | trunc 31 | trimSuffix "-") }}
{{- end -}}
{{- end -}}

{{- define "headroom.operatorName" -}}
{{ include "headroom.name" . }}-operator
{{- end -}}

{{- define "headroom.pickerRoleName" -}}
{{ include "headroom.name" . }}-epp
{{- end -}}

{{- define "headroom.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "headroom.operatorName" .) }}
{{- end -}}

{{/* Labels beside those of manifests/base. */}}
{{- define "headroom.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{/* Full name of an image: (list context image default-name). A digest wins over a tag. */}}
{{- define "headroom.image" -}}
{{- $context := index . 0 -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository | default (index . 2) -}}
{{- with $context.Values.registry -}}{{ . | trimSuffix "/" }}/{{- end -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default $context.Chart.AppVersion }}
{{- end -}}
{{- end -}}
