{{/* What an autoscaler of a server is told, for KEDA and for Kubernetes' own alike. Each takes root, name and server. */}}

{{/* With `trireme` in it: alerts tell our autoscalers from those of others by that. */}}
{{- define "trireme.autoscalerName" -}}
trireme-{{ include "trireme.serverName" . }}
{{- end -}}

{{- define "trireme.scaleTarget" -}}
{{- if gt (int .server.nodes) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
name: {{ include "trireme.serverName" . }}-lws
{{- else -}}
apiVersion: apps/v1
kind: Deployment
name: {{ include "trireme.serverName" . | quote }}
{{- end -}}
{{- end -}}

{{/* min, max and fallback, as YAML. A candidate has its share of the stable server's minimum and one at least, in the
same way as without an autoscaler it has of the replicas; and no more while nothing is known. */}}
{{- define "trireme.scalingBounds" -}}
{{- $all := .root.Values.scaling -}}
{{- $own := .server.scaling | default dict -}}
{{- $min := int $all.minReplicas -}}
{{- $fallback := int $all.fallbackReplicas -}}
{{- with .server.stable -}}
{{- $traffic := get $.root.Values.traffic . | default dict -}}
{{- $weight := ternary (int (default 0 $traffic.candidateWeight)) 0 (eq (default "" $traffic.candidate) $.name) -}}
{{- $stable := (get $.root.Values.servers .).scaling | default dict -}}
{{- $min = max 1 (div (add (mul (int (default $all.minReplicas $stable.minReplicas)) $weight) 9999) 10000) -}}
{{- $fallback = 1 -}}
{{- end -}}
{{- $min = int (default $min $own.minReplicas) -}}
{{- $max := int (default $all.maxReplicas $own.maxReplicas) -}}
{{- if lt $max $min -}}
{{- fail (printf "servers.%s would have at least %d replicas and at most %d: set servers.%s.scaling.minReplicas or maxReplicas, or those of scaling" .name $min $max .name) -}}
{{- end -}}
min: {{ $min }}
max: {{ $max }}
fallback: {{ min $max (max $min $fallback) }}
{{- end -}}

{{/* A recommendation counts when it has held so long: of those in the window the lowest to go up, the highest to go down. */}}
{{- define "trireme.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: {{ int .Values.scaling.scaleUpSeconds }}
scaleDown:
  stabilizationWindowSeconds: {{ int .Values.scaling.scaleDownSeconds }}
  selectPolicy: Max
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
    - {type: Percent, value: 50, periodSeconds: 60}
{{- end -}}

{{/* Of a server's metrics, by the labels that pod-monitor.yaml gives them. */}}
{{- define "trireme.scalingLabels" -}}
namespace: {{ .root.Release.Namespace | quote }}
service: {{ include "trireme.serverName" . | quote }}
{{- with .root.Values.scaling.cluster }}
cluster: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "trireme.scalingSelector" -}}
{{- $labels := fromYaml (include "trireme.scalingLabels" .) -}}
{{- $matchers := list -}}
{{- range $name := keys $labels | sortAlpha -}}
{{- $matchers = append $matchers (printf "%s=%q" $name (get $labels $name)) -}}
{{- end -}}
{{- join "," $matchers -}}
{{- end -}}

{{/* How many servers the requests would fill, running and waiting: the sum over pods of a pod's fullest model. It does
not depend on how many pods there are, so one that loads changes nothing. A scrape that failed leaves the last value for
three minutes; NaN leaves nothing, in place of 0. observability/rules/scaling.py records the same. */}}
{{- define "trireme.loadQuery" -}}
{{- $of := include "trireme.scalingSelector" . -}}
sum(
  max by (pod) (
    (last_over_time(trireme_requests_running{ {{- $of -}} }[3m]) + last_over_time(trireme_requests_waiting{ {{- $of -}} }[3m]))
    / (last_over_time(trireme_engine_max_num_seqs{ {{- $of -}} }[3m]) > 0)
  )
) >= 0
{{- end -}}

{{/* Of a server that computes prompts for others: the share of their time that its pods compute prompts. One prompt
fills a step, so that few of them run and wait where it has nothing left to give. A pod that is not scraped falls out
within two minutes; servers stay for scaleDownSeconds. */}}
{{- define "trireme.prefillTimeQuery" -}}
{{- $of := include "trireme.scalingSelector" . -}}
sum(
  max by (pod) (
    rate(trireme_engine_prefill_step_seconds_total{ {{- $of -}} }[2m])
  )
) >= 0
{{- end -}}

{{/* The same of KV caches. */}}
{{- define "trireme.kvUseQuery" -}}
{{- $of := include "trireme.scalingSelector" . -}}
sum(
  max by (pod) (
    last_over_time(trireme_kv_cache_usage_fraction{ {{- $of -}} }[3m])
  )
) >= 0
{{- end -}}
