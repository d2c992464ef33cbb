{{/* Name of everything that the chart makes. */}}
{{- define "tokenway.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* What the names of Roles in a namespace begin with: in a foreign one a release of the same name elsewhere may have its own. */}}
{{- define "tokenway.reader" -}}
{{- $root := index . 0 }}{{ include "tokenway.name" $root }}
{{- if ne (index . 1) $root.Release.Namespace }}-{{ $root.Release.Namespace }}{{ end }}
{{- end }}

{{- define "tokenway.selector" -}}
app.kubernetes.io/name: tokenway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tokenway.labels" -}}
{{ include "tokenway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tokenway.metadata" -}}
name: {{ include "tokenway.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "tokenway.labels" . | nindent 2 }}
{{- end }}

{{- define "tokenway.secret" -}}
{{ .Values.secret.existing | default (include "tokenway.name" .) }}
{{- end }}
