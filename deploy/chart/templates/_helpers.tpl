{{/* The reasons for what is in these templates are in deploy/base, deploy/overlays and deploy/components. A test keeps both equal. */}}

{{- define "rowkeeper.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}

{{- define "rowkeeper.labels" -}}
app.kubernetes.io/name: {{ include "rowkeeper.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "-" }}
{{- end -}}

{{- define "rowkeeper.selector" -}}
app.kubernetes.io/name: {{ include "rowkeeper.name" . }}
{{- end -}}

{{/* backup are the labels of the pods that write backups. */}}
{{- define "rowkeeper.backup" -}}
app.kubernetes.io/instance: {{ include "rowkeeper.name" . }}
app.kubernetes.io/component: backup
{{- end -}}

{{/* backupPod, backupContainer and backupVolumes are what the pods of backups and of drills share. */}}
{{- define "rowkeeper.backupPod" -}}
restartPolicy: Never
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "rowkeeper.backupContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "rowkeeper.backupVolumes" -}}
- name: backup
  persistentVolumeClaim:
    claimName: {{ include "rowkeeper.name" . }}-backup
- name: database
  projected:
    defaultMode: 0440
    sources:
    - configMap:
        name: {{ include "rowkeeper.name" . }}-database
    - secret:
        name: {{ include "rowkeeper.password" . }}
        optional: true
{{- end -}}

{{/* toDNS and toDatabase are rules of network policies. */}}
{{- define "rowkeeper.toDNS" -}}
- to:
  - namespaceSelector:
      matchLabels:
        kubernetes.io/metadata.name: kube-system
  ports:
  - {port: 53, protocol: UDP}
  - {port: 53, protocol: TCP}
{{- end -}}

{{- define "rowkeeper.toDatabase" -}}
- ports:
  - port: {{ .Values.database.port }}
  {{- with .Values.networkPolicy.database }}
  to:
  {{- range . }}
  - ipBlock:
      cidr: {{ . | quote }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "rowkeeper.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "rowkeeper.url" -}}
{{- if .Values.sqlite.enabled -}}
sqlite:///var/lib/rowkeeper/state.db
{{- else -}}
{{- $url := required "name the database by database.url, or set sqlite.enabled" .Values.database.url -}}
{{- if and (or .Values.database.password .Values.database.existingSecret) (not (contains "password_file=" $url)) -}}
{{- $url = printf "%s%spassword_file=/etc/rowkeeper/database/password" $url (contains "?" $url | ternary "&" "?") -}}
{{- end -}}
{{ $url }}
{{- end -}}
{{- end -}}

{{- define "rowkeeper.password" -}}
{{ .Values.database.existingSecret | default (include "rowkeeper.name" . | printf "%s-database") }}
{{- end -}}

{{/* ownCertificate is not empty if the server makes its serving certificate by itself. */}}
{{- define "rowkeeper.ownCertificate" -}}
{{- if not (or .Values.certificates.certManager .Values.certificates.cert) }}true{{ end -}}
{{- end -}}

{{/* check refuses values that contradict each other. */}}
{{- define "rowkeeper.check" -}}
{{- with .Values -}}
{{- if and .sqlite.enabled .database.url }}{{ fail "database.url and sqlite.enabled exclude each other: choose one" }}{{ end -}}
{{- if and .sqlite.enabled .backup.enabled }}{{ fail "backup.enabled needs a database server: a volume with SQLite is one pod's alone; docs/operate/database.md says how to back it up" }}{{ end -}}
{{- $given := or .certificates.ca .certificates.cert .certificates.key -}}
{{- if and .certificates.certManager $given }}{{ fail "certificates.certManager and a certificate exclude each other: choose one" }}{{ end -}}
{{- if and $given (not (and .certificates.ca .certificates.cert .certificates.key)) }}{{ fail "the serving certificate is not complete: give certificates.ca, cert and key, which \"rowkeeper certs\" writes, or none of them" }}{{ end -}}
{{- if .etcd.enabled -}}
{{- if .sqlite.enabled }}{{ fail "etcd.enabled needs a database server: a volume with SQLite is one pod's alone" }}{{ end -}}
{{- if not .etcd.secret }}{{ fail "name the Secret with tls.crt, tls.key and ca.crt by etcd.secret" }}{{ end -}}
{{- if or $given .certificates.certManager }}{{ fail "etcd.enabled takes its certificates from etcd.secret, and none from certificates" }}{{ end -}}
{{- if .prometheus }}{{ fail "prometheus is for a server behind APIServices, and not for etcd.enabled: scrape the port 2381 of its pods" }}{{ end -}}
{{- end -}}
{{- if not .groups }}{{ fail "name at least one API group in groups" }}{{ end -}}
{{- end -}}
{{- end -}}
