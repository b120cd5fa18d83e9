package beside

import (
	"fmt"
	"strings"
	"testing"
)

// TestBuiltin: what the part of the core API that our server has makes of objects, good and bad, is
// what kube-apiserver makes of them.
func TestBuiltin(t *testing.T) {
	a := startBoth(t)
	const (
		configMap = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: default, name: a}, data: {key: value}}"
		secret    = "{apiVersion: v1, kind: Secret, metadata: {namespace: default, name: a}, data: {key: dmFsdWU=}}"
		account   = "{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: default, name: a}, " +
			"secrets: [{name: b}], imagePullSecrets: [{name: c}]}"
		event = "{apiVersion: v1, kind: Event, metadata: {namespace: default, name: a}, involvedObject: {" +
			"namespace: default, kind: Pod, name: p}, reason: Test, message: m, type: Normal}"
		newEvent = "{apiVersion: events.k8s.io/v1, kind: Event, metadata: {namespace: default, name: a}, " +
			"eventTime: '2026-01-02T03:04:05.000006Z', regarding: {namespace: default, kind: Pod, name: p}, " +
			"reason: Test, action: Try, note: text, type: Normal, reportingController: example.com/c, reportingInstance: i}"
		lease = "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: default, name: a}, " +
			"spec: {holderIdentity: me, leaseDurationSeconds: 15, leaseTransitions: 1, " +
			"acquireTime: '2026-01-02T03:04:05.000006Z', renewTime: '2026-01-02T03:04:05.000006Z'}}"
		namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: a}}"
		role      = "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {namespace: default, " +
			"name: a}, rules: [{verbs: [get], apiGroups: [''], resources: [pods]}]}"
		clusterRole = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: a}, " +
			"rules: [{verbs: [get], apiGroups: [''], resources: [pods]}, {verbs: [get], nonResourceURLs: [/a]}]}"
		binding = "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {namespace: default, " +
			"name: a}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, " +
			"subjects: [{kind: User, name: u}, {kind: Group, name: g}, {kind: ServiceAccount, name: s, namespace: ns}]}"
		flow = "{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: a}, spec: {" +
			"matchingPrecedence: 500, priorityLevelConfiguration: {name: global-default}, " +
			"distinguisherMethod: {type: ByUser}, rules: [{subjects: [{kind: User, user: {name: u}}, " +
			"{kind: Group, group: {name: g}}, {kind: ServiceAccount, serviceAccount: {name: s, namespace: ns}}], " +
			"resourceRules: [{verbs: [get], apiGroups: [''], resources: [pods], namespaces: [default]}], " +
			"nonResourceRules: [{verbs: [list], nonResourceURLs: [/a]}]}]}}"
		level = "{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: PriorityLevelConfiguration, " +
			"metadata: {name: a}, spec: {type: Limited, limited: {nominalConcurrencyShares: 5, " +
			"limitResponse: {type: Queue, queuing: {queues: 16, handSize: 4, queueLengthLimit: 10}}}}}"
		quota = "{apiVersion: v1, kind: ResourceQuota, metadata: {namespace: default, name: a}, " +
			"spec: {hard: {pods: 3}, scopes: [BestEffort]}}"
	)
	objects := []string{configMap, secret, account, event, newEvent, lease, namespace, role, clusterRole,
		binding, flow, level, quota}
	for _, object := range objects {
		if got := a.same(t, object, "try", object); strings.HasPrefix(got, "4") {
			t.Fatalf("%s: %s", object, got)
		}
		// These hold for all metadata.
		for _, metadata := range []string{"name: A", "name: a.b", "name: a_b", "name: ''", "name: a/b",
			"name: " + strings.Repeat("a", 254), "name: " + strings.Repeat("a", 64),
			"name: a, labels: {'a b': c}", "name: a, labels: {a: 'b c'}", "name: a, labels: {a/b/c: d}",
			"name: a, annotations: {'-a': b}", "name: a, finalizers: [a]", "name: a, finalizers: ['']",
			"name: a, finalizers: [example.com/a, foregroundDeletion, orphan]",
			"name: a, ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: u, controller: true}, " +
				"{apiVersion: v1, kind: Pod, name: q, uid: v, controller: true}]",
			"name: a, generation: 7", "name: a, namespace: other", "name: a, uid: u, resourceVersion: '7'",
			"name: a, selfLink: /a, deletionGracePeriodSeconds: 3", "name: a, nonsense: 1"} {
			a.same(t, metadata+" of "+object, "try", strings.Replace(object, "name: a}", metadata+"}", 1))
		}
	}
	for _, c := range []struct{ object, from, to string }{
		{configMap, "{key: value}", "{'a b': c}"}, {configMap, "{key: value}", "{'..': c}"},
		{configMap, "{key: value}", "{..a: c}"}, {configMap, "{key: value}", "{'': c}"},
		{configMap, "{key: value}", "{key: v}, binaryData: {key: dg==}"},
		{configMap, "{key: value}", "{key: v}, binaryData: {other: dg==}, immutable: true"},
		{configMap, "{key: value}", "{key: v}, binaryData: {other: 'v'}"},
		{configMap, "value}", strings.Repeat("v", 1<<20) + "}"},
		{configMap, "value}", strings.Repeat("v", 1<<20-3) + "}"},
		{secret, "{key: dmFsdWU=}", "{'a b': dmFsdWU=}"}, {secret, "{key: dmFsdWU=}", "{key: value!}"},
		{secret, "{key: dmFsdWU=}", "{key: dmFsdWU=}, stringData: {key: other, more: text}"},
		{secret, "{key: dmFsdWU=}", "{key: dmFsdWU=}, type: kubernetes.io/tls"},
		{secret, "{key: dmFsdWU=}", "{tls.crt: '', tls.key: ''}, type: kubernetes.io/tls"},
		{secret, "{key: dmFsdWU=}", "{key: dmFsdWU=}, type: kubernetes.io/dockercfg"},
		{secret, "{key: dmFsdWU=}", "{.dockercfg: dmFsdWU=}, type: kubernetes.io/dockercfg"},
		{secret, "{key: dmFsdWU=}", "{.dockerconfigjson: e30=}, type: kubernetes.io/dockerconfigjson"},
		{secret, "{key: dmFsdWU=}", "{.dockerconfigjson: ew==}, type: kubernetes.io/dockerconfigjson"},
		{secret, "{key: dmFsdWU=}", "{username: dQ==}, type: kubernetes.io/basic-auth"},
		{secret, "{key: dmFsdWU=}", "{key: dQ==}, type: kubernetes.io/basic-auth"},
		{secret, "{key: dmFsdWU=}", "{key: dQ==}, type: kubernetes.io/ssh-auth"},
		{secret, "{key: dmFsdWU=}", "{key: dQ==}, type: kubernetes.io/service-account-token"},
		{secret, "{key: dmFsdWU=}", "{key: dQ==}, type: example.com/mine, immutable: true"},
		{account, "secrets: [{name: b}]", "secrets: [{name: ''}], automountServiceAccountToken: false"},
		{account, "imagePullSecrets: [{name: c}]", "imagePullSecrets: [{}]"},
		{event, "type: Normal", "type: Odd"}, {event, "reason: Test", "reason: ''"},
		{event, "namespace: default, kind: Pod", "namespace: other, kind: Pod"},
		{event, "namespace: default, kind: Pod", "kind: Pod"}, {event, "kind: Pod, ", "kind: Node, "},
		{event, "type: Normal", "count: 3, series: {count: 1}"},
		{event, "type: Normal", "eventTime: '2026-01-02T03:04:05.000006Z'"},
		{event, "type: Normal", "eventTime: '2026-01-02T03:04:05.000006Z', reportingComponent: c, " +
			"reportingInstance: i, action: a"},
		{event, "type: Normal", "firstTimestamp: '2026-01-02T03:04:05Z', source: {component: c, host: h}"},
		{newEvent, "type: Normal", "type: Odd"}, {newEvent, "reason: Test, ", ""},
		{newEvent, "action: Try, ", ""}, {newEvent, "reportingController: example.com/c, ", ""},
		{newEvent, "reportingInstance: i", "reportingInstance: ''"},
		{newEvent, "reportingController: example.com/c", "reportingController: 'a b'"},
		{newEvent, "note: text", "note: " + strings.Repeat("n", 1025)},
		{newEvent, "reason: Test", "reason: " + strings.Repeat("r", 129)},
		{newEvent, "action: Try", "action: " + strings.Repeat("r", 129)},
		{newEvent, "reportingInstance: i", "reportingInstance: " + strings.Repeat("i", 129)},
		{newEvent, "type: Normal", "type: Normal, series: {count: 1, lastObservedTime: '2026-01-02T03:04:05.000006Z'}"},
		{newEvent, "type: Normal", "type: Normal, series: {count: 3, lastObservedTime: '2026-01-02T03:04:05.000006Z'}"},
		{newEvent, "type: Normal", "type: Normal, series: {count: 3}"},
		{newEvent, "type: Normal", "type: Normal, deprecatedCount: 3"},
		{newEvent, "eventTime: '2026-01-02T03:04:05.000006Z', ", ""},
		{newEvent, "namespace: default, kind: Pod", "namespace: other, kind: Pod"},
		{newEvent, "namespace: default, kind: Pod", "kind: Node"},
		{lease, "leaseDurationSeconds: 15", "leaseDurationSeconds: 0"},
		{lease, "leaseTransitions: 1", "leaseTransitions: -1"},
		{lease, "holderIdentity: me", "holderIdentity: ''"},
		{lease, "holderIdentity: me", "strategy: OldestEmulationVersion"},
		{lease, "holderIdentity: me", "strategy: a b, preferredHolder: you"},
		{lease, "holderIdentity: me", "preferredHolder: you"},
		{lease, "renewTime: '2026-01-02T03:04:05.000006Z'", "renewTime: yesterday"},
		{namespace, "}}", "}, spec: {finalizers: [example.com/a]}}"},
		{namespace, "}}", "}, spec: {finalizers: [a]}}"},
		{namespace, "}}", "}, status: {phase: Terminating}}"},
		{namespace, "}}", ", labels: {kubernetes.io/metadata.name: b}}}"},
		{role, "verbs: [get], ", ""}, {role, "apiGroups: [''], ", ""}, {role, "resources: [pods]", "resources: []"},
		{role, "resources: [pods]", "resources: [pods], nonResourceURLs: [/a]"},
		{role, ", apiGroups: [''], resources: [pods]", ", nonResourceURLs: [/a]"},
		{role, "resources: [pods]", "resources: [pods], resourceNames: [a, '']"},
		{clusterRole, "nonResourceURLs: [/a]", "nonResourceURLs: [a, '*', /a*b, /a/*]"},
		{clusterRole, "nonResourceURLs: [/a]", "nonResourceURLs: [/a], resources: [pods]"},
		{clusterRole, "rules: [", "aggregationRule: {clusterRoleSelectors: [{matchLabels: {a: b}}]}, rules: ["},
		{clusterRole, "rules: [", "aggregationRule: {clusterRoleSelectors: []}, rules: ["},
		{binding, "kind: ClusterRole,", "kind: Nothing,"}, {binding, "name: view", "name: ''"},
		{binding, "apiGroup: rbac.authorization.k8s.io, ", ""},
		{binding, "apiGroup: rbac.authorization.k8s.io,", "apiGroup: example.com,"},
		{binding, "{kind: User, name: u}", "{kind: User, name: ''}"},
		{binding, "{kind: User, name: u}", "{kind: Robot, name: u}"},
		{binding, "{kind: User, name: u}", "{kind: User, name: u, apiGroup: example.com}"},
		{binding, "{kind: User, name: u}", "{kind: User, name: u, namespace: ns}"},
		{binding, "{kind: Group, name: g}", "{kind: Group, name: g, apiGroup: ''}"},
		{binding, "name: s, namespace: ns", "name: S, namespace: ns"},
		{binding, "name: s, namespace: ns", "name: s"}, {binding, ", namespace: ns}]", ", namespace: ns, apiGroup: a}]"},
		{binding, "name: view", "name: missing"},
		{flow, "matchingPrecedence: 500, ", ""}, {flow, ": 500", ": -1"}, {flow, ": 500", ": 1"},
		{flow, ": 500", ": 10000"}, {flow, ": 500", ": 10001"}, {flow, "type: ByUser", "type: Odd"},
		{flow, "type: ByUser", "type: ''"}, {flow, "type: ByUser", "type: ByNamespace"},
		{flow, "distinguisherMethod: {type: ByUser}, ", ""}, {flow, "name: global-default", "name: ''"},
		{flow, "name: global-default", "name: A"}, {flow, "name: global-default", "name: missing"},
		{flow, "subjects: [", "subjects: [], other: ["}, {flow, "kind: User, user", "kind: Robot, user"},
		{flow, "{kind: User, user: {name: u}}", "{kind: User}"},
		{flow, "{kind: User, user: {name: u}}", "{kind: User, user: {name: ''}}"},
		{flow, "{kind: User, user: {name: u}}", "{kind: User, user: {name: '*'}, group: {name: g}}"},
		{flow, "{kind: User, user: {name: u}}", "{kind: Group, user: {name: u}}"},
		{flow, "{kind: Group, group: {name: g}}", "{kind: Group, group: {name: ''}}"},
		{flow, "{name: s, namespace: ns}", "{name: '*', namespace: ns}"},
		{flow, "{name: s, namespace: ns}", "{name: s, namespace: '*'}"},
		{flow, "{name: s, namespace: ns}", "{name: S, namespace: NS}"},
		{flow, "{name: s, namespace: ns}", "{name: '', namespace: ''}"},
		{flow, "verbs: [get]", "verbs: []"}, {flow, "verbs: [get]", "verbs: ['*']"},
		{flow, "verbs: [get]", "verbs: ['*', get]"}, {flow, "verbs: [get]", "verbs: [get, frob]"},
		{flow, "verbs: [get]", "verbs: [get, list, watch, create, update, patch, delete, deletecollection]"},
		{flow, "verbs: [get]", "verbs: [proxy]"}, {flow, "verbs: [get]", "verbs: [head]"},
		{flow, "verbs: [get]", "verbs: [connect]"}, {flow, "verbs: [get]", "verbs: ['']"},
		{flow, "apiGroups: ['']", "apiGroups: []"}, {flow, "apiGroups: ['']", "apiGroups: ['', '*']"},
		{flow, "resources: [pods]", "resources: []"}, {flow, "resources: [pods]", "resources: ['*', a]"},
		{flow, ", namespaces: [default]", ""}, {flow, ", namespaces: [default]", ", clusterScope: true"},
		{flow, "namespaces: [default]", "namespaces: ['*']"},
		{flow, "namespaces: [default]", "namespaces: ['*', default]"},
		{flow, "namespaces: [default]", "namespaces: [A, '']"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: []"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: ['*']"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: ['*', /a]"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: [a]"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: ['']"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: [/]"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: [/a/*, /a*, /a/*/b, /*]"},
		{flow, "nonResourceURLs: [/a]", "nonResourceURLs: ['/a b', //a, /a//b, /a/]"},
		{flow, "verbs: [list]", "verbs: [get, post, put, patch, delete, head, options]"},
		{flow, "name: a}", "name: exempt}"}, {flow, "name: a}", "name: catch-all}"},
		{flow, "resourceRules: [", "other: ["}, {flow, "rules: [{", "rules: [{}, {"},
		{level, "nominalConcurrencyShares: 5, ", ""}, {level, "Shares: 5", "Shares: 0"},
		{level, "Shares: 5", "Shares: -1"}, {level, "Shares: 5", "Shares: 5, lendablePercent: 100"},
		{level, "Shares: 5", "Shares: 5, lendablePercent: 101"},
		{level, "Shares: 5", "Shares: 5, lendablePercent: -1"},
		{level, "Shares: 5", "Shares: 5, borrowingLimitPercent: 0"},
		{level, "Shares: 5", "Shares: 5, borrowingLimitPercent: 700"},
		{level, "Shares: 5", "Shares: 5, borrowingLimitPercent: -1"},
		{level, "type: Limited", "type: Odd"}, {level, "type: Limited", "type: ''"},
		{level, "type: Limited", "type: Exempt"}, {level, "limited: {nominal", "exempt: {nominal"},
		{level, "type: Limited", "type: Limited, exempt: {}"},
		{level, "type: Queue", "type: Reject"}, {level, "type: Queue", "type: Odd"},
		{level, "type: Queue", "type: ''"}, {level, ", queuing: {queues: 16, handSize: 4, queueLengthLimit: 10}", ""},
		{level, "type: Queue, queuing: {queues: 16, handSize: 4, queueLengthLimit: 10}", "type: Reject"},
		{level, "{queues: 16, handSize: 4, queueLengthLimit: 10}", "{}"},
		{level, "queues: 16", "queues: 0"}, {level, "queues: 16", "queues: -1"},
		{level, "queues: 16", "queues: 3"}, {level, "queues: 16", "queues: 10000001"},
		{level, "queues: 16", "queues: 10000000"}, {level, "handSize: 4", "handSize: -1"},
		{level, "handSize: 4", "handSize: 16"}, {level, "queues: 16, handSize: 4", "queues: 128, handSize: 10"},
		{level, "queueLengthLimit: 10", "queueLengthLimit: -1"},
		{level, "name: a}", "name: exempt}"}, {level, "name: a}", "name: catch-all}"},
		{quota, "pods: 3}, scopes: [BestEffort]", "count/things.example.com: 3, cpu: '1.5', configmaps: 1k}"},
		{quota, "pods: 3}, scopes: [BestEffort]", "limits.cpu: 1, requests.cpu: 2}"},
		{quota, "pods: 3}, scopes: [BestEffort]", "}"}, {quota, "pods: 3", "pods: -3"},
		{quota, "pods: 3", "pods: '1.5'"}, {quota, "pods: 3", "pods: many"},
		{quota, "pods: 3", "nonsense: 3"}, {quota, "pods: 3", "count/a/b: 3"},
		{quota, "pods: 3", "count/: 3"}, {quota, "pods: 3", "configmaps: 3"},
		{quota, "pods: 3", "count/things.example.com: 3"}, {quota, "pods: 3", "cpu: 3"},
		{quota, "[BestEffort]", "[Odd]"}, {quota, "[BestEffort]", "[BestEffort, NotBestEffort]"},
		{quota, "[BestEffort]", "[Terminating, NotTerminating]"},
		{quota, "scopes: [BestEffort]", "scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [a]}]}"},
		{quota, "scopes: [BestEffort]", "scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In}]}"},
		{quota, "scopes: [BestEffort]", "scopeSelector: {matchExpressions: [{scopeName: Odd, operator: Exists}]}"},
		{quota, "scopes: [BestEffort]", "scopeSelector: {matchExpressions: [{scopeName: BestEffort, operator: In, values: [a]}]}"},
		{quota, "}}", "}, status: {used: {pods: 3}}}"},
	} {
		if !strings.Contains(c.object, c.from) {
			t.Fatalf("%q is not in %s", c.from, c.object)
		}
		a.same(t, fmt.Sprintf("%.80q in place of %q", c.to, c.from), "try",
			strings.Replace(c.object, c.from, c.to, 1))
	}
	// Changes of what is stored.
	for _, c := range []struct {
		object  string
		changes []string
	}{
		{configMap, []string{"data: {other: x}", "immutable: true", "immutable: false", "data: {other: y}",
			"binaryData: {b: dg==}", "metadata: {labels: {a: b}}"}},
		{secret, []string{"stringData: {other: x}", "type: other", "immutable: true", "data: null",
			"immutable: null", "metadata: {annotations: {a: b}}"}},
		{account, []string{"secrets: null", "imagePullSecrets: [{name: d}, {name: e}]",
			"automountServiceAccountToken: true"}},
		{event, []string{"count: 2", "message: other", "involvedObject: {name: q}", "type: Odd"}},
		{strings.Replace(newEvent, "name: a}", "name: b}", 1), []string{
			"series: {count: 2, lastObservedTime: '2026-01-02T03:04:06.000006Z'}", "note: other",
			"regarding: {name: q}", "eventTime: '2026-01-02T03:04:06.000006Z'", "type: Warning"}},
		{lease, []string{"spec: {holderIdentity: you, leaseTransitions: 2}",
			"spec: {leaseDurationSeconds: -1}", "spec: {leaseTransitions: 1}", "spec: null"}},
		{namespace, []string{"metadata: {labels: {a: b, kubernetes.io/metadata.name: other}}",
			"metadata: {labels: null}", "spec: {finalizers: []}", "status: {phase: Terminating}",
		}},
		{role, []string{"rules: null", "rules: [{verbs: []}]", "metadata: {labels: {a: b}}"}},
		{clusterRole, []string{"aggregationRule: {clusterRoleSelectors: [{matchLabels: {no: 'one'}}]}"}},
		{binding, []string{"roleRef: {name: edit}", "subjects: null", "subjects: [{kind: User}]"}},
		// A FlowSchema is given a status at some time, so that the answers would depend on when.
		{level, []string{"spec: {limited: {nominalConcurrencyShares: 7}}", "spec: {type: Exempt}",
			"spec: {limited: {limitResponse: {queuing: null}}}", "status: {conditions: [{type: a}]}",
			"metadata: {annotations: {a: b}}"}},
	} {
		a.same(t, "create", "create", c.object)
		for _, change := range c.changes {
			at := strings.Index(c.object, "metadata: ")
			metadata := c.object[at : strings.Index(c.object[at:], "}")+at+1]
			if strings.HasPrefix(change, "metadata: {") {
				metadata = strings.TrimSuffix(metadata, "}") + ", " + strings.TrimPrefix(change, "metadata: {")
				change = ""
			}
			if change != "" {
				change = ", " + change
			}
			a.same(t, change+metadata+" of "+c.object, "merge", c.object[:at]+metadata+change+"}")
		}
		a.same(t, "delete "+c.object, "delete", c.object)
	}
	t.Logf("%d answers were compared", a.compared)
}
