{{/* The rules of a route: who pins a release, and all others by weight. Takes root, name, server, traffic, names (of
Triton's models), kind (grpc or http) and isDefault. */}}
{{- define "trireme.gatewayRules" -}}
{{- $context := . -}}
{{- /* In gRPC the default's pins are as long a match as a model's name, and the older route would win: name both. */}}
{{- $ofDefault := (get .root.Values.traffic .root.Values.defaultServer | default dict).candidate -}}
{{- $isPinned := or .traffic.candidate (and (eq .kind "grpc") $ofDefault) -}}
{{- range $pin := ternary (list "candidate" "stable" "") (list "") (not (empty $isPinned)) }}
- matches:
    {{- include "trireme.gatewayMatches" (merge (dict "pin" $pin) $context) | trim | nindent 4 }}
  {{- if eq $context.kind "http" }}
  timeouts: {request: 0s}  # answers stream for as long as they take
  {{- end }}
  filters:
    # The key to Triton's control API: nobody uses it by way of a Gateway.
    - type: RequestHeaderModifier
      requestHeaderModifier: {remove: [{{ ternary "triton-grpc-protocol-" "" (eq $context.kind "grpc") }}trireme-control-key]}
    {{- if and (not $pin) $context.traffic.mirror }}
    - type: RequestMirror
      requestMirror:
        backendRef: {{ include "trireme.gatewayBackend" (merge (dict "backend" $context.traffic.mirror.server "isService" true) $context) }}
        percent: {{ int $context.traffic.mirror.percent }}
    {{- end }}
  backendRefs:
    {{- if and (eq $pin "candidate") $context.traffic.candidate }}
    - {{ include "trireme.gatewayBackend" (merge (dict "backend" $context.traffic.candidate) $context) }}
    {{- else if or $pin (not $context.traffic.candidate) }}
    - {{ include "trireme.gatewayBackend" (merge (dict "backend" $context.name) $context) }}
    {{- else }}
    {{- $weight := int $context.traffic.candidateWeight }}
    - {{ include "trireme.gatewayBackend" (merge (dict "backend" $context.name "weight" (sub 10000 $weight)) $context) }}
    - {{ include "trireme.gatewayBackend" (merge (dict "backend" $context.traffic.candidate "weight" $weight) $context) }}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "trireme.gatewayMatches" -}}
{{- $pin := "" -}}
{{- with .pin }}{{ $pin = printf "{name: x-trireme-release, value: %s}" . }}{{ end -}}
{{- range .names }}
{{- if eq $.kind "grpc" }}
- method: {service: inference.GRPCInferenceService}
  headers: [{{ join ", " (compact (list (printf "{name: x-trireme-model, value: %q}" .) $pin)) }}]
{{- else }}
- path: {type: PathPrefix, value: /v2/models/{{ . }}}
  {{- with $pin }}
  headers: [{{ . }}]
  {{- end }}
{{- end }}
{{- end }}
{{- if .isDefault }}
{{- if eq .kind "grpc" }}
- method: {service: inference.GRPCInferenceService}
  {{- with $pin }}
  headers: [{{ . }}]
  {{- end }}
{{- else }}
{{- /* Not /v2 as a whole: the control API is below it. */}}
{{- range list "/v2/models" "/v2/health" }}
- path: {type: PathPrefix, value: {{ . }}}
  {{- with $pin }}
  headers: [{{ . }}]
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "trireme.gatewayBackend" -}}
{{- $name := include "trireme.serverName" (dict "root" .root "name" .backend) -}}
{{- $weight := ternary (printf ", weight: %d" (int .weight)) "" (hasKey . "weight") -}}
{{- if and (eq .kind "http") .root.Values.gatewayApi.inferencePool.enabled (not .isService) -}}
{group: inference.networking.k8s.io, kind: InferencePool, name: {{ $name | quote }}{{ $weight }}}
{{- else -}}
{name: {{ $name | quote }}, port: {{ get .root.Values.ports .kind }}{{ $weight }}}
{{- end -}}
{{- end -}}
