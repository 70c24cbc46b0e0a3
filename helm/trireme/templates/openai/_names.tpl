{{- define "trireme.openaiName" -}}
{{ include "trireme.fullname" . }}-openai
{{- end -}}

{{- define "trireme.openaiSelector" -}}
{{ include "trireme.selector" . }}
app.kubernetes.io/component: openai
{{- end -}}

{{- define "trireme.openaiMetadata" -}}
name: {{ include "trireme.openaiName" . | quote }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "trireme.labels" . | nindent 2 }}
  app.kubernetes.io/component: openai
{{- end -}}

{{/* A gateway with a ledger has a volume of its own, for the requests that are not in the database yet. */}}
{{- define "trireme.openaiKind" -}}
{{- ternary "Deployment" "StatefulSet" (empty .Values.openai.ledger.url) -}}
{{- end -}}

{{/* Seconds for running requests to end: the longest answer of any server, and no longer than a request may take. */}}
{{- define "trireme.openaiExitSeconds" -}}
{{- $longest := 0 -}}
{{- range $name, $server := .Values.servers -}}
{{- $longest = max $longest (int (include "trireme.drainSeconds" (dict "root" $ "name" $name "server" $server))) -}}
{{- end -}}
{{- $longest = min $longest (int .Values.openai.timeoutSeconds) -}}
{{- if kindIs "invalid" .Values.openai.exitTimeoutSeconds -}}{{ $longest }}
{{- else -}}{{ int .Values.openai.exitTimeoutSeconds }}{{- end -}}
{{- end -}}

{{/* The servers of stable releases, each by the name that all of its pods have, which is asked again and again. */}}
{{- define "trireme.openaiUrls" -}}
{{- $scheme := ternary "dns" "grpcs+dns" (empty .Values.grpcTls.directory) -}}
{{- range $name := keys .Values.servers | sortAlpha }}
{{- if not (get $.Values.servers $name).stable }}
{{- $pods := printf "%s-pods.%s.svc.%s" (include "trireme.serverName" (dict "root" $ "name" $name)) $.Release.Namespace $.Values.clusterDomain }}
- --url
- {{ $scheme }}:///{{ $pods }}:{{ $.Values.ports.grpc }}
- --metrics-url
- dns:///{{ $pods }}:{{ $.Values.ports.metrics }}
{{- end }}
{{- end }}
{{- end -}}
