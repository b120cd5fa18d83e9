package main

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/rowkeeper/rowkeeper/pkg/kinds"
	"github.com/rowkeeper/rowkeeper/pkg/testkit"
)

// A session lasts for an hour after it was written last.
func TestSessionsExpire(t *testing.T) {
	api, err := kinds.New(group)
	if err != nil {
		t.Fatal(err)
	}
	server := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{FakeClock: true})
	sessions := dynamic.NewForConfigOrDie(server.Config).Resource(schema.GroupVersionResource{
		Group: "example.com", Version: "v1", Resource: "sessions"}).Namespace("default")
	jane := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Session",
		"metadata": map[string]any{"name": "jane"},
		"spec":     map[string]any{"user": "jane"},
	}}
	if _, err := sessions.Create(t.Context(), jane, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	server.Advance(59 * time.Minute)
	if _, err := sessions.Get(t.Context(), "jane", metav1.GetOptions{}); err != nil {
		t.Errorf("after 59 minutes: %v", err)
	}
	server.Advance(2 * time.Minute)
	if _, err := sessions.Get(t.Context(), "jane",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after 61 minutes: %v, want that it is not found", err)
	}
}

// A session without a user is refused.
func TestUserIsRequired(t *testing.T) {
	api, err := kinds.New(group)
	if err != nil {
		t.Fatal(err)
	}
	server := testkit.Start(t, testkit.API{Scheme: api.Scheme, Codecs: api.Codecs,
		NewConfig: api.NewConfig, New: api.New}, testkit.Options{})
	sessions := dynamic.NewForConfigOrDie(server.Config).Resource(schema.GroupVersionResource{
		Group: "example.com", Version: "v1", Resource: "sessions"}).Namespace("default")
	nobody := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Session",
		"metadata": map[string]any{"name": "nobody"},
		"spec":     map[string]any{"user": ""},
	}}
	if _, err := sessions.Create(t.Context(), nobody,
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("got %v, want that it is invalid", err)
	}
}
