{{- define "trireme.rolloutsName" -}}
{{ include "trireme.fullname" . }}-rollouts
{{- end -}}

{{- define "trireme.rolloutsSelector" -}}
{{ include "trireme.selector" . }}
app.kubernetes.io/component: rollouts
{{- end -}}

{{- define "trireme.rolloutsMetadata" -}}
name: {{ include "trireme.rolloutsName" . | quote }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "trireme.labels" . | nindent 2 }}
  app.kubernetes.io/component: rollouts
{{- end -}}

{{/* The server, by its key in servers, whose control is asked where a command names none. */}}
{{- define "trireme.rolloutsServer" -}}
{{- $stable := list -}}
{{- range $name := keys .Values.servers | sortAlpha -}}
{{- if not (get $.Values.servers $name).stable }}{{ $stable = append $stable $name }}{{ end -}}
{{- end -}}
{{- .Values.rollouts.server | default .Values.defaultServer | default (first $stable) -}}
{{- end -}}

{{/* Whether its store is a file of a volume. */}}
{{- define "trireme.rolloutsHasFile" -}}
{{- ternary "" "true" (not (empty .Values.rollouts.store.url)) -}}
{{- end -}}
