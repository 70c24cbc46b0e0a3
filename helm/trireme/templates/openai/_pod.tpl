{{/* The pod of a gateway, for a Deployment and for a StatefulSet. */}}
{{- define "trireme.openaiPod" -}}
{{- $values := .Values -}}
{{- $openai := .Values.openai -}}
{{- $grpcTls := .Values.grpcTls -}}
metadata:
  labels:
    {{- include "trireme.openaiSelector" . | nindent 4 }}
  annotations:
    # What it stands before, with the deployment's rules for gateways. A part of the pod, as that of a server.
    trireme/deployment: |
      {{- $openai.deployment | trim | nindent 6 }}
    {{- with $openai.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "trireme.fullname" . | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  # Whole names alone, asked every two seconds: each would be tried in four other domains before.
  dnsConfig: {options: [{name: ndots, value: "1"}]}
  # The hook, the running requests, and what is left then: the ledger's last rows, connections.
  terminationGracePeriodSeconds: {{ add (int $openai.drainSeconds) (int (include "trireme.openaiExitSeconds" .)) 15 }}
  securityContext:
    {{- include "trireme.podSecurity" . | nindent 4 }}
  {{- with $openai.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $openai.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $openai.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- range .Values.spread.topologyKeys }}
    - maxSkew: 1
      topologyKey: {{ . | quote }}
      whenUnsatisfiable: {{ $values.spread.whenUnsatisfiable }}
      labelSelector:
        matchLabels:
          {{- include "trireme.openaiSelector" $ | nindent 10 }}
    {{- end }}
  containers:
    - name: gateway
      image: {{ include "trireme.image" (dict "image" (dict "repository" (default $values.image.repository $openai.image.repository) "digest" (default $values.image.digest $openai.image.digest)) "field" "image") }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - trireme
        - gateway
        - serve
        - --deployment
        - /etc/trireme/deployment/deployment.yaml
        {{- include "trireme.openaiUrls" . | trim | nindent 8 }}
        {{- if $grpcTls.directory }}
        - --server-ca-file
        - /etc/trireme/grpc-tls/ca.crt
        {{- with $grpcTls.serverName }}
        - --server-name
        - {{ . | quote }}
        {{- end }}
        {{- if $grpcTls.isMutual }}
        - --server-cert-file
        - /etc/trireme/grpc-tls/tls.crt
        - --server-key-file
        - /etc/trireme/grpc-tls/tls.key
        {{- end }}
        {{- end }}
        - --host
        - 0.0.0.0
        - --port
        - {{ $openai.port | quote }}
        - --cert-file
        - /etc/trireme/tls/tls.crt
        - --key-file
        - /etc/trireme/tls/tls.key
        {{- if $openai.keys.url }}
        - --keys
        - {{ $openai.keys.url | quote }}
        {{- else }}
        - --token-file
        - /etc/trireme/keys/keys.txt
        {{- end }}
        {{- with $openai.limits.url }}
        - --limits
        - {{ . | quote }}
        {{- end }}
        {{- with $openai.cache.url }}
        - --cache
        - {{ . | quote }}
        {{- end }}
        {{- with $openai.ledger.url }}
        - --ledger
        - {{ . | quote }}
        - --ledger-journal
        - /var/lib/trireme-journal/journal
        {{- end }}
        - --timeout-s
        - {{ $openai.timeoutSeconds | quote }}
        - --max-body-bytes
        - {{ mul 1048576 (int $openai.maxBodyMiB) | quote }}
        - --exit-timeout-s
        - {{ include "trireme.openaiExitSeconds" . | quote }}
        - --log-format
        - json
        {{- range $openai.extraOptions }}
        - {{ . | quote }}
        {{- end }}
      workingDir: /var/lib/trireme
      env:
        - {name: HOME, value: /tmp}
        - {name: XDG_CACHE_HOME, value: /tmp/cache}
        - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
        - {name: NVIDIA_VISIBLE_DEVICES, value: void}  # of the image it is `all`
        {{- with $openai.databaseSecret }}
        - name: PGPASSWORD
          valueFrom:
            secretKeyRef: {name: {{ . | quote }}, key: PGPASSWORD}
        {{- end }}
        {{- with $openai.redisSecret }}
        - name: REDISCLI_AUTH
          valueFrom:
            secretKeyRef: {name: {{ . | quote }}, key: REDISCLI_AUTH}
        {{- end }}
      ports:
        - {name: openai, containerPort: {{ $openai.port }}}
      startupProbe:
        httpGet: {path: /health/live, port: openai, scheme: HTTPS}
        periodSeconds: 1
        timeoutSeconds: 2
        failureThreshold: 120
      # A gateway is as good as any while one model answers; who asks for another one is told so.
      readinessProbe:
        httpGet: {path: "/health/ready?models=any", port: openai, scheme: HTTPS}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        httpGet: {path: /health/live, port: openai, scheme: HTTPS}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      lifecycle:
        preStop:  # requests are still taken while load balancers learn that the pod goes
          exec:
            command: [sleep, {{ $openai.drainSeconds | quote }}]
      securityContext:
        {{- include "trireme.containerSecurity" (dict "root" .) | nindent 8 }}
      resources:
        {{- $resources := dict "cpu" ($openai.resources.cpus | toString) "memory" (printf "%dGi" (int $openai.resources.memoryGiB)) "ephemeral-storage" "2Gi" }}
        requests: {{- toYaml $resources | nindent 10 }}
        limits: {{- toYaml $resources | nindent 10 }}
      volumeMounts:
        - {name: deployment, mountPath: /etc/trireme/deployment, readOnly: true}
        - {name: scratch, mountPath: /var/lib/trireme, subPath: work}
        - {name: scratch, mountPath: /tmp, subPath: tmp}
        - {name: tls, mountPath: /etc/trireme/tls, readOnly: true}
        {{- if $openai.keys.secret }}
        - {name: keys, mountPath: /etc/trireme/keys, readOnly: true}
        {{- end }}
        {{- if $grpcTls.directory }}
        - {name: grpc-tls, mountPath: /etc/trireme/grpc-tls, readOnly: true}
        {{- end }}
        {{- if $openai.ledger.url }}
        - {name: journal, mountPath: /var/lib/trireme-journal}
        {{- end }}
        {{- if .Values.releases.pull.enabled }}
        # For the chat templates of releases, by which tools and reasoning are read.
        - {name: releases, mountPath: {{ .Values.releases.pull.mountPath | quote }}, readOnly: true}
        {{- end }}
        {{- with concat .Values.extraVolumeMounts $openai.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: deployment
      downwardAPI:
        items:
          - path: deployment.yaml
            fieldRef: {fieldPath: "metadata.annotations['trireme/deployment']"}
    - name: scratch
      emptyDir: {sizeLimit: 1Gi}
    - name: tls
      secret: {secretName: {{ $openai.tls.secret | quote }}, defaultMode: 0440}
    {{- with $openai.keys.secret }}
    - name: keys  # a folder, no subPath: a key that changes is read without a new pod
      secret: {secretName: {{ . | quote }}, defaultMode: 0440}
    {{- end }}
    {{- if $grpcTls.directory }}
    - name: grpc-tls
      secret: {secretName: {{ $grpcTls.envoySecret | default $grpcTls.secret | quote }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.releases.pull.enabled }}
    - name: releases
      persistentVolumeClaim: {claimName: {{ .Values.releases.pull.claim | quote }}, readOnly: true}
    {{- end }}
    {{- with concat .Values.extraVolumes $openai.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
