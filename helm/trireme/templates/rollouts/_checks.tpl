{{/* What must be there for the rollouts' controller, and what must not be together. */}}
{{- define "trireme.rolloutsChecks" -}}
{{- $rollouts := .Values.rollouts -}}
{{- $names := keys .Values.servers | sortAlpha | join ", " -}}
{{- if not .Values.remoteControl.secret -}}
{{- fail "remoteControl.secret is missing, and rollouts.enabled is true: the servers would answer no rollout; make the Secret with tls.crt, tls.key and keys.txt, and name it" -}}
{{- end -}}
{{- if not $rollouts.access -}}
{{- fail "rollouts.access is missing, and rollouts.enabled is true: the controller has no key to the servers; make a Secret with key.txt, one of the keys in keys.txt of remoteControl.secret, and ca.crt, the authority of its certificate, and name it" -}}
{{- end -}}
{{- if and $rollouts.server .Values.servers (not (hasKey .Values.servers $rollouts.server)) -}}
{{- fail (printf "rollouts.server is %q, and servers are %s: name one of them" $rollouts.server $names) -}}
{{- end -}}
{{- with (get .Values.servers $rollouts.server | default dict).stable -}}
{{- fail (printf "rollouts.server is %q, a candidate itself; name the server of the stable release, %s" $rollouts.server .) -}}
{{- end -}}
{{- with $rollouts.store -}}
{{- if and .url .claim -}}
{{- fail (printf "rollouts.store.claim is %q, and rollouts.store.url names a database: rollouts are kept in one place; leave one of them out" .claim) -}}
{{- end -}}
{{- if and .secret (not .url) -}}
{{- fail (printf "rollouts.store.secret is %q, and rollouts.store.url is empty: a file has no password; name the database, or leave the Secret out" .secret) -}}
{{- end -}}
{{- /* It is not shown. */ -}}
{{- if or (regexMatch "://[^/?]*:[^/?]*@" .url) (regexMatch "[?&](ssl)?password=" .url) -}}
{{- fail "rollouts.store.url has a password, which everybody who may read the Deployment would see: leave it out, and name a Secret with the key PGPASSWORD in rollouts.store.secret" -}}
{{- end -}}
{{- if and .url $.Values.network.enabled (not $rollouts.egress) -}}
{{- fail "rollouts.egress is empty, and rollouts.store.url names a database: the network policy would keep the controller from it; allow it there, such as [{to: [{ipBlock: {cidr: 10.0.0.5/32}}], ports: [{port: 5432}]}]" -}}
{{- end -}}
{{- end -}}
{{- end -}}
