package main

import (
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
)

func TestManifestsAreValidAndOfRealisticSize(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	g := generator{rand.New(rand.NewPCG(1, 0))}
	smallest, largest := 1<<30, 0
	for i := range 1000 {
		text, err := marshal(g.pipeline(i))
		if err != nil {
			t.Fatal(err)
		}
		smallest, largest = min(smallest, len(text)), max(largest, len(text))
		if len(text) < 1000 || len(text) > 20<<10 {
			t.Errorf("manifest %d has %d bytes, want 1 to 20 KB", i, len(text))
		}
		var p v1.Pipeline
		if err := yaml.UnmarshalStrict(text, &p); err != nil {
			t.Fatalf("manifest %d: %v", i, err)
		}
		scheme.Default(&p)
		var internal ci.Pipeline
		if err := scheme.Convert(&p, &internal, nil); err != nil {
			t.Fatal(err)
		}
		if errs := validation.ValidatePipeline(&internal); len(errs) > 0 {
			t.Errorf("manifest %d is not valid: %v", i, errs.ToAggregate())
		}
	}
	t.Logf("%d to %d bytes", smallest, largest)
}
