{{- define "oncebox.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains "oncebox" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-oncebox" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "oncebox.selector" -}}
app.kubernetes.io/name: oncebox
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: replica
{{- end -}}

{{- define "oncebox.redisSelector" -}}
app.kubernetes.io/name: oncebox-redis
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end -}}

{{- define "oncebox.labels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "oncebox.redisIsOurs" -}}
{{- if and .Values.redis.trial.enabled (not .Values.redis.url) (not .Values.redis.urlSecret) -}}yes{{- end -}}
{{- end -}}

{{/* Any user, nothing to gain, nothing to write to. */}}
{{- define "oncebox.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "oncebox.grace" -}}
{{- add .Values.shutdown.preStop .Values.shutdown.delay .Values.shutdown.grace 15 -}}
{{- end -}}

{{- define "oncebox.secretVariable" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .secret }}, key: {{ .key }}, optional: {{ .optional }}}
{{- end -}}
