{{- define "flight.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "flight.selector" -}}
app.kubernetes.io/name: flight-shuffle
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "flight.labels" -}}
{{ include "flight.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "flight.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "flight.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* Bytes of a size as the server (64MiB, 64MB) or Kubernetes (64Mi, 64M) writes it. */ -}}
{{- define "flight.bytes" -}}
{{- $text := ternary (int64 .) . (kindIs "float64" .) | toString -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $unit := trimPrefix $number $text | trim | lower | trimSuffix "b" -}}
{{- $sizes := dict "" 1 "k" 1e3 "m" 1e6 "g" 1e9 "t" 1e12 "ki" 1024 "mi" 1048576 "gi" 1073741824 "ti" 1099511627776 -}}
{{- if not (and $number (hasKey $sizes $unit)) -}}
{{- fail (printf "%q is no size: write it as 4GiB (of a setting) or 4Gi (of a resource)" $text) -}}
{{- end -}}
{{- mulf (float64 $number) (get $sizes $unit) | int64 -}}
{{- end -}}

{{- /* Resources as given, with the memory that the settings need. */ -}}
{{- define "flight.resources" -}}
{{- $limit := include "flight.bytes" .Values.settings.memory_limit | int64 -}}
{{- $needed := add $limit (mul 512 1048576) -}}
{{- $memory := printf "%dMi" (div (add $needed 1048575) 1048576) -}}
{{- $given := deepCopy .Values.resources -}}
{{- $resources := mergeOverwrite (dict "requests" (dict "memory" $memory) "limits" (dict "memory" $memory)) $given -}}
{{- range $kind := list "limits" "requests" -}}
{{- $found := index $resources $kind "memory" -}}
{{- if lt (include "flight.bytes" $found | int64) $needed -}}
{{- fail (printf "resources.%s.memory %s is too small: settings.memory_limit %s and 512 MiB beside it are %s" $kind (toString $found) (toString $.Values.settings.memory_limit) $memory) -}}
{{- end -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* What agrees with nothing that Kubernetes checks. */ -}}
{{- define "flight.check" -}}
{{- with .Values.access -}}
{{- if not (or .tokenSecret.name .tokenFileSecret.name $.Values.tls.clientCaKey .insecure) -}}
{{- fail "access: name a Secret (tokenSecret.name or tokenFileSecret.name), or set tls.clientCaKey or access.insecure" -}}
{{- end -}}
{{- end -}}
{{- $disk := include "flight.bytes" .Values.settings.disk_limit | int64 -}}
{{- if ge $disk (include "flight.bytes" .Values.persistence.size | int64) -}}
{{- fail (printf "settings.disk_limit %s must be below persistence.size %s: a full volume fails all writes%s" .Values.settings.disk_limit .Values.persistence.size (ternary "" ", and without persistence the pod is evicted" .Values.persistence.enabled)) -}}
{{- end -}}
{{- if and .Values.tls.clientCaKey (not .Values.tls.secretName) -}}
{{- fail "tls.clientCaKey is a key of the Secret tls.secretName, which is empty" -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled (not .Values.prometheusRule.rules) -}}
{{- fail "prometheusRule.rules is empty: --set-file prometheusRule.rules=deploy/prometheus/alerts.yaml" -}}
{{- end -}}
{{- end -}}

{{- /* What clients connect to: each server, by its own name. */ -}}
{{- define "flight.locations" -}}
{{- $scheme := ternary "grpc+tls" "grpc" (not (empty .Values.tls.secretName)) -}}
{{- $locations := list -}}
{{- range $number := until (int .Values.replicas) -}}
{{- $locations = append $locations (printf "%s://%s-%d.%s.%s.svc:8815" $scheme (include "flight.name" $) $number (include "flight.name" $) $.Release.Namespace) -}}
{{- end -}}
{{- join "," $locations -}}
{{- end -}}
