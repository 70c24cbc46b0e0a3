{{- define "trireme.envoyName" -}}
{{ include "trireme.fullname" . }}-envoy
{{- end -}}

{{- define "trireme.envoySelector" -}}
{{ include "trireme.selector" . }}
app.kubernetes.io/component: envoy
{{- end -}}

{{- define "trireme.envoyMetadata" -}}
name: {{ include "trireme.envoyName" . }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "trireme.labels" . | nindent 2 }}
  app.kubernetes.io/component: envoy
{{- end -}}

{{/* The longest answer of any server, which an Envoy that goes has to wait for. */}}
{{- define "trireme.envoyGraceSeconds" -}}
{{- $longest := 0 -}}
{{- range $name, $server := .Values.servers -}}
{{- $longest = max $longest (int (include "trireme.drainSeconds" (dict "root" $ "name" $name "server" $server))) -}}
{{- end -}}
{{- add $longest (int .Values.envoy.drainSeconds) 15 -}}
{{- end -}}
