{{/* Envoy's own configuration. What `traffic` says is in the routes beside it, which Envoy reads again when they change;
a change of this one is a new Envoy. */}}
{{- define "trireme.envoyBootstrap" -}}
{{- $values := .Values -}}
{{- $types := "type.googleapis.com/envoy.extensions" -}}
node: {id: trireme, cluster: trireme}
admin:
  address: {socket_address: {address: 127.0.0.1, port_value: 9901}}
layered_runtime:
  layers:
    - name: chart
      static_layer: {re2.max_program_size.error_level: 100000, re2.max_program_size.warn_level: 100000}  # the names of many models
overload_manager:
  resource_monitors:
    - name: envoy.resource_monitors.global_downstream_max_connections
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
        max_active_downstream_connections: 50000
    - name: envoy.resource_monitors.fixed_heap
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig
        max_heap_size_bytes: {{ mul 900 1048576 (int $values.envoy.resources.memoryGiB) }}  # of 1,024 MiB
  actions:
    - name: envoy.overload_actions.stop_accepting_requests  # refused, in place of killed with all that run
      triggers: [{name: envoy.resource_monitors.fixed_heap, threshold: {value: 0.95}}]
static_resources:
  listeners:
    - name: trireme
      address: {socket_address: {address: "::", ipv4_compat: true, port_value: 8080}}
      per_connection_buffer_limit_bytes: {{ mul (int $values.envoy.maxRequestMiB) 1048576 }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{ $types }}.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: trireme
                stream_idle_timeout: 0s  # a stream is silent for as long as its prefill takes
                normalize_path: true
                merge_slashes: true
                path_with_escaped_slashes_action: REJECT_REQUEST
                common_http_protocol_options: {idle_timeout: 3600s}
                http2_protocol_options:
                  connection_keepalive: {interval: 30s, timeout: 10s}  # ends the streams of clients that vanished
                {{- if $values.envoy.accessLog }}
                access_log:
                  - name: envoy.access_loggers.stdout
                    typed_config:
                      "@type": {{ $types }}.access_loggers.stream.v3.StdoutAccessLog
                      log_format:
                        json_format:
                          time: "%START_TIME%"
                          path: "%REQ(:PATH)%"
                          model: "%REQ(X-TRIREME-MODEL)%"
                          status: "%RESPONSE_CODE%"
                          grpc_status: "%GRPC_STATUS%"
                          flags: "%RESPONSE_FLAGS%"
                          first_byte_ms: "%RESPONSE_DURATION%"
                          duration_ms: "%DURATION%"
                          attempts: "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"
                          cluster: "%UPSTREAM_CLUSTER%"
                          upstream: "%UPSTREAM_HOST%"
                {{- end }}
                rds:
                  route_config_name: trireme
                  config_source:
                    resource_api_version: V3
                    path_config_source:
                      path: /etc/envoy/routes/routes.yaml
                      watched_directory: {path: /etc/envoy/routes}  # a ConfigMap changes by a link beside the file
                http_filters:
                  - name: envoy.filters.http.json_to_metadata
                    typed_config:
                      "@type": {{ $types }}.filters.http.json_to_metadata.v3.JsonToMetadata
                      request_rules:
                        allow_content_types_regex: {regex: "(?i)application/json *(;.*)?"}  # many clients say the charset, too
                        rules:
                          - selectors: [{key: model}]
                            on_present: {metadata_namespace: trireme, key: model}
                            on_missing: {metadata_namespace: trireme, key: model, value: "", preserve_existing_metadata_value: true}
                            on_error: {metadata_namespace: trireme, key: model, value: "", preserve_existing_metadata_value: true}
                  {{- with $values.envoy.adaptiveConcurrency }}
                  {{- if .enabled }}
                  - name: envoy.filters.http.adaptive_concurrency
                    typed_config:
                      "@type": {{ $types }}.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency
                      gradient_controller_config:
                        sample_aggregate_percentile: {value: 90}
                        concurrency_limit_params: {concurrency_update_interval: 1s}
                        min_rtt_calc_params: {interval: {{ .minRttSeconds }}s, request_count: {{ .requests }}}
                  {{- end }}
                  {{- end }}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": {{ $types }}.filters.http.router.v3.Router}
          {{- if $values.envoy.tls.secret }}
          transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": {{ $types }}.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2, http/1.1]
                tls_certificates:
                  - certificate_chain: {filename: /etc/envoy/tls/tls.crt}
                    private_key: {filename: /etc/envoy/tls/tls.key}
                    watched_directory: {path: /etc/envoy/tls}
          {{- end }}
    - name: operations  # of the admin interface only what probes and Prometheus ask
      address: {socket_address: {address: "::", ipv4_compat: true, port_value: 9902}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{ $types }}.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: operations
                route_config:
                  virtual_hosts:
                    - name: operations
                      domains: ["*"]
                      routes:
                        - match: {path: /ready, headers: [{name: ":method", string_match: {exact: GET}}]}
                          route: {cluster: admin}
                        - match: {path: /stats/prometheus, headers: [{name: ":method", string_match: {exact: GET}}]}
                          route: {cluster: admin}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": {{ $types }}.filters.http.router.v3.Router}
  clusters:
    - name: admin
      type: STATIC
      load_assignment:
        cluster_name: admin
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}}]}]
    {{- range $name, $server := $values.servers }}
    {{- range $kind := ternary (list "grpc" "http" "grpc-mirror" "http-mirror") (list "grpc" "http") (not (empty $server.stable)) }}
    {{- include "trireme.envoyCluster" (dict "root" $ "name" $name "server" $server "kind" $kind) | nindent 4 }}
    {{- end }}
    {{- if $server.stable }}
    {{- range $kind := list "grpc" "http" }}
    # A weight is a wish: while the candidate has no pod that is ready, its share is the stable server's.
    - name: {{ $name }}-{{ $kind }}-or-stable
      connect_timeout: 2s
      lb_policy: CLUSTER_PROVIDED
      circuit_breakers:
        thresholds: [{max_connections: 1048576, max_pending_requests: 1048576, max_requests: 1048576, max_retries: 1048576}]
      cluster_type:
        name: envoy.clusters.aggregate
        typed_config:
          "@type": {{ $types }}.clusters.aggregate.v3.ClusterConfig
          clusters: [{{ $name }}-{{ $kind }}, {{ $server.stable }}-{{ $kind }}]
    {{- end }}
    {{- end }}
    {{- end }}
{{- end -}}

{{/* Every ready pod of a server is an endpoint of its own. Of a mirror's copies few may be under way: a server that hangs
would keep them all. */}}
{{- define "trireme.envoyCluster" -}}
{{- $values := .root.Values -}}
{{- $outlier := $values.envoy.outlier -}}
{{- $isGrpc := hasPrefix "grpc" .kind -}}
{{- $isMirror := hasSuffix "mirror" .kind -}}
{{- $many := ternary 64 1048576 $isMirror -}}
- name: {{ .name }}-{{ .kind }}
  cluster_type:
    name: envoy.cluster.dns
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster
      dns_refresh_rate: 1s
      dns_lookup_family: V4_PREFERRED
  connect_timeout: 2s
  lb_policy: LEAST_REQUEST
  # Never to one that is known to be dead, unless all seem to be: then it is the checks that fail.
  common_lb_config: {healthy_panic_threshold: {value: 1}}
  circuit_breakers:
    thresholds: [{max_connections: {{ $many }}, max_pending_requests: {{ $many }}, max_requests: {{ $many }}, max_retries: {{ $many }}}]
  upstream_connection_options:
    tcp_keepalive: {keepalive_probes: 3, keepalive_time: 10, keepalive_interval: 5}
  # Nobody asks a node that has vanished while it owes the receipt of a request: TCP_USER_TIMEOUT, as long as those.
  upstream_bind_config:
    socket_options: [{level: 6, name: 18, int_value: 25000, state: STATE_PREBIND}]
  {{- if $isGrpc }}
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config: {http2_protocol_options: {}}
  {{- end }}
  {{- if and $isGrpc $values.grpcTls.directory }}
  transport_socket:
    name: envoy.transport_sockets.tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
      sni: {{ $values.grpcTls.serverName | quote }}
      common_tls_context:
        validation_context:
          trusted_ca: {filename: /etc/envoy/grpc-tls/ca.crt, watched_directory: {path: /etc/envoy/grpc-tls}}
          match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: {{ $values.grpcTls.serverName | quote }}}}]
        {{- if $values.grpcTls.isMutual }}
        tls_certificates:
          - certificate_chain: {filename: /etc/envoy/grpc-tls/tls.crt}
            private_key: {filename: /etc/envoy/grpc-tls/tls.key}
            watched_directory: {path: /etc/envoy/grpc-tls}
        {{- end }}
  transport_socket_matches:  # health has a port of its own, without TLS
    - name: health
      match: {health: true}
      transport_socket:
        name: envoy.transport_sockets.raw_buffer
        typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer}
  {{- end }}
  health_checks:
    - timeout: 2s
      interval: 1s
      no_traffic_interval: 1s
      unhealthy_threshold: 3
      healthy_threshold: 1
      http_health_check: {path: /ready}
      {{- if and $isGrpc $values.grpcTls.directory }}
      transport_socket_match_criteria: {health: true}
      {{- end }}
  # By what happens to connections. A refusal by admission is an answer: who is busy must not be taken for dead.
  outlier_detection:
    split_external_local_origin_errors: true
    consecutive_local_origin_failure: {{ int $outlier.consecutiveFailures }}
    enforcing_consecutive_local_origin_failure: 100
    enforcing_local_origin_success_rate: 0
    enforcing_consecutive_5xx: 0
    enforcing_consecutive_gateway_failure: 0
    enforcing_success_rate: 0
    interval: {{ $outlier.intervalSeconds }}s
    base_ejection_time: {{ $outlier.ejectionSeconds }}s
    max_ejection_percent: {{ int $outlier.maxPercent }}
    always_eject_one_host: true
  load_assignment:
    cluster_name: {{ .name }}-{{ .kind }}
    endpoints:
      - lb_endpoints:
          - endpoint:
              address:
                socket_address:
                  address: {{ include "trireme.serverName" . }}-pods.{{ .root.Release.Namespace }}.svc.{{ $values.clusterDomain }}
                  port_value: {{ ternary $values.ports.grpc $values.ports.http $isGrpc }}
              health_check_config: {port_value: {{ $values.ports.health }}}
            metadata: {filter_metadata: {trireme: {release: {{ ternary "stable" "candidate" (empty .server.stable) }}}}}
{{- end -}}
