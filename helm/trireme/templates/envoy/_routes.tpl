{{/* Envoy's routes: who gets a request, by the model that it names, the release that it pins, and `traffic`. */}}
{{- define "trireme.envoyRoutes" -}}
{{- $default := dict -}}
name: trireme
# The first would crash Triton, the others (the second in gRPC) are nobody's to try.
request_headers_to_remove: [triton_grpc_error, trireme-control-key, triton-grpc-protocol-trireme-control-key]
# The answer's metadata says which release gave it, for whoever reports outcomes: that of the pod, whatever was wished.
response_headers_to_add:
  - header: {key: x-trireme-release, value: "%UPSTREAM_METADATA(trireme:release)%"}
    append_action: OVERWRITE_IF_EXISTS_OR_ADD
virtual_hosts:
  - name: trireme
    domains: ["*"]
    # Until the first byte of an answer nothing is lost: it is asked again, of another pod. CANCELLED is what a gRPC
    # server says that stops.
    retry_policy:
      retry_on: connect-failure,refused-stream,reset,unavailable,cancelled
      num_retries: {{ int .Values.envoy.retries }}
      retry_host_predicate:
        - name: envoy.retry_host_predicates.previous_hosts
          typed_config: {"@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}
      host_selection_retry_max_attempts: 20  # who fails at once has the fewest requests, and is chosen first
    routes:
      - match: {safe_regex: {regex: "/v2/(repository|systemsharedmemory|cudasharedmemory|trace|logging)(/.*)?|/v2/models/.*/trace/.*"}}
        direct_response: {status: 403, body: {inline_string: '{"error": "not from here: the control API is inside the pod"}'}}
      - match: {safe_regex: {regex: "/inference[.]GRPCInferenceService/(Repository.*|SystemSharedMemory.*|CudaSharedMemory.*|TraceSetting|LogSettings)"}}
        direct_response: {status: 403}
      {{- range $name, $server := .Values.servers }}
      {{- if not $server.stable }}
      {{- $traffic := get $.Values.traffic $name | default dict }}
      {{- $context := dict "root" $ "name" $name "server" $server "traffic" $traffic }}
      {{- $split := splitList " " (include "trireme.splitNames" $context) | compact }}
      {{- $rest := splitList " " (include "trireme.restNames" $context) | compact }}
      {{- include "trireme.envoyNames" (merge (dict "names" $split "traffic" $traffic) $context) | nindent 6 }}
      {{- include "trireme.envoyNames" (merge (dict "names" $rest "traffic" dict) $context) | nindent 6 }}
      {{- if eq $name $.Values.defaultServer }}
      {{- $default = merge (dict "traffic" (ternary $traffic dict (empty $rest))) $context }}
      {{- end }}
      {{- end }}
      {{- end }}
      {{- with $default }}
      {{- include "trireme.envoyModel" (merge (dict "kind" "grpc" "match" "prefix: /, grpc: {}, headers: [") .) | nindent 6 }}
      {{- include "trireme.envoyModel" (merge (dict "kind" "http" "match" "prefix: /v2, headers: [") .) | nindent 6 }}
      {{- end }}
      - match: {prefix: /}
        direct_response:
          status: 404
          body: {inline_string: '{"error": "no such path or model: ask /v2/models/NAME/..., or name the model in the body of /generate"}'}
{{- end -}}

{{/* The ways to name models: gRPC in the metadata, for Envoy does not look into its messages; HTTP in the path or the body. */}}
{{- define "trireme.envoyNames" -}}
{{- if .names -}}
{{- $any := join "|" .names | replace "." "[.]" -}}
{{- include "trireme.envoyModel" (merge (dict "kind" "grpc" "match" (printf `prefix: /, grpc: {}, headers: [{name: x-trireme-model, string_match: {safe_regex: {regex: "%s"}}}` $any)) .) }}
{{ include "trireme.envoyModel" (merge (dict "kind" "http" "match" (printf `safe_regex: {regex: "/v2/models/(%s)(/.*)?"}, headers: [` $any)) .) }}
{{ include "trireme.envoyModel" (merge (dict "kind" "http" "rewrite" "/v2/models/%DYNAMIC_METADATA(trireme:model)%%REQ(:path)%" "match" (printf `safe_regex: {regex: "/generate(_stream)?"}, dynamic_metadata: [{filter: trireme, path: [{key: model}], value: {string_match: {safe_regex: {regex: "%s"}}}}], headers: [` $any)) .) }}
{{- end -}}
{{- end -}}

{{/* The routes of one way to name a model: of who pins a release, and of all others. `match` is open at its headers. */}}
{{- define "trireme.envoyModel" -}}
{{- $traffic := .traffic -}}
{{- $separator := ternary "" ", " (hasSuffix "[" .match) -}}
{{- if $traffic.candidate }}
- match: { {{- .match }}{{ $separator }}{name: x-trireme-release, string_match: {exact: candidate}}]}
  route:
    {{- include "trireme.envoyAction" (merge (dict "isPinned" true) .) | nindent 4 }}
    cluster: {{ $traffic.candidate }}-{{ .kind }}
- match: { {{- .match }}{{ $separator }}{name: x-trireme-release, string_match: {exact: stable}}]}
  route:
    {{- include "trireme.envoyAction" (merge (dict "isPinned" true) .) | nindent 4 }}
    cluster: {{ .name }}-{{ .kind }}
- match: { {{- .match }}]}
  route:
    {{- include "trireme.envoyAction" . | nindent 4 }}
    hash_policy:
      - header:
          header_name: x-trireme-key
          regex_rewrite: {pattern: {regex: "^"}, substitution: {{ printf "%v:" (default "" $traffic.salt) | quote }}}
    weighted_clusters:
      use_hash_policy: true
      clusters:  # the candidate first: it takes the lowest places of the hash, so as its share grows keys only move into it
        - name: {{ $traffic.candidate }}-{{ .kind }}-or-stable
          weight: {{ int (default 0 $traffic.candidateWeight) }}
        - name: {{ .name }}-{{ .kind }}
          weight: {{ sub 10000 (int (default 0 $traffic.candidateWeight)) }}
{{- else }}
- match: { {{- .match }}]}
  route:
    {{- include "trireme.envoyAction" . | nindent 4 }}
    cluster: {{ .name }}-{{ .kind }}
{{- end }}
{{- end -}}

{{- define "trireme.envoyAction" -}}
timeout: 0s
idle_timeout: 0s
{{- with .rewrite }}
path_rewrite: {{ . | quote }}
{{- end }}
{{- if not .isPinned }}
{{- include "trireme.envoyMirror" . }}
{{- end }}
{{- end -}}

{{- define "trireme.envoyMirror" -}}
{{- with .traffic.mirror }}
request_mirror_policies:
  - cluster: {{ .server }}-{{ $.kind }}-mirror
    runtime_fraction: {default_value: {numerator: {{ mul 100 (int .percent) }}, denominator: TEN_THOUSAND}}
{{- end }}
{{- end -}}
