package tests

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const flowSchemaOfJane = `
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: jane}
spec:
  matchingPrecedence: 100
  priorityLevelConfiguration: {name: LEVEL}
  rules:
  - subjects: [{kind: User, user: {name: jane}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"],
      clusterScope: true}]
`

const refusedLevel = `
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: refused}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}
`

// answers sends requests for the pipelines at the same time, and returns the status of each.
func (s *server) answers(t testing.TB, config *rest.Config, n int) []int {
	t.Helper()
	codes := make([]int, n)
	var all sync.WaitGroup
	for i := range codes {
		all.Go(func() { codes[i], _ = s.ask(t, config) })
	}
	all.Wait()
	return codes
}

// ask sends a request for the pipelines, and returns its status and the UID of the FlowSchema that
// it matched.
func (s *server) ask(t testing.TB, config *rest.Config) (code int, uid string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		config.Host+"/apis/ci.rowkeeper.dev/v1/pipelines", nil)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	response, err := client.Do(request)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer response.Body.Close()
	return response.StatusCode,
		response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
}

// schemaOf is the name of the FlowSchema that a request for the pipelines matches.
func (s *server) schemaOf(t testing.TB, config *rest.Config) string {
	t.Helper()
	_, uid := s.ask(t, config)
	schemas, err := kubernetes.NewForConfigOrDie(s.config(t)).FlowcontrolV1().FlowSchemas().List(
		t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, schema := range schemas.Items {
		if string(schema.UID) == uid {
			return schema.Name
		}
	}
	return uid
}

// Requests have the priorities that FlowSchemas give them, and whom one of them refuses does not
// stop others. The default objects are there, and come back.
func TestPriorityAndFairness(t *testing.T) {
	anyDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		dir := t.TempDir()
		s := start(dir, "--enable-crds")
		jane, err := clientcmd.BuildConfigFromFlags("", s.userFile(t, "jane"))
		if err != nil {
			t.Fatal(err)
		}
		s.ok(t, "", "create", "clusterrolebinding", "jane", "--clusterrole=cluster-admin",
			"--user=jane")
		matches := func(config *rest.Config, schema string) {
			t.Helper()
			eventually(t, "a request is one of "+schema, func() bool {
				return s.schemaOf(t, config) == schema
			})
		}
		matches(s.config(t), "exempt")
		matches(jane, "global-default")

		s.ok(t, strings.Replace(flowSchemaOfJane, "LEVEL", "refused", 1), "apply", "-f", "-")
		eventually(t, "a schema without a priority is marked", func() bool {
			return s.ok(t, "", "get", "flowschema", "jane", "-o",
				`jsonpath={.status.conditions[?(@.type=="Dangling")].status}`) == "True"
		})
		s.ok(t, refusedLevel, "apply", "-f", "-")
		// Without a share, requests are served one at a time.
		eventually(t, "requests without a share are refused", func() bool {
			return slices.Contains(s.answers(t, jane, 50), http.StatusTooManyRequests)
		})
		for _, code := range s.answers(t, s.config(t), 50) {
			if code != http.StatusOK {
				t.Errorf("a request of the administrator is answered by %d", code)
			}
		}
		s.ok(t, strings.Replace(flowSchemaOfJane, "LEVEL", "workload-low", 1), "apply", "-f", "-")
		matches(jane, "jane")

		s.refused(t, "", "must equal the fixed value", "patch", "flowschema", "catch-all", "--type=merge",
			"-p", `{"spec":{"matchingPrecedence":7}}`)
		s.ok(t, "", "delete", "flowschema", "exempt", "probes")
		s.ok(t, "", "delete", "prioritylevelconfiguration", "catch-all")
		s.ok(t, "", "annotate", "flowschema", "service-accounts", "--overwrite",
			"apf.kubernetes.io/autoupdate-spec=false")
		for _, schema := range []string{"service-accounts", "kube-scheduler"} {
			s.ok(t, "", "patch", "flowschema", schema, "--type=merge", "-p",
				`{"spec":{"matchingPrecedence":777}}`)
		}
		s.ok(t, "", "annotate", "flowschema", "jane", "apf.kubernetes.io/autoupdate-spec=true")
		if code := s.signal(t, syscall.SIGTERM); code != 0 {
			t.Fatalf("the server ends with %d", code)
		}
		s = start(dir, "--enable-crds")
		eventually(t, "the default objects are as they should be", func() bool {
			return s.hasDefaultPriorities(t)
		})
	})
}

// hasDefaultPriorities tells whether the default objects are there with their specs, but for the
// precedence of service-accounts, which a user has set, and that jane is no default.
func (s *server) hasDefaultPriorities(t testing.TB) bool {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(s.config(t)).FlowcontrolV1()
	schemas, err := client.FlowSchemas().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	levels, err := client.PriorityLevelConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wanted, there := map[string]any{}, map[string]any{}
	for _, schema := range append(append([]*flowcontrolv1.FlowSchema{},
		bootstrap.MandatoryFlowSchemas...), bootstrap.SuggestedFlowSchemas...) {
		spec := schema.DeepCopy().Spec
		if schema.Name == "service-accounts" {
			spec.MatchingPrecedence = 777
		}
		wanted["schema "+schema.Name] = spec
	}
	for _, level := range append(append([]*flowcontrolv1.PriorityLevelConfiguration{},
		bootstrap.MandatoryPriorityLevelConfigurations...),
		bootstrap.SuggestedPriorityLevelConfigurations...) {
		wanted["level "+level.Name] = level.Spec
	}
	for _, schema := range schemas.Items {
		there["schema "+schema.Name] = schema.Spec
	}
	for _, level := range levels.Items {
		if level.Name != "refused" {
			there["level "+level.Name] = level.Spec
		}
	}
	return toJSON(t, wanted) == toJSON(t, there)
}

func toJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The flags of priority and fairness say with what else they work.
func TestPriorityFlags(t *testing.T) {
	r := run(t, t.TempDir(), "", nil, rowkeeperProgram, "serve", "--enable-priority-and-fairness")
	if r.code == 0 || !strings.Contains(r.stderr,
		"--enable-priority-and-fairness needs --enable-crds") {
		t.Errorf("without definitions: %+v", r)
	}
	for _, flags := range [][]string{
		{"--enable-priority-and-fairness=false"},
		{"--max-requests-inflight=0", "--max-mutating-requests-inflight=0"},
	} {
		s := start(t, t.TempDir(), append(flags, "--enable-crds")...)
		if served := s.get(t, "/apis", ""); strings.Contains(served, flowcontrolv1.GroupName) {
			t.Errorf("with %v: %s", flags, served)
		}
	}
}
