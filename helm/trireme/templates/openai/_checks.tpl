{{/* What must be there for the gateway, and what must not be together. */}}
{{- define "trireme.openaiChecks" -}}
{{- $openai := .Values.openai -}}
{{- if and .Values.servers (not $openai.deployment) -}}
{{- fail "openai.deployment is missing, and openai.enabled is true: render the values again with `trireme render --helm`, which writes it" -}}
{{- end -}}
{{- if not $openai.tls.secret -}}
{{- fail "openai.tls.secret is missing, and openai.enabled is true: callers send their keys, and a gateway lets no other machine in without TLS; name a Secret with tls.crt and tls.key, such as cert-manager writes" -}}
{{- end -}}
{{- if and (not $openai.keys.url) (not $openai.keys.secret) -}}
{{- fail "openai.keys.url and openai.keys.secret are both empty, and openai.enabled is true: a gateway lets nobody in without a key; name a database of keys, or a Secret with keys.txt, keys one a line" -}}
{{- end -}}
{{- if and $openai.keys.url $openai.keys.secret -}}
{{- fail (printf "openai.keys.secret is %q, and openai.keys.url names a database: keys are in one place; leave one of them out" $openai.keys.secret) -}}
{{- end -}}
{{- range $field, $url := dict "keys.url" $openai.keys.url "ledger.url" $openai.ledger.url "limits.url" $openai.limits.url "cache.url" $openai.cache.url -}}
{{- /* It is not shown. */ -}}
{{- if or (regexMatch "://[^/?]*:[^/?]*@" $url) (regexMatch "[?&](ssl)?password=" $url) -}}
{{- fail (printf "openai.%s has a password, which everybody who may read the pod would see: leave it out, and name a Secret in openai.%s" $field (ternary "redisSecret, with the key REDISCLI_AUTH" "databaseSecret, with the key PGPASSWORD" (hasPrefix "redis" $url))) -}}
{{- end -}}
{{- if and $url $.Values.network.enabled (not $openai.egress) -}}
{{- fail (printf "openai.egress is empty, and openai.%s names a server: the network policy would keep the gateway from it; allow it there, such as [{to: [{ipBlock: {cidr: 10.0.0.5/32}}], ports: [{port: 5432}]}]" $field) -}}
{{- end -}}
{{- end -}}
{{- if and $openai.databaseSecret (not (or $openai.keys.url $openai.ledger.url)) -}}
{{- fail (printf "openai.databaseSecret is %q, and neither openai.keys.url nor openai.ledger.url names a database: leave the Secret out" $openai.databaseSecret) -}}
{{- end -}}
{{- if and $openai.redisSecret (not (or $openai.limits.url $openai.cache.url)) -}}
{{- fail (printf "openai.redisSecret is %q, and neither openai.limits.url nor openai.cache.url names a Redis: leave the Secret out" $openai.redisSecret) -}}
{{- end -}}
{{- if and $openai.cache.url (not (contains "answer_cache" $openai.deployment)) -}}
{{- fail "openai.cache.url names a Redis for kept answers, and the deployment keeps none: add gateway.answer_cache to it and render the values again, or leave openai.cache.url out" -}}
{{- end -}}
{{- if and $openai.keys.secret (contains "answer_cache" $openai.deployment) -}}
{{- fail (printf "openai.keys.secret is %q, whose keys are all alike, and the deployment keeps answers (gateway.answer_cache) for each caller: name a database in openai.keys.url, or leave answer_cache out" $openai.keys.secret) -}}
{{- end -}}
{{- if eq (int $openai.port) (int .Values.ports.grpc) -}}
{{- fail (printf "openai.port %v is ports.grpc: give another, for the policies tell pods apart by their ports" $openai.port) -}}
{{- end -}}
{{- if and $openai.scaling.enabled (lt (int $openai.scaling.maxReplicas) (int $openai.scaling.minReplicas)) -}}
{{- fail (printf "openai.scaling.maxReplicas (%v) is less than openai.scaling.minReplicas (%v)" $openai.scaling.maxReplicas $openai.scaling.minReplicas) -}}
{{- end -}}
{{- if and $openai.route.enabled (not .Values.gatewayApi.enabled) -}}
{{- fail "openai.route.enabled is true, and gatewayApi.enabled is false: there is no Gateway to lead to the gateway; enable it and name gatewayApi.gateways, or leave the route out" -}}
{{- end -}}
{{- if and $openai.route.enabled (or (not $openai.route.caConfigMap) (not $openai.tls.serverName)) -}}
{{- fail "openai.route.caConfigMap and openai.tls.serverName are needed with openai.route.enabled: the Gateway checks the gateway's certificate by a ConfigMap with ca.crt, and by a name that is in it" -}}
{{- end -}}
{{- if and $openai.ingress.enabled .Values.network.enabled (not $openai.clients) -}}
{{- fail "openai.clients is empty, and openai.ingress.enabled is true: the network policy would keep the ingress controller from the gateway; allow it there, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}]" -}}
{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled $openai.metricsSecret (not $openai.tls.serverName) -}}
{{- fail "openai.tls.serverName is missing, and openai.metricsSecret is given: Prometheus checks the gateway's certificate; give a name that is in it" -}}
{{- end -}}
{{- end -}}
