package logchunk

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/registry/delegate"
)

func TestChunksAreWrittenOnce(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	s := strategy{scheme, names.SimpleNameGenerator, rest.DeclarativeValidation{Scheme: scheme}}
	ctx := delegate.Request(t.Context(), "create", v1.SchemeGroupVersion.WithResource("logchunks"),
		"default")
	chunk := func() *ci.LogChunk {
		c := &ci.LogChunk{
			ObjectMeta: metav1.ObjectMeta{Name: "run-0", Namespace: "default"},
			Spec:       ci.LogChunkSpec{RunName: "run", RunUID: "1", Lines: []string{"one"}},
		}
		rest.FillObjectMetaSystemFields(c)
		return c
	}
	if err := rest.BeforeCreate(s, ctx, chunk()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*ci.LogChunk){
		"spec.runName: Required value": func(c *ci.LogChunk) { c.Spec.RunName = "" },
		"spec.sequence: Invalid value": func(c *ci.LogChunk) { c.Spec.Sequence = -1 },
		"spec.lines[0]: Too long": func(c *ci.LogChunk) {
			c.Spec.Lines[0] = strings.Repeat("x", 65537)
		},
		"spec.lines: Too many": func(c *ci.LogChunk) {
			c.Spec.Lines = make([]string, 10001)
		},
	} {
		c := chunk()
		change(c)
		if err := rest.BeforeCreate(s, ctx, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	old := chunk()
	old.ResourceVersion = "1"
	changed := old.DeepCopy()
	changed.Spec.Lines[0] = "two"
	if err := rest.BeforeUpdate(s, ctx, changed, old); err == nil ||
		!strings.Contains(err.Error(), "spec: Invalid value") {
		t.Errorf("a chunk was changed: %v", err)
	}
	labelled := old.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	if err := rest.BeforeUpdate(s, ctx, labelled, old); err != nil {
		t.Errorf("a chunk cannot be labelled: %v", err)
	}
}
