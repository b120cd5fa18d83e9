package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// testPriority makes a FlowSchema of the cluster for the requests of one user, and looks whether
// the replicas treat him, and nobody else, as it says.
func testPriority(t *testing.T) {
	const name = "unimportant"
	schema, err := env.client.FlowcontrolV1().FlowSchemas().Create(t.Context(),
		&flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
			Spec: flowcontrolv1.FlowSchemaSpec{
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"},
				MatchingPrecedence:         100,
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser,
						User: &flowcontrolv1.UserSubject{Name: name}}},
					ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
						Verbs: []string{"*"}, APIGroups: []string{group}, Resources: []string{"*"},
						Namespaces: []string{"*"}, ClusterScope: true,
					}},
				}},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.client.FlowcontrolV1().FlowSchemas().Delete(env.context, schema.Name,
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for _, pod := range env.installation.pods(t) {
		as := func(user string) string {
			return flowSchema(t, env.directTo(t, pod, env.proxyCertificate(t), user))
		}
		eventually(t, time.Minute, func() error {
			if got := as(name); got != string(schema.UID) {
				return fmt.Errorf("%s has put a request of the user into the FlowSchema with the "+
					"UID %q, want %q", pod.Name, got, schema.UID)
			}
			return nil
		})
		if got := as("somebody"); got == "" || got == string(schema.UID) {
			t.Errorf("%s has put a request of another user into the FlowSchema with the UID %q",
				pod.Name, got)
		}
	}
}

// flowSchema lists Pipelines, and returns the UID of the FlowSchema that the request matched, as
// the answer tells it.
func flowSchema(t *testing.T, config *rest.Config) string {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/apis/"+
		group+"/v1/pipelines", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
}
