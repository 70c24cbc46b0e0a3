{{/* What follows from a server's values: its times, its replicas, its resources. Each takes root, name and server. */}}

{{/* Seconds for running streams to end. */}}
{{- define "trireme.drainSeconds" -}}
{{- $longest := int .server.longestAnswerSeconds -}}
{{- if kindIs "invalid" .root.Values.drain.timeoutSeconds -}}{{ $longest }}
{{- else -}}{{ min $longest (int .root.Values.drain.timeoutSeconds) }}{{- end -}}
{{- end -}}

{{/* The delay, the streams, and what the server needs then: to cancel what is left, to stop Triton, and for its engines to
free their GPUs. */}}
{{- define "trireme.graceSeconds" -}}
{{- add (int .root.Values.drain.delaySeconds) (int (include "trireme.drainSeconds" .)) (int .server.endSeconds) -}}
{{- end -}}

{{/* A candidate has its share of the stable server's replicas, and those that a site gives it at least, or one. */}}
{{- define "trireme.replicas" -}}
{{- $traffic := get .root.Values.traffic (default "" .server.stable) | default dict -}}
{{- if and .server.stable (eq (default "" $traffic.candidate) .name) -}}
{{- $all := int (get .root.Values.servers .server.stable).replicas -}}
{{- max (int (default 1 .server.replicas)) (div (add (mul $all (int (default 0 $traffic.candidateWeight))) 9999) 10000) -}}
{{- else -}}{{ int (default 1 .server.replicas) }}{{- end -}}
{{- end -}}

{{- define "trireme.scalingKind" -}}
{{- $own := .server.scaling | default dict -}}
{{ default .root.Values.scaling.kind $own.kind }}
{{- end -}}

{{/* How many servers the spare GPUs hold; one without GPUs always has room for one more. */}}
{{- define "trireme.surge" -}}
{{- $gpus := mul (int .server.gpus) (int .server.nodes) -}}
{{- if $gpus -}}{{ div (int .root.Values.rollout.spareGpus) $gpus }}{{- else -}}1{{- end -}}
{{- end -}}

{{- define "trireme.resources" -}}
{{- if .server.resources -}}
{{ toYaml .server.resources }}
{{- else -}}
{{- $r := .root.Values.resources -}}
{{- $gpus := int .server.gpus -}}
{{- $network := ternary .root.Values.multiNode.networkResources dict (gt (int .server.nodes) 1) -}}
{{- $all := merge (dict
      "cpu" (add (int $r.cpus) (mul (int $r.cpusPerGpu) $gpus) | toString)
      "memory" (printf "%dGi" (add (int $r.memoryGiB) (mul (int $r.memoryGiBPerGpu) $gpus)))
      "ephemeral-storage" (printf "%dGi" (add 1 (int $r.scratchGiB)))) $network -}}
{{- if $gpus -}}{{- $_ := set $all $r.gpu (toString $gpus) -}}{{- end -}}
requests: {{- toYaml $all | nindent 2 }}
limits: {{- toYaml $all | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "trireme.sharedMemory" -}}
{{- $r := .root.Values.resources -}}
{{- printf "%dGi" (add (int $r.sharedMemoryGiB) (mul (int $r.sharedMemoryGiBPerGpu) (int .server.gpus))) -}}
{{- end -}}

{{/* The names of Triton's models on a server, with spaces between. */}}
{{- define "trireme.tritonNames" -}}
{{- $names := .extraModels -}}
{{- range .models }}{{ $names = concat $names .tritonNames }}{{ end -}}
{{- join " " $names -}}
{{- end -}}

{{/* Of these, those that `traffic` divides: of several models on one server a candidate is one's. */}}
{{- define "trireme.splitNames" -}}
{{- $names := list -}}
{{- range $other := compact (list .traffic.candidate (default dict .traffic.mirror).server) -}}
{{- $names = concat $names (splitList " " (include "trireme.tritonNames" (get $.root.Values.servers $other))) | uniq -}}
{{- end -}}
{{- join " " $names -}}
{{- end -}}

{{- define "trireme.restNames" -}}
{{- $split := splitList " " (include "trireme.splitNames" .) -}}
{{- $names := list -}}
{{- range splitList " " (include "trireme.tritonNames" .server) }}{{ if not (has . $split) }}{{ $names = append $names . }}{{ end }}{{ end -}}
{{- join " " $names -}}
{{- end -}}
