{{/* The pod of a server, for a Deployment and for a LeaderWorkerSet. Takes root, name, server and role: alone, leader or
worker (of a group). */}}
{{- define "trireme.podTemplate" -}}
{{- $values := .root.Values -}}
{{- $isWorker := eq .role "worker" -}}
{{- $isGroup := ne .role "alone" -}}
{{- $isPulled := and $values.releases.pull.enabled .server.releaseDirs -}}
metadata:
  # Without the chart's version: another one is no reason to load every engine again.
  labels:
    {{- include "trireme.serverSelector" . | nindent 4 }}
  annotations:
    # What it serves. A part of the pod: an older one that is started again, or brought back, serves what it served.
    trireme/deployment: |
      {{- .server.deployment | trim | nindent 6 }}
    {{- with .server.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "trireme.fullname" .root | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  {{- with .server.priorityClassName | default $values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  terminationGracePeriodSeconds: {{ include "trireme.graceSeconds" . }}
  securityContext:
    {{- include "trireme.podSecurity" .root | nindent 4 }}
  {{- with .server.nodeSelector | default $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .server.tolerations | default (ternary $values.tolerations list (gt (int .server.gpus) 0)) }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .server.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not $isGroup }}
  topologySpreadConstraints:
    {{- include "trireme.spread" . | trim | nindent 4 }}
  {{- end }}
  {{- if $isPulled }}
  initContainers:
    - name: pull
      image: {{ include "trireme.image" (dict "image" (merge dict (.server.image | default dict) $values.image) "field" "image") }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [trireme, pull, --deployment, /etc/trireme/deployment/deployment.yaml, --to, /var/cache/trireme, --out, /var/lib/trireme/deployment.yaml, --max-bytes, {{ $values.releases.pull.maxBytes | quote }}]
      workingDir: /var/lib/trireme
      securityContext:
        {{- include "trireme.containerSecurity" (dict "root" .root) | nindent 8 }}
      resources:
        requests: {cpu: "1", memory: 1Gi}
        limits: {cpu: "1", memory: 1Gi}
      volumeMounts:
        - {name: deployment, mountPath: /etc/trireme/deployment, readOnly: true}
        - {name: scratch, mountPath: /var/lib/trireme, subPath: work}
        - {name: scratch, mountPath: /tmp, subPath: tmp}
        - {name: releases, mountPath: {{ $values.releases.pull.mountPath | quote }}, readOnly: true}
        - {name: cache, mountPath: /var/cache/trireme}
  {{- end }}
  containers:
    - name: triton
      image: {{ include "trireme.image" (dict "image" (merge dict (.server.image | default dict) $values.image) "field" "image") }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command:
        {{- include "trireme.command" (merge (dict "isPulled" $isPulled) .) | trim | nindent 8 }}
      workingDir: /var/lib/trireme
      env:
        - {name: HOME, value: /tmp}
        - {name: XDG_CACHE_HOME, value: /tmp/cache}
        - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
        {{- if not (int .server.gpus) }}
        - {name: NVIDIA_VISIBLE_DEVICES, value: void}  # of the image it is `all`: on a node with GPUs those of others
        {{- end }}
        {{- with concat $values.extraEnv (.server.extraEnv | default list) (ternary $values.multiNode.env list $isGroup) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if $isWorker }}
      ports:
        - {name: ssh, containerPort: 2222}
      readinessProbe:
        tcpSocket: {port: ssh}
        periodSeconds: 5
      livenessProbe:
        tcpSocket: {port: ssh}
        periodSeconds: 10
        failureThreshold: 6
      {{- else }}
      ports:
        - {name: http, containerPort: {{ $values.ports.http }}}
        - {name: grpc, containerPort: {{ $values.ports.grpc }}}
        - {name: metrics, containerPort: {{ $values.ports.metrics }}}
        - {name: health, containerPort: {{ $values.ports.health }}}
        {{- if $values.remoteControl.secret }}
        - {name: control, containerPort: {{ $values.remoteControl.port }}}
        {{- end }}
        {{- range .server.kvEventPorts }}
        - {name: kv-{{ . }}, containerPort: {{ . }}}
        {{- end }}
      startupProbe:
        httpGet: {path: /started, port: health}
        periodSeconds: 5
        timeoutSeconds: 3
        # A leader answers when its workers are there, for which it waits as long.
        failureThreshold: {{ div (add (mul (ternary 2 1 $isGroup) (int $values.startup.timeoutSeconds)) 4) 5 }}
      readinessProbe:
        httpGet: {path: /ready, port: health}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 1
      livenessProbe:
        httpGet: {path: /live, port: health}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      lifecycle:
        preStop:
          exec:
            command: [trireme, drain]
      {{- end }}
      securityContext:
        {{- include "trireme.containerSecurity" . | nindent 8 }}
      resources:
        {{- include "trireme.resources" . | nindent 8 }}
      volumeMounts:
        - {name: deployment, mountPath: /etc/trireme/deployment, readOnly: true}
        - {name: scratch, mountPath: /var/lib/trireme, subPath: work}
        - {name: scratch, mountPath: /tmp, subPath: tmp}
        - {name: shared-memory, mountPath: /dev/shm}
        {{- if and $values.grpcTls.directory (not $isWorker) }}
        - {name: grpc-tls, mountPath: {{ $values.grpcTls.directory | quote }}, readOnly: true}
        {{- end }}
        {{- if and $values.controlKey.secret (not $isWorker) }}
        - {name: control-key, mountPath: /etc/trireme/control, readOnly: true}
        {{- end }}
        {{- if and $values.remoteControl.secret (not $isWorker) }}
        - {name: remote-control, mountPath: /etc/trireme/remote-control, readOnly: true}
        {{- end }}
        {{- if $isGroup }}
        - {name: ssh, mountPath: /etc/trireme/ssh, readOnly: true}
        {{- end }}
        {{- if $isPulled }}
        - {name: cache, mountPath: /var/cache/trireme}
        {{- if $values.rollouts.enabled }}
        # A rollout names a release by its folder there, and nobody has pulled it.
        - {name: releases, mountPath: {{ $values.releases.pull.mountPath | quote }}, readOnly: true}
        {{- end }}
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: deployment
      downwardAPI:
        items:
          - path: deployment.yaml
            fieldRef: {fieldPath: "metadata.annotations['trireme/deployment']"}
    - name: scratch
      emptyDir: {sizeLimit: {{ $values.resources.scratchGiB }}Gi}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ include "trireme.sharedMemory" . }}}
    {{- if and $values.grpcTls.directory (not $isWorker) }}
    - name: grpc-tls
      secret: {secretName: {{ $values.grpcTls.secret | quote }}, defaultMode: 0440}
    {{- end }}
    {{- if and $values.controlKey.secret (not $isWorker) }}
    - name: control-key
      secret:
        secretName: {{ $values.controlKey.secret | quote }}
        defaultMode: 0440
        items: [{key: {{ $values.controlKey.key | quote }}, path: control-key}]
    {{- end }}
    {{- if and $values.remoteControl.secret (not $isWorker) }}
    - name: remote-control
      secret: {secretName: {{ $values.remoteControl.secret | quote }}, defaultMode: 0440}
    {{- end }}
    {{- if $isGroup }}
    - name: ssh
      secret: {secretName: {{ $values.multiNode.sshSecret | quote }}, defaultMode: 0440, items: [{key: ssh-privatekey, path: ssh-privatekey}]}
    {{- end }}
    {{- if $isPulled }}
    - name: releases
      persistentVolumeClaim: {claimName: {{ $values.releases.pull.claim | quote }}, readOnly: true}
    - name: cache
      {{- if $values.releases.pull.cacheHostPath }}
      hostPath: {path: {{ $values.releases.pull.cacheHostPath | quote }}, type: Directory}
      {{- else }}
      persistentVolumeClaim: {claimName: {{ $values.releases.pull.cacheClaim | quote }}}
      {{- end }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "trireme.command" -}}
{{- $values := .root.Values -}}
{{- if eq .role "leader" }}
- trireme
- group
- leader
- --ssh-dir
- /etc/trireme/ssh
- --workers-timeout-s
- {{ $values.startup.timeoutSeconds | quote }}
- --
{{- end }}
{{- if eq .role "worker" }}
- trireme
- group
- worker
- --ssh-dir
- /etc/trireme/ssh
- --leader-timeout-s
- {{ $values.startup.timeoutSeconds | quote }}
- --exit-timeout-s
- {{ sub (int (include "trireme.graceSeconds" .)) 5 | quote }}  # soon enough to say which ranks are left
{{- else }}
{{- if eq .role "alone" }}
- trireme
{{- end }}
- serve
- --deployment
- {{ ternary "/var/lib/trireme/deployment.yaml" "/etc/trireme/deployment/deployment.yaml" (not (empty .isPulled)) }}
{{- range list "http" "grpc" "metrics" "health" }}
- --{{ . }}-port
- {{ get $values.ports . | quote }}
{{- end }}
- --ready-timeout-s
- {{ $values.startup.timeoutSeconds | quote }}
- --exit-delay-s
- {{ $values.drain.delaySeconds | quote }}
- --exit-timeout-s
- {{ include "trireme.drainSeconds" . | quote }}
- --verbose
{{- if $values.controlKey.secret }}
- --control-key-file
- /etc/trireme/control/control-key
{{- end }}
{{- if $values.remoteControl.secret }}
- --remote-host
- 0.0.0.0
- --remote-port
- {{ $values.remoteControl.port | quote }}
- --remote-cert-file
- /etc/trireme/remote-control/tls.crt
- --remote-key-file
- /etc/trireme/remote-control/tls.key
- --remote-token-file
- /etc/trireme/remote-control/keys.txt
{{- end }}
{{- end }}
{{- end -}}

{{- define "trireme.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurity.user }}
runAsGroup: {{ .Values.podSecurity.group }}
fsGroup: {{ .Values.podSecurity.group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "trireme.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "trireme.spread" -}}
{{- $context := . -}}
{{- range .root.Values.spread.topologyKeys }}
- maxSkew: 1
  topologyKey: {{ . | quote }}
  whenUnsatisfiable: {{ $context.root.Values.spread.whenUnsatisfiable }}
  labelSelector:
    matchLabels:
      {{- include "trireme.serverSelector" $context | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end -}}
