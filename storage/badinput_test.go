package storage

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"
)

// A prefix that is used twice with different codecs is a mistake that costs an error and no object.
func TestPrefixWithTwoCodecs(t *testing.T) {
	store := memory(t)
	config := podConfig()
	s, release, err := store.Resource(config)
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, pod("a"))
	open(t, store, config) // the same codec is nothing special

	foreign := podConfig()
	foreign.Codec = serializer.NewCodecFactory(runtime.NewScheme()).LegacyCodec(schema.GroupVersion{Group: "other.example.com", Version: "v1"})
	if _, _, err := store.Resource(foreign); err == nil ||
		!strings.Contains(err.Error(), "/registry/pods/ are stored with another codec") {
		t.Errorf("another codec: %v", err)
	}
	if got := list(t, s, everything("")); len(got.Items) != 1 {
		t.Errorf("%d objects are there, want 1", len(got.Items))
	}
	foreign.Prefix = "/elsewhere"
	open(t, store, foreign)
	release()
}

func TestStoreAfterClose(t *testing.T) {
	store := memory(t)
	r := pods(t, store)
	create(t, r, pod("a"))
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"create": r.Create(t.Context(), podKey("b"), pod("b"), nil, 0),
		"get":    r.Get(t.Context(), podKey("a"), apistorage.GetOptions{}, &example.Pod{}),
		"list":   r.GetList(t.Context(), "/pods", everything(""), &example.PodList{}),
		"delete": r.Delete(t.Context(), podKey("a"), &example.Pod{}, nil,
			apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{}),
		"ready": r.ReadinessCheck(),
	} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: %v, want an error which says that the database is closed", what, err)
		}
	}
	if err := store.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestNilCodec(t *testing.T) {
	store := memory(t)
	c := podConfig()
	c.Codec = nil
	if _, _, err := store.Resource(c); err == nil || !strings.Contains(err.Error(), "needs a codec") {
		t.Errorf("a store without a codec: %v", err)
	}
	if _, err := NewRESTOptionsGetter(store, RESTOptions{}); err == nil ||
		!strings.Contains(err.Error(), "need a codec") {
		t.Errorf("registries without a codec: %v", err)
	}
	if _, err := NewRESTOptionsGetter(nil, RESTOptions{Codec: codec}); err == nil ||
		!strings.Contains(err.Error(), "need a database") {
		t.Errorf("registries without a database: %v", err)
	}
}
