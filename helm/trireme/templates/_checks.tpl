{{/* What a schema cannot say: names that must be those of servers, numbers that must go together. Makes nothing; every
template begins with it, for which of them is the first nobody says, and it would stumble over what is wrong. */}}
{{- define "trireme.checks" -}}
{{- $servers := .Values.servers -}}
{{- $names := keys $servers | sortAlpha | join ", " -}}
{{- if and .Values.defaultServer (not (hasKey $servers .Values.defaultServer)) -}}
{{- fail (printf "defaultServer is %q, and servers are %s: name one of them" .Values.defaultServer $names) -}}
{{- end -}}
{{- with (get $servers (default "" .Values.defaultServer) | default dict).stable -}}
{{- fail (printf "defaultServer is %q, a candidate itself; name the server of the stable release, %s" $.Values.defaultServer .) -}}
{{- end -}}
{{- range $name, $server := $servers -}}
{{- if and $server.stable (not (hasKey $servers $server.stable)) -}}
{{- fail (printf "servers.%s.stable is %q, and servers are %s: render the values again" $name $server.stable $names) -}}
{{- end -}}
{{- end -}}
{{- $roles := list -}}
{{- range $name, $server := $servers -}}{{- if $server.role -}}{{- $roles = append $roles $name -}}{{- end -}}{{- end -}}
{{- if and .Values.network.otherRole (not $roles) -}}
{{- fail "network.otherRole opens every port, and no server here computes prompts for others or has others compute its own: leave it out, or set servers.NAME.role" -}}
{{- end -}}
{{- $taken := dict -}}
{{- if .Values.envoy.enabled -}}
{{- range $suffix := list "" "-pods" "-routes" }}{{ $_ := set $taken (print (include "trireme.envoyName" $) $suffix) "Envoy" }}{{ end -}}
{{- end -}}
{{- if .Values.openai.enabled -}}
{{- $_ := set $taken (include "trireme.openaiName" $) "the gateway" -}}
{{- end -}}
{{- if .Values.rollouts.enabled -}}
{{- $_ := set $taken (include "trireme.rolloutsName" $) "the rollouts' controller" -}}
{{- end -}}
{{- range $name, $server := $servers -}}
{{- $full := include "trireme.serverName" (dict "root" $ "name" $name) -}}
{{- range $suffix := concat (list "" "-pods" "-lws") (ternary (list "-control") list (not (empty $.Values.remoteControl.secret))) -}}
{{- with get $taken (print $full $suffix) -}}
{{- fail (printf "servers.%s would have the name %s%s in Kubernetes, which %s has: install with another release name, or give the model another name" $name $full $suffix .) -}}
{{- end -}}
{{- $_ := set $taken (print $full $suffix) (print "servers." $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $traffic := .Values.traffic -}}
{{- if not (hasKey $servers $name) -}}
{{- fail (printf "traffic.%s: there is no such server, but %s: name one of them" $name $names) -}}
{{- end -}}
{{- if (get $servers $name).stable -}}
{{- fail (printf "traffic.%s: it is a candidate itself; name the server of the stable release, %s" $name (get $servers $name).stable) -}}
{{- end -}}
{{- $others := dict "candidate" $traffic.candidate "mirror.server" (default dict $traffic.mirror).server -}}
{{- range $field, $other := $others -}}
{{- if and $other (ne $name (default "" (default dict (get $servers $other)).stable)) -}}
{{- fail (printf "traffic.%s.%s is %q, which is no server with `stable: %s`: add the release to other_releases of the deployment, and render the values again" $name $field $other $name) -}}
{{- end -}}
{{- end -}}
{{- if and $traffic.candidate $traffic.mirror -}}
{{- $divided := include "trireme.tritonNames" (get $servers $traffic.candidate) -}}
{{- $copied := include "trireme.tritonNames" (get $servers $traffic.mirror.server) -}}
{{- if ne $divided $copied -}}
{{- fail (printf "traffic.%s: candidate %q and mirror.server %q are releases of two models (%s; %s), and each would get what it does not serve: leave one of them out" $name $traffic.candidate $traffic.mirror.server $divided $copied) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $ports := .Values.ports -}}
{{- $numbers := list (int $ports.http) (int $ports.grpc) (int $ports.metrics) (int $ports.health) -}}
{{- if and .Values.remoteControl.secret (has (int .Values.remoteControl.port) $numbers) -}}
{{- fail (printf "remoteControl.port %v is one of ports; give another" .Values.remoteControl.port) -}}
{{- end -}}
{{- range $name, $server := .Values.servers -}}
{{- range $server.kvEventPorts -}}
{{- if has (int .) (append $numbers (int $.Values.remoteControl.port)) -}}
{{- fail (printf "server %s tells KV events on port %v, which is another port of the pod: give kv_events.endpoint another and render the values again, or change ports" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if lt (len (uniq $numbers)) 4 -}}
{{- fail (printf "ports must differ, got http %v, grpc %v, metrics %v, health %v" $ports.http $ports.grpc $ports.metrics $ports.health) -}}
{{- end -}}
{{- with .Values.grpcTls -}}
{{- if and .directory (not .secret) -}}
{{- fail (printf "grpcTls.secret is missing: the deployment has triton.grpc_tls, with files in %s; name the Secret that holds them" .directory) -}}
{{- end -}}
{{- if and .secret (not .directory) -}}
{{- fail (printf "grpcTls.secret is %q, and the deployment has no triton.grpc_tls: name its files there and render the values again, or leave the Secret out" .secret) -}}
{{- end -}}
{{- if and .directory $.Values.envoy.enabled (not .serverName) -}}
{{- fail "grpcTls.serverName is missing: Envoy checks the servers' certificate; name one of the names that are in it" -}}
{{- end -}}
{{- if and .directory $.Values.gatewayApi.enabled (not .serverName) -}}
{{- fail "grpcTls.serverName is missing: Gateways check the servers' certificate; name one of the names that are in it" -}}
{{- end -}}
{{- if and .directory $.Values.gatewayApi.enabled (not $.Values.gatewayApi.backendTls.caConfigMap) -}}
{{- fail "gatewayApi.backendTls.caConfigMap is missing: the servers' gRPC has TLS, and Gateways know its authority from a ConfigMap alone; make one with ca.crt, and name it" -}}
{{- end -}}
{{- end -}}
{{- if lt (int .Values.scaling.maxReplicas) (int .Values.scaling.minReplicas) -}}
{{- fail (printf "scaling.maxReplicas (%v) is less than scaling.minReplicas (%v)" .Values.scaling.maxReplicas .Values.scaling.minReplicas) -}}
{{- end -}}
{{- if and .Values.releases.pull.cacheHostPath .Values.releases.pull.cacheClaim -}}
{{- fail (printf "releases.pull.cacheHostPath (%q) and cacheClaim (%q) are two places for one cache: leave one of them out" .Values.releases.pull.cacheHostPath .Values.releases.pull.cacheClaim) -}}
{{- end -}}
{{- if .Values.rollouts.enabled }}{{ include "trireme.rolloutsChecks" . }}{{ end -}}
{{- if .Values.openai.enabled }}{{ include "trireme.openaiChecks" . }}{{ end -}}
{{- if and .Values.gatewayApi.inferencePool.enabled (not .Values.gatewayApi.enabled) -}}
{{- fail "gatewayApi.inferencePool.enabled is true and gatewayApi.enabled is false: nothing would lead to the pools; enable both, or neither" -}}
{{- end -}}
{{- if .Values.gatewayApi.inferencePool.enabled -}}
{{- range $name := keys $servers | sortAlpha -}}
{{- if not (get $.Values.gatewayApi.inferencePool.endpointPickers $name) -}}
{{- fail (printf "gatewayApi.inferencePool.endpointPickers.%s is missing: name the Service of the endpoint picker that you run for this server's pool" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
