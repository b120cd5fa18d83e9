package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rowkeeper/rowkeeper/pkg/history/v1alpha1"
)

// historians are roles for pipelines: jane sees their history, and joe only edits them.
const historians = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: editors}
rules:
- {apiGroups: [ci.rowkeeper.dev], resources: [pipelines], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: historians}
rules:
- {apiGroups: [ci.rowkeeper.dev], resources: [pipelines/history], verbs: [get]}
`

// program runs rowkeeper against the server, as a user.
func (s *server) program(t testing.TB, kubeconfig string, args ...string) result {
	t.Helper()
	return run(t, s.dir, "", []string{"KUBECONFIG=" + kubeconfig}, rowkeeperProgram, args...)
}

// tells runs rowkeeper, which has to succeed, and returns its output.
func (s *server) tells(t testing.TB, kubeconfig string, args ...string) string {
	t.Helper()
	r := s.program(t, kubeconfig, args...)
	if r.code != 0 {
		t.Fatalf("rowkeeper %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout + r.stderr
}

// history reads a history.
func (s *server) history(t testing.TB, kubeconfig string, args ...string) *v1alpha1.ObjectHistory {
	t.Helper()
	h := &v1alpha1.ObjectHistory{}
	told := s.program(t, kubeconfig, append([]string{"history", "-o", "json", "--limit=0"}, args...)...)
	if err := json.Unmarshal([]byte(told.stdout), h); err != nil {
		t.Fatalf("rowkeeper history %s: %v\n%s", strings.Join(args, " "), err, told.stderr)
	}
	return h
}

// verbs are those of a history, the oldest change first.
func verbs(h *v1alpha1.ObjectHistory) (all []v1alpha1.Verb) {
	for _, c := range h.Items {
		all = append(all, c.Verb)
	}
	slices.Reverse(all)
	return all
}

// Two users change an object five times, and one change breaks it. The history tells who and when,
// and undo mends it.
func TestHistory(t *testing.T) {
	eachDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		dir := t.TempDir()
		keys := filepath.Join(dir, "encryption.yaml")
		if err := os.WriteFile(keys, []byte("apiVersion: apiserver.config.k8s.io/v1\n"+
			"kind: EncryptionConfiguration\nresources:\n- resources: ['*.*']\n  providers:\n"+
			"  - aesgcm: {keys: [{name: first, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}\n",
		), 0o600); err != nil {
			t.Fatal(err)
		}
		policy, audited := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
		if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n"+
			"- {level: Metadata, resources: [{group: \"\", resources: [secrets]}]}\n"+
			"- level: RequestResponse\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := start(dir, "--enable-crds", "--enable-history",
			"--history-users=ci.rowkeeper.dev/pipelines,home.example.com/lamps", "--encryption-provider-config="+keys,
			"--audit-policy-file="+policy, "--audit-log-path="+audited)
		admin, jane, joe := s.kubeconfig(), s.userFile(t, "jane"), s.userFile(t, "joe")
		// A server that fences when it starts has no history from before that.
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(s.ok(t, "", "get", "--raw", "/apis/ci.rowkeeper.dev/v1/pipelines")),
			&list); err != nil {
			t.Fatal(err)
		}
		s.ok(t, historians, "apply", "-f", "-")
		s.ok(t, "", "create", "clusterrolebinding", "editors", "--clusterrole=editors", "--user=jane",
			"--user=joe")
		s.ok(t, "", "create", "rolebinding", "historians", "--clusterrole=historians", "--user=jane")
		// Servers learn of roles a moment later.
		for _, can := range [][]string{{jane, "get", "pipelines", "--subresource=history"},
			{jane, "get", "/openapi/v2"}, {joe, "create", "pipelines"}} {
			eventually(t, strings.Join(can[1:], " "), func() bool {
				return s.kubectl(t, "", append([]string{"auth", "can-i", "--kubeconfig"},
					can...)...).stdout == "yes\n"
			})
		}
		as := func(user string, args ...string) {
			t.Helper()
			s.ok(t, manifest("walk", "make"), append(args, "--kubeconfig="+filepath.Join(dir, user),
				"--field-manager="+user)...)
		}
		patch := func(user, spec string) {
			t.Helper()
			as(user, "patch", "pipeline/walk", "--type=merge", "-p", `{"spec":`+spec+`}`)
		}
		as("jane", "create", "-f", "-")
		patch("jane", `{"maxParallelRuns":2}`)
		patch("joe", `{"maxParallelRuns":3}`)
		as("jane", "label", "pipeline/walk", "team.example.com/name=blue")
		patch("joe", `{"steps":[{"name":"main","command":["false"]}]}`)
		patch("jane", `{"maxParallelRuns":4}`)

		h := s.history(t, jane, "pipeline/walk")
		if got := verbs(h); len(got) != 6 || got[0] != v1alpha1.Create || got[5] != v1alpha1.Update {
			t.Fatalf("the changes are %q", got)
		}
		if c := h.Items[2]; !slices.Equal(c.Changed, []string{`metadata.labels`}) || c.Manager != "jane" {
			t.Errorf("the label is told as %+v", c)
		}
		broken := h.Items[slices.IndexFunc(h.Items, func(c v1alpha1.Change) bool {
			return slices.Contains(c.Changed, "spec.steps[0].command[0]")
		})]
		if broken.Manager != "joe" || broken.User != "joe" {
			t.Errorf("it was broken by %+v", broken)
		}
		var users []string
		for _, c := range h.Items {
			users = append(users, c.User)
		}
		if got := strings.Join(users, " "); got != "jane joe jane joe jane jane" {
			t.Errorf("the users are %s", got)
		}
		log, err := os.ReadFile(audited)
		if err != nil || !slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool {
			return strings.Contains(line, `"auditID":"`+broken.AuditID+`"`) &&
				strings.Contains(line, `"verb":"patch","user":{"username":"joe"`)
		}) {
			t.Errorf("the audit log has no patch %q of joe, %v", broken.AuditID, err)
		}
		good := h.Items[2].Revision
		has(t, s.tells(t, jane, "history", "pl/walk"), "USER", broken.Revision, "joe", "spec.steps[0].command")
		has(t, s.tells(t, jane, "history", "pl", "walk", "--patch", "--limit=2"), "-    - make",
			", user joe, audit ID "+broken.AuditID,
			"+    - \"false\"", "-  maxParallelRuns: 3", "There may be older changes")
		has(t, s.tells(t, jane, "get", "pl/walk", "--at", good), "- make", "maxParallelRuns: 3")
		has(t, s.tells(t, jane, "get", "pipelines", "--at", good), "NAME", "walk")
		has(t, s.tells(t, jane, "diff", "pl/walk", "--from", good), "-    - make", "+  maxParallelRuns: 4")
		has(t, s.tells(t, jane, "diff", "pl", "--from", good, "--to", broken.Revision), "-    - make",
			"at revision "+broken.Revision)
		has(t, s.tells(t, admin, "diff", "--from", list.ResourceVersion), "+kind: Pipeline",
			"+kind: RoleBinding")

		r := s.program(t, jane, "get", "pl/none", "--at=1s")
		if r.code != 1 || !strings.Contains(r.stderr, "there was no pipelines.ci.rowkeeper.dev/none at 1s") {
			t.Errorf("an object that never was is shown as %+v", r)
		}

		// A user who may not sees why.
		for _, args := range [][]string{{"history", "pl/walk"}, {"get", "pl/walk", "--at=10s"},
			{"undo", "pl/walk", "--to-revision", good}, {"history", "pipelines"}} {
			r := s.program(t, joe, args...)
			if r.code != 1 || !strings.Contains(r.stderr, `User "joe" cannot get resource `+
				`"pipelines/history" in API group "ci.rowkeeper.dev" in the namespace "default"`) {
				t.Errorf("rowkeeper %q tells joe: %d %s", args, r.code, r.stderr)
			}
		}
		r = s.program(t, jane, "history", "pipelines", "--all-namespaces")
		if r.code != 1 || !strings.Contains(r.stderr, "at the cluster scope") {
			t.Errorf("the history of all namespaces is told to jane: %d %s", r.code, r.stderr)
		}

		// Undo asks first, and writes what was there before joe.
		r = s.program(t, jane, "undo", "pl/walk", "--to-revision", good)
		if r.code != 1 || !strings.Contains(r.stdout, "+    - make") ||
			!strings.Contains(r.stderr, "give --yes") {
			t.Errorf("undo without --yes: %+v", r)
		}
		has(t, s.tells(t, jane, "undo", "pl/walk", "--to-revision", good, "--yes"), "+    - make",
			"is as it was at revision "+good)
		has(t, s.ok(t, "", "get", "pipeline", "walk", "-o", "yaml"), "- make", "maxParallelRuns: 3",
			"team.example.com/name: blue")
		h = s.history(t, jane, "pipeline/walk")
		if c := h.Items[0]; len(h.Items) != 7 || c.Manager != "rowkeeper-undo" ||
			c.User != "jane" || c.UID != broken.UID {
			t.Errorf("undo is told as %+v", c)
		}

		// What the name had before is told only to who may know it.
		s.ok(t, "", "delete", "pipeline", "walk")
		has(t, s.tells(t, jane, "history", "pl/walk"), "get on pipelines.ci.rowkeeper.dev/earlierhistory")
		r = s.program(t, jane, "get", "pl/walk", "--at", good)
		if r.code != 1 || !strings.Contains(r.stderr, `"pipelines/earlierhistory"`) {
			t.Errorf("an earlier object is shown to jane: %+v", r)
		}
		has(t, s.tells(t, admin, "undo", "pl/walk", "--to-revision", good, "--yes"), "was created anew")
		h = s.history(t, admin, "pl/walk")
		if got := verbs(h); len(got) != 9 || got[7] != v1alpha1.Delete || got[8] != v1alpha1.Create ||
			h.Items[0].Earlier || !h.Items[1].Earlier || h.Items[0].UID == broken.UID {
			t.Errorf("after the undo of a deletion there are %q", got)
		}
		r = s.program(t, admin, "undo", "pl/walk", "--to-revision", good, "--yes")
		if r.code != 1 || !strings.Contains(r.stderr, "was another object of this name") {
			t.Errorf("the state of an earlier object is written into another one: %+v", r)
		}
		if h := s.history(t, jane, "pl/walk"); len(h.Items) != 1 || !h.Metadata.Omitted {
			t.Errorf("jane is told %d changes", len(h.Items))
		}

		// Secrets are decrypted, and custom resources and definitions are no exception.
		s.ok(t, "", "create", "secret", "generic", "s", "--from-literal=k=first")
		s.ok(t, "", "patch", "secret", "s", "-p", `{"stringData":{"k":"second"}}`)
		h = s.history(t, admin, "secret/s")
		if table := s.tells(t, admin, "history", "secret/s"); h.Items[0].User != "" ||
			strings.Contains(table, "USER") {
			t.Errorf("users of Secrets are recorded, which is off: %+v\n%s", h.Items[0], table)
		}
		if len(h.Items) != 2 || !slices.Equal(h.Items[0].Changed, []string{"data.k"}) ||
			fmt.Sprint(h.Items[1].Object["data"]) != "map[k:Zmlyc3Q=]" {
			t.Errorf("the history of a Secret is %+v", h.Items)
		}
		log, err = os.ReadFile(audited)
		if err != nil || !strings.Contains(string(log), `"resource":"secrets","namespace":"default",`+
			`"name":"s","apiVersion":"v1","subresource":"history"`) ||
			strings.Contains(string(log), "Zmlyc3Q=") {
			t.Errorf("the audit log, %v, lacks the request, or has the Secret:\n%s", err, log)
		}
		s.ok(t, definition, "apply", "-f", "-")
		s.ok(t, "", "wait", "--for=condition=Established", "crd/lamps.home.example.com")
		s.ok(t, lamp, "apply", "-f", "-")
		// Of a user who is impersonated, it is that one.
		s.ok(t, "", "patch", "lamp", "one", "--type=merge", "-p", `{"spec":{"lit":true}}`,
			"--as=somebody", "--as-group=system:masters")
		h = s.history(t, admin, "lamps.home.example.com/one")
		if len(h.Items) != 2 || !slices.Contains(h.Items[0].Changed, "spec.lit") ||
			h.Items[0].User != "somebody" ||
			h.Items[1].Object["kind"] != "Lamp" {
			t.Errorf("the history of a custom resource is %+v", h.Items)
		}
		s.tells(t, admin, "undo", "lamp/one", "--to-revision", h.Items[1].Revision, "--yes")
		if serial := s.ok(t, "", "get", "lamp", "one", "-o", "jsonpath={.spec.serial} {.spec.lit}"); serial !=
			"1234567890123456789 false" {
			t.Errorf("after an undo, the serial is %s", serial)
		}
		if h = s.history(t, admin, "crd/lamps.home.example.com"); len(h.Items) < 2 {
			t.Errorf("the history of a definition is %+v", h.Items)
		}
		if h = s.history(t, admin, "namespace/default"); len(h.Items) != 1 {
			t.Errorf("the history of a namespace is %+v", h.Items)
		}

		// As a plugin of kubectl it is the same program.
		plugins := t.TempDir()
		if err := os.Symlink(rowkeeperProgram, filepath.Join(plugins, "kubectl-rowkeeper")); err != nil {
			t.Fatal(err)
		}
		plugin := run(t, s.dir, "", append(s.kubectlEnv(), "PATH="+plugins), kubectlProgram, "rowkeeper",
			"history", "pl/walk")
		if plugin.code != 0 || !strings.Contains(plugin.stdout, "create") {
			t.Errorf("the plugin says %+v", plugin)
		}
		plugin = run(t, s.dir, "", append(s.kubectlEnv(), "PATH="+plugins), kubectlProgram, "rowkeeper",
			"history", "--help")
		has(t, plugin.stdout, "kubectl rowkeeper history RESOURCE[/NAME]")
	})
}

const definition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lamps.home.example.com}
spec:
  group: home.example.com
  scope: Namespaced
  names: {plural: lamps, singular: lamp, kind: Lamp}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {lit: {type: boolean}, serial: {type: integer}}}
`

const lamp = `{apiVersion: home.example.com/v1, kind: Lamp, metadata: {name: one}, spec: {lit: false, serial: 1234567890123456789}}`

// A server without the flag has no history, and says how to have one. That of custom resources
// answers as if the object was not there.
func TestNoHistory(t *testing.T) {
	s := start(t, t.TempDir(), "--enable-crds")
	s.ok(t, definition, "apply", "-f", "-")
	s.ok(t, "", "wait", "--for=condition=Established", "crd/lamps.home.example.com")
	s.ok(t, lamp, "apply", "-f", "-")
	for _, args := range [][]string{{"history", "pipelines"}, {"history", "lamp/one"},
		{"get", "lamp/one", "--at=1s"}, {"get", "secret/none", "--at=1s"}} {
		r := s.program(t, s.kubeconfig(), args...)
		if r.code != 1 || !strings.Contains(r.stderr, "start it with --enable-history") {
			t.Errorf("rowkeeper %q: %+v", args, r)
		}
	}
}
