package tests

import (
	"encoding/json"
	"net/http"
	"strings"
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

// asked is what a request for the pipelines is answered: the status, and the name of the FlowSchema
// that it matched.
func (s *server) asked(t testing.TB, config *rest.Config) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		config.Host+"/apis/ci.rowkeeper.dev/v1/pipelines", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	uid := response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
	schemas, err := kubernetes.NewForConfigOrDie(s.config(t)).FlowcontrolV1().FlowSchemas().List(
		t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, schema := range schemas.Items {
		if string(schema.UID) == uid {
			return response.StatusCode, schema.Name
		}
	}
	return response.StatusCode, uid
}

// Requests have the priorities that FlowSchemas give them, and whom one of them refuses does not
// stop others. The default objects are there, and come back.
func TestPriorityAndFairness(t *testing.T) {
	eachDatabase(t, func(t *testing.T, start func(string, ...string) *server) {
		dir := t.TempDir()
		s := start(dir, "--enable-crds")
		jane, err := clientcmd.BuildConfigFromFlags("", s.userFile(t, "jane"))
		if err != nil {
			t.Fatal(err)
		}
		s.ok(t, "", "create", "clusterrolebinding", "jane", "--clusterrole=cluster-admin",
			"--user=jane")
		matches := func(config *rest.Config, code int, schema string) {
			t.Helper()
			eventually(t, "a request is one of "+schema, func() bool {
				is, of := s.asked(t, config)
				return is == code && of == schema
			})
		}
		matches(s.config(t), http.StatusOK, "exempt")
		matches(jane, http.StatusOK, "global-default")

		s.ok(t, strings.Replace(flowSchemaOfJane, "LEVEL", "refused", 1), "apply", "-f", "-")
		eventually(t, "a schema without a priority is marked", func() bool {
			return strings.HasSuffix(s.ok(t, "", "get", "flowschema", "jane", "--no-headers"),
				" True\n") || strings.Contains(s.ok(t, "", "get", "flowschema", "jane", "-o",
				`jsonpath={.status.conditions[?(@.type=="Dangling")].status}`), "True")
		})
		s.ok(t, refusedLevel, "apply", "-f", "-")
		matches(jane, http.StatusTooManyRequests, "jane")
		matches(s.config(t), http.StatusOK, "exempt")
		s.ok(t, strings.Replace(flowSchemaOfJane, "LEVEL", "workload-low", 1), "apply", "-f", "-")
		matches(jane, http.StatusOK, "jane")

		s.refused(t, "", "cannot be changed", "patch", "flowschema", "catch-all", "--type=merge",
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
