{{/* Names and labels. A server's helpers take a dict of root ($), name (its key in servers) and server (its values). */}}

{{- define "trireme.fullname" -}}
{{- $name := default .Release.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{ .Release.Name }}{{- else -}}{{ .Release.Name }}-{{ $name }}{{- end -}}
{{- end -}}

{{/* As a Service's name may be. A label holds 63 characters, and with a group it is NAME-lws-123-0123456789 that the
StatefulSet of its workers puts on them. */}}
{{- define "trireme.serverName" -}}
{{- $full := include "trireme.fullname" .root -}}
{{- /* The only server of a deployment mostly has its name, which is not said twice. */ -}}
{{- $name := ternary $full (printf "%s-%s" $full .name) (eq .name (default .root.Release.Name .root.Values.nameOverride)) -}}
{{- $most := ternary 44 50 (gt (int (get .root.Values.servers .name).nodes) 1) -}}
{{- if gt (len $name) $most -}}
{{- fail (printf "servers.%s would be called %s in Kubernetes, %d characters of at most %d: install with a shorter release name, or set nameOverride" .name $name (len $name) $most) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "servers.%s would be called %s in Kubernetes, where a Service's name begins with a letter and has no dots: install with another release name, or set nameOverride" .name $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "trireme.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "trireme.selector" . }}
{{- end -}}

{{- define "trireme.selector" -}}
app.kubernetes.io/name: trireme
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "trireme.serverSelector" -}}
{{ include "trireme.selector" .root }}
app.kubernetes.io/component: server
trireme/server: {{ .name | quote }}
{{- end -}}

{{/* The pods that answer: of a group, its leader. */}}
{{- define "trireme.answeringSelector" -}}
{{ include "trireme.serverSelector" . }}
{{- if gt (int .server.nodes) 1 }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end -}}

{{- define "trireme.serverLabels" -}}
{{ include "trireme.labels" .root }}
app.kubernetes.io/component: server
trireme/server: {{ .name | quote }}
{{- end -}}

{{- define "trireme.metadata" -}}
name: {{ .objectName | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "trireme.serverLabels" . | nindent 2 }}
{{- end -}}

{{- define "trireme.image" -}}
{{- if or (not .image.repository) (not .image.digest) -}}
{{- fail (printf "%s.repository and %s.digest are needed, got %q and %q: build the Dockerfile, push it, and take the digest that the push prints" .field .field .image.repository .image.digest) -}}
{{- end -}}
{{ .image.repository }}@{{ .image.digest }}
{{- end -}}
