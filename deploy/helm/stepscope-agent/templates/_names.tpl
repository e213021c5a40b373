{{- define "stepscope-agent.name" -}}
{{- if contains "stepscope-agent" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-stepscope-agent" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "stepscope-agent.selector" -}}
app.kubernetes.io/name: {{ include "stepscope-agent.name" . }}
{{- end -}}

{{- define "stepscope-agent.labels" -}}
{{ include "stepscope-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "stepscope-agent.image" -}}
{{- $repository := required "image.repository is needed: the name under which you pushed the image" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* agent.toml: what the chart decides, then `config`; a scalar or a list of JSON is one of TOML. */ -}}
{{- define "stepscope-agent.settings" -}}
{{- $web := dict "listen" (printf "0.0.0.0:%d" (int .Values.port)) -}}
{{- if .Values.tls.secretName -}}
{{- $_ := set $web "config_file" "/etc/stepscope-web/web.yml" -}}
{{- else -}}
{{- $_ := set $web "insecure" true -}}
{{- end -}}
{{- if .Values.token.secretName -}}
{{- $_ := set $web "token_file" "/etc/stepscope-token/token" -}}
{{- end -}}
{{- $decided := dict "web" $web -}}
{{- if ne .Values.nodeCondition.report "off" -}}
{{- $_ := set $decided "kubernetes" (dict "report" .Values.nodeCondition.report) -}}
{{- end -}}
{{- $sections := mergeOverwrite $decided (deepCopy .Values.config) -}}
{{- range $section := keys $sections | sortAlpha }}
[{{ $section }}]
{{- range $key, $value := index $sections $section }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{ end -}}
{{- end -}}
