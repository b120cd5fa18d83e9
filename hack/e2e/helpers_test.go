package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var (
	pipelinesV1 = schema.GroupVersionResource{Group: group, Version: "v1",
		Resource: "pipelines"}
	pipelinesV1alpha1 = schema.GroupVersionResource{Group: group, Version: "v1alpha1",
		Resource: "pipelines"}
)

// newNamespace makes a namespace for a test, and deletes it at the end without waiting for it.
func newNamespace(t *testing.T) string {
	t.Helper()
	created, err := env.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := created.Name
	t.Cleanup(func() { // t.Context has ended by then
		if err := env.client.CoreV1().Namespaces().Delete(env.context, name,
			metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	// Admission plugins learn of a new namespace through informers, on every replica for itself;
	// until then they refuse. They ask again themselves before they do, so nothing has to be waited
	// for here.
	return name
}

// pipeline makes a Pipeline of version v1.
func pipeline(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1",
		"kind":       "Pipeline",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			"image": "golang:1.26",
			"steps": []any{map[string]any{"name": "test", "command": []any{"make", "test"}}},
		},
	}}
}

// pipelineV1alpha1 makes one of version v1alpha1.
func pipelineV1alpha1(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1alpha1",
		"kind":       "Pipeline",
		"metadata":   map[string]any{"name": name},
		"spec":       map[string]any{"image": "golang:1.26", "commands": []any{"make test"}},
	}}
}

// runRequest asks for a run of a pipeline.
func runRequest(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1", "kind": "PipelineRunRequest",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{},
	}}
}

// create creates a Pipeline of version v1 as the administrator.
func create(t *testing.T, namespace string,
	object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := env.dynamic.Resource(pipelinesV1).Namespace(namespace).Create(t.Context(),
		object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// clientOf makes a dynamic client.
func clientOf(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// user makes a user of the cluster, with a role of the cluster in a namespace if one is named.
func user(t *testing.T, namespace, name, role string) *rest.Config {
	t.Helper()
	config, _, err := env.User(name)
	if err != nil {
		t.Fatal(err)
	}
	if role != "" {
		bind(t, namespace, role, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName,
			Name: name})
	}
	return config
}

func bind(t *testing.T, namespace, role string, subject rbacv1.Subject) {
	t.Helper()
	_, err := env.client.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{subject},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// expect fails the test unless an error has the reason.
func expect(t *testing.T, what string, err error, reason metav1.StatusReason) {
	t.Helper()
	if got := apierrors.ReasonForError(err); err == nil || got != reason {
		t.Errorf("%s: got %v (%s), want an error of reason %s", what, err, got, reason)
	}
}

// gone waits until get says that there is nothing.
func gone(t *testing.T, limit time.Duration, what string, get func() error) {
	t.Helper()
	eventually(t, limit, func() error {
		err := get()
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s still exists", what)
	})
}
