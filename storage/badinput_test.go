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
	db := memory(t)
	config := podConfig()
	s, release, err := db.NewStore(config)
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, pod("a"))
	open(t, db, config) // the same codec is nothing special

	foreign := podConfig()
	foreign.Codec = serializer.NewCodecFactory(runtime.NewScheme()).LegacyCodec(schema.GroupVersion{Group: "other.example.com", Version: "v1"})
	if _, _, err := db.NewStore(foreign); err == nil ||
		!strings.Contains(err.Error(), "/registry/pods/ are stored with another codec") {
		t.Errorf("another codec: %v", err)
	}
	if got := list(t, s, everything("")); len(got.Items) != 1 {
		t.Errorf("%d objects are there, want 1", len(got.Items))
	}
	foreign.Prefix = "/elsewhere"
	open(t, db, foreign)
	release()
}

func TestStoreAfterClose(t *testing.T) {
	db := memory(t)
	s := pods(t, db)
	create(t, s, pod("a"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"create": s.Create(t.Context(), podKey("b"), pod("b"), nil, 0),
		"get":    s.Get(t.Context(), podKey("a"), apistorage.GetOptions{}, &example.Pod{}),
		"list":   s.GetList(t.Context(), "/pods", everything(""), &example.PodList{}),
		"delete": s.Delete(t.Context(), podKey("a"), &example.Pod{}, nil,
			apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{}),
		"ready": s.ReadinessCheck(),
	} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: %v, want an error which says that the database is closed", what, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestNilCodec(t *testing.T) {
	db := memory(t)
	c := podConfig()
	c.Codec = nil
	if _, _, err := db.NewStore(c); err == nil || !strings.Contains(err.Error(), "needs a codec") {
		t.Errorf("a store without a codec: %v", err)
	}
	if _, err := NewRESTOptionsGetter(db, RESTOptions{}); err == nil ||
		!strings.Contains(err.Error(), "need a codec") {
		t.Errorf("registries without a codec: %v", err)
	}
	if _, err := NewRESTOptionsGetter(nil, RESTOptions{Codec: codec}); err == nil ||
		!strings.Contains(err.Error(), "need a database") {
		t.Errorf("registries without a database: %v", err)
	}
}
