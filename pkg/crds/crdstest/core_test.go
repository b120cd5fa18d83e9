package crdstest_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/rowkeeper/rowkeeper/pkg/crds/crdstest"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// The kinds that a cluster refuses to replace without a resourceVersion are refused here, too, and
// no others.
func TestUnconditionalUpdates(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	client := kubernetes.NewForConfigOrDie(s.Config).CoreV1().RESTClient()
	for path, c := range map[string]struct {
		kind, spec   string
		needsVersion bool
	}{
		"/api/v1/namespaces/default/configmaps":                                 {`"kind":"ConfigMap","apiVersion":"v1"`, `"data":{"a":"b"}`, false},
		"/api/v1/namespaces/default/secrets":                                    {`"kind":"Secret","apiVersion":"v1"`, `"stringData":{"a":"b"}`, false},
		"/api/v1/namespaces/default/serviceaccounts":                            {`"kind":"ServiceAccount","apiVersion":"v1"`, `"imagePullSecrets":[]`, false},
		"/api/v1/namespaces/default/events":                                     {`"kind":"Event","apiVersion":"v1"`, `"involvedObject":{"namespace":"default"},"message":"x"`, false},
		"/api/v1/namespaces":                                                    {`"kind":"Namespace","apiVersion":"v1"`, `"spec":{}`, false},
		"/apis/coordination.k8s.io/v1/namespaces/default/leases":                {`"kind":"Lease","apiVersion":"coordination.k8s.io/v1"`, `"spec":{"holderIdentity":"x"}`, true},
		"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations":   {`"kind":"MutatingWebhookConfiguration","apiVersion":"admissionregistration.k8s.io/v1"`, `"webhooks":[]`, true},
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {`"kind":"ValidatingWebhookConfiguration","apiVersion":"admissionregistration.k8s.io/v1"`, `"webhooks":[]`, true},
		"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies": {
			`"kind":"ValidatingAdmissionPolicy","apiVersion":"admissionregistration.k8s.io/v1"`,
			`"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]},"validations":[{"expression":"true"}]}`, true,
		},
		"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings": {
			`"kind":"ValidatingAdmissionPolicyBinding","apiVersion":"admissionregistration.k8s.io/v1"`, `"spec":{"policyName":"x","validationActions":["Deny"]}`, true,
		},
		"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies": {
			`"kind":"MutatingAdmissionPolicy","apiVersion":"admissionregistration.k8s.io/v1"`,
			`"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["secrets"]}]},"reinvocationPolicy":"Never","mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: 'remove', path: '/data'}]"}}]}`, true,
		},
		"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings": {
			`"kind":"MutatingAdmissionPolicyBinding","apiVersion":"admissionregistration.k8s.io/v1"`, `"spec":{"policyName":"x"}`, true,
		},
	} {
		object := []byte(`{` + c.kind +
			`,"metadata":{"name":"one","labels":{"kubernetes.io/metadata.name":"one"}},` +
			c.spec + `}`)
		if err := client.Post().AbsPath(path).Body(object).SetHeader("Content-Type",
			"application/json").Do(t.Context()).Error(); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var code int
		err := client.Put().AbsPath(path, "one").Body(object).SetHeader("Content-Type",
			"application/json").Do(t.Context()).StatusCode(&code).Error()
		switch {
		case !c.needsVersion && err != nil:
			t.Errorf("%s: %v", path, err)
		case c.needsVersion && (code != http.StatusUnprocessableEntity ||
			!strings.Contains(err.Error(), "metadata.resourceVersion: Invalid value: 0: must be "+
				"specified for an update")):
			t.Errorf("%s: %d %v", path, code, err)
		}
	}
}

// A webhook configuration whose conditions do not compile is refused when it is written.
func TestConditionsOfWebhooks(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	client := kubernetes.NewForConfigOrDie(s.Config).AdmissionregistrationV1().ValidatingWebhookConfigurations()
	c := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name:                    "one.example.com",
			ClientConfig:            admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
			SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}},
			}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "mine",
				Expression: "object.metadata.name.startsWith('guarded')"}},
		}},
	}
	stored, err := client.Create(t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(err error) {
		t.Helper()
		const want = `webhooks[0].matchConditions[0].expression: Invalid value: "object.metadata.name ==": compilation failed: ERROR: <input>:1:24: Syntax error`
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("an expression that does not compile: %v", err)
		}
	}
	stored.Webhooks[0].MatchConditions[0].Expression = "object.metadata.name =="
	_, err = client.Update(t.Context(), stored, metav1.UpdateOptions{})
	refused(err)
	stored.ObjectMeta = metav1.ObjectMeta{Name: "two"}
	_, err = client.Create(t.Context(), stored, metav1.CreateOptions{})
	refused(err)

	// An accepted condition says for which objects the webhook, which nobody serves, is called; and
	// one that costs too much is given up.
	maps := kubernetes.NewForConfigOrDie(s.Config).CoreV1().ConfigMaps("default")
	eventually(t, "the webhook is called", func(ctx context.Context) (bool, error) {
		_, err := maps.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "guarded-"}},
			metav1.CreateOptions{})
		return err != nil && strings.Contains(err.Error(),
			`failed calling webhook "one.example.com"`), nil
	})
	if _, err := maps.Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "free"}},
		metav1.CreateOptions{}); err != nil {
		t.Errorf("an object that the condition excludes: %v", err)
	}
	if stored, err = client.Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	costly := "object.kind != ''"
	for _, variable := range []string{"a", "b", "c", "d", "e", "f"} {
		costly = "[0,1,2,3,4,5,6,7,8,9].all(" + variable + ", " + costly + ")"
	}
	stored.Webhooks[0].MatchConditions[0].Expression = costly
	if _, err := client.Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the costly condition is given up", func(ctx context.Context) (bool, error) {
		_, err := maps.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "free-"}},
			metav1.CreateOptions{})
		return apierrors.IsForbidden(err) &&
			strings.Contains(err.Error(), "actual cost limit exceeded"), nil
	})
}

// A namespace that nobody has to finalize goes, also if the client says which version it means.
func TestNamespaceWithoutFinalizers(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	client := kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces()
	n, err := client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Spec.Finalizers = nil
	if n, err = client.Finalize(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stale := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("1")}}
	if err := client.Delete(t.Context(), "team", stale); !apierrors.IsConflict(err) {
		t.Errorf("a deletion of another version: %v", err)
	}
	exact := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.UID,
		ResourceVersion: &n.ResourceVersion}}
	if err := client.Delete(t.Context(), "team", exact); err != nil {
		t.Errorf("a deletion of this version: %v", err)
	}
	eventually(t, "the namespace is gone", func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// The label that says a namespace's name says it, whatever clients write.
func TestNamespaceLabel(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	client := kubernetes.NewForConfigOrDie(s.Config).CoreV1().Namespaces()
	wrong := map[string]string{corev1.LabelMetadataName: "other", "team": "a"}
	n, err := client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-", Labels: wrong}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n.Labels[corev1.LabelMetadataName] != n.Name || n.Labels["team"] != "a" {
			t.Errorf("the labels of %s are %v", n.Name, n.Labels)
		}
		n.Labels = wrong
		if n, err = client.Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A server-side apply creates what is not there, namespaces included.
func TestApplyCreates(t *testing.T) {
	s := crdstest.Start(t, testkit.Options{})
	client := kubernetes.NewForConfigOrDie(s.Config).CoreV1()
	options := metav1.ApplyOptions{FieldManager: "test"}
	n, err := client.Namespaces().Apply(t.Context(),
		applycorev1.Namespace("team").WithLabels(map[string]string{"a": "b"}), options)
	if err != nil || n.Status.Phase != corev1.NamespaceActive || n.Labels["a"] != "b" ||
		len(n.Spec.Finalizers) != 1 {
		t.Fatalf("%+v %v", n, err)
	}
	if _, err := client.ConfigMaps("team").Apply(t.Context(), applycorev1.ConfigMap("one",
		"team").WithData(map[string]string{"a": "b"}), options); err != nil {
		t.Error(err)
	}
}
