package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// testNamespaceDeletion deletes a namespace with objects of ours in it, one of which has a
// finalizer.
func testNamespaceDeletion(t *testing.T) {
	ns := newNamespace(t)
	client := env.dynamic.Resource(pipelinesV1).Namespace(ns)
	for i := range 5 {
		create(t, ns, pipeline(fmt.Sprintf("p%d", i)))
	}
	held := pipeline("held")
	held.SetFinalizers([]string{"example.com/hold"})
	create(t, ns, held)
	if err := env.client.CoreV1().Namespaces().Delete(t.Context(), ns,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].GetName() != "held" ||
			list.Items[0].GetDeletionTimestamp() == nil {
			return fmt.Errorf("the namespace has %d objects, want only the held one, which is "+
				"being deleted", len(list.Items))
		}
		return nil
	})
	_, err := client.Create(t.Context(), pipeline("late"), metav1.CreateOptions{})
	expect(t, "creating in a namespace that is being deleted", err, metav1.StatusReasonForbidden)
	if err != nil && !strings.Contains(err.Error(), "because it is being terminated") {
		t.Errorf("the error does not say why: %v", err)
	}
	if _, err := client.Patch(t.Context(), "held", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, 2*time.Minute, "the namespace", func() error {
		_, err := env.client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		return err
	})
}

// testMissingNamespace creates in a namespace that does not exist, and lists there.
func testMissingNamespace(t *testing.T) {
	client := env.dynamic.Resource(pipelinesV1).Namespace("no-such-namespace")
	_, err := client.Create(t.Context(), pipeline("a"), metav1.CreateOptions{})
	expect(t, "creating in a namespace that does not exist", err, metav1.StatusReasonNotFound)
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("a list there has %v, %v, want an empty one", list, err)
	}
}

// testGarbageCollection deletes owners, in the background and in the foreground, whose dependents
// are a run of ours and a config map of the cluster's.
func testGarbageCollection(t *testing.T) {
	ns := newNamespace(t)
	client := env.dynamic.Resource(pipelinesV1).Namespace(ns)
	runs := env.dynamic.Resource(pipelinesV1.GroupVersion().WithResource("pipelineruns")).Namespace(ns)
	runOf := map[string]string{}
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
		metav1.DeletePropagationForeground} {
		name := strings.ToLower(string(policy))
		owner := create(t, ns, pipeline(name))
		run, err := client.Create(t.Context(), runRequest(name), metav1.CreateOptions{}, "run")
		if err != nil {
			t.Fatal(err)
		}
		if references := run.GetOwnerReferences(); run.GetKind() != "PipelineRun" ||
			len(references) != 1 || references[0].UID != owner.GetUID() {
			t.Fatalf("the run of %s is %v", name, run)
		}
		runOf[name] = run.GetName()
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name + "-child",
			OwnerReferences: run.GetOwnerReferences()}}
		if _, err := env.client.CoreV1().ConfigMaps(ns).Create(t.Context(), config,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := client.Delete(t.Context(), name,
			metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"background", "foreground"} {
		// The collector looks for new kinds every 30 seconds.
		gone(t, 2*time.Minute, "the run of "+name, func() error {
			_, err := runs.Get(t.Context(), runOf[name], metav1.GetOptions{})
			return err
		})
		gone(t, time.Minute, "the dependent config map of "+name, func() error {
			_, err := env.client.CoreV1().ConfigMaps(ns).Get(t.Context(), name+"-child",
				metav1.GetOptions{})
			return err
		})
		gone(t, time.Minute, "the owner "+name, func() error {
			_, err := client.Get(t.Context(), name, metav1.GetOptions{})
			return err
		})
	}
	// An owner in the cluster, a dependent of ours.
	owner, err := env.client.CoreV1().ConfigMaps(ns).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dependent := pipeline("dependent")
	dependent.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap",
		Name: "owner", UID: owner.UID}})
	create(t, ns, dependent)
	if err := env.client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "owner",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, time.Minute, "the dependent of a config map", func() error {
		_, err := client.Get(t.Context(), "dependent", metav1.GetOptions{})
		return err
	})
}

// testAudit finds in the logs of the replicas who did what.
func testAudit(t *testing.T) {
	ns := newNamespace(t)
	editor := clientOf(t, user(t, ns, "audited-editor", "edit")).Resource(pipelinesV1).Namespace(ns)
	eventually(t, 30*time.Second, func() error {
		_, err := editor.Create(t.Context(), pipeline("audited"), metav1.CreateOptions{})
		return err
	})
	if err := editor.Delete(t.Context(), "audited", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"create", "delete"} {
		eventually(t, 10*time.Second, func() error {
			for _, event := range auditEvents(t) {
				if event.Verb == verb && event.ObjectRef != nil &&
					event.ObjectRef.Namespace == ns && event.User.Username == "audited-editor" &&
					event.ObjectRef.Resource == "pipelines" && event.ResponseStatus != nil &&
					event.ResponseStatus.Code < 300 {
					return nil
				}
			}
			return fmt.Errorf("no audit event says that audited-editor did %s in %s", verb, ns)
		})
	}
}

// auditEvents are the events that the replicas have printed.
func auditEvents(t *testing.T) []auditv1.Event {
	t.Helper()
	var events []auditv1.Event
	for _, pod := range env.installation.pods(t) {
		running := env.node.Process(pod.UID)
		if running == nil {
			continue
		}
		events = append(events, parseAuditEvents(running.Log())...)
	}
	return events
}

// parseAuditEvents finds the audit events among the lines of a log.
func parseAuditEvents(log string) []auditv1.Event {
	var events []auditv1.Event
	for line := range strings.Lines(log) {
		var event auditv1.Event
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &event) == nil &&
			event.Kind == "Event" {
			events = append(events, event)
		}
	}
	return events
}
