package pipelinepolicy

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	admissiontesting "k8s.io/apiserver/pkg/admission/testing"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/example/generated/clientset/versioned/fake"
	informers "github.com/rowkeeper/rowkeeper/pkg/example/generated/informers/externalversions"
)

func policy(name string, spec v1.PipelinePolicySpec) *v1.PipelinePolicy {
	return &v1.PipelinePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

// plugin returns a plugin that knows the policies.
func plugin(t *testing.T, policies ...runtime.Object) *Plugin {
	t.Helper()
	registered := admission.NewPlugins()
	Register(registered)
	factory := informers.NewSharedInformerFactory(fake.NewSimpleClientset(policies...), 0)
	p, err := registered.InitPlugin(Name, nil, Initializer{factory})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	for informer, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			t.Fatalf("the informer of %v is not in sync", informer)
		}
	}
	return p.(*Plugin)
}

func pipeline(name, image string, steps ...string) *ci.Pipeline {
	p := &ci.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: ci.PipelineSpec{Image: image}}
	for _, image := range steps {
		p.Spec.Steps = append(p.Spec.Steps, ci.Step{Name: "step", Image: image})
	}
	return p
}

func attributes(p, old *ci.Pipeline, subresource string) admission.Attributes {
	operation, options := admission.Create, runtime.Object(&metav1.CreateOptions{})
	var before runtime.Object
	if old != nil {
		operation, options, before = admission.Update, &metav1.UpdateOptions{}, old
	}
	return admission.NewAttributesRecord(p, before, v1.SchemeGroupVersion.WithKind("Pipeline"),
		p.Namespace, p.Name, v1.SchemeGroupVersion.WithResource("pipelines"), subresource,
		operation, options, false, nil)
}

func TestValidate(t *testing.T) {
	p := plugin(t,
		policy("no-temporary", v1.PipelinePolicySpec{BannedNames: []string{"tmp-*", "test"},
			Message: "choose a name that says what it is for"}),
		policy("trusted", v1.PipelinePolicySpec{BannedImages: []string{"evil.example.com/*",
			"*:latest"}}),
	)
	for name, tc := range map[string]struct {
		p, old      *ci.Pipeline
		subresource string
		want        string
	}{
		"allowed": {p: pipeline("build", "golang:1.26", "", "alpine:3")},
		"name": {p: pipeline("tmp-1", "golang:1.26"),
			want: `pipelines.ci.rowkeeper.dev "tmp-1" is forbidden: the name "tmp-1" is banned by the PipelinePolicy no-temporary: choose a name that says what it is for`},
		"image": {p: pipeline("build", "golang:latest"),
			want: `spec.image: the image "golang:latest" is banned by the PipelinePolicy trusted`},
		"no tag": {p: pipeline("build", "golang"),
			want: `spec.image: the image "golang" is banned by the PipelinePolicy trusted`},
		"no tag, a port": {p: pipeline("build", "localhost:5000/tool"),
			want: `spec.image: the image "localhost:5000/tool" is banned`},
		"a tag and a port": {p: pipeline("build", "localhost:5000/team/tool:1")},
		"no tag, a digest": {p: pipeline("build", "golang@sha256:"+strings.Repeat("0", 64))},
		"tag and digest":   {p: pipeline("build", "golang:latest@sha256:"+strings.Repeat("0", 64))},
		"no tag before": {p: pipeline("build", "golang", "alpine:3"),
			old: pipeline("build", "golang")},
		"image of a step": {p: pipeline("build", "golang:1.26", "", "evil.example.com/a/b:1"),
			want: `spec.steps[1].image: the image "evil.example.com/a/b:1" is banned by the PipelinePolicy trusted`},
		"banned before": {p: pipeline("tmp-1", "golang:latest", "alpine:3"),
			old: pipeline("tmp-1", "golang:latest")},
		"banned elsewhere": {p: pipeline("build", "golang:latest"),
			old: pipeline("build", "golang:1.26"), want: "spec.image"},
		"status": {p: pipeline("tmp-1", "golang:latest"),
			old: pipeline("tmp-1", "golang:1.26"), subresource: "status"},
	} {
		t.Run(name, func(t *testing.T) {
			err := p.Validate(t.Context(), attributes(tc.p, tc.old, tc.subresource), nil)
			if tc.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A refusal names a field that the version of the request has.
func TestFieldsOfTheRequestedVersion(t *testing.T) {
	p := plugin(t, policy("trusted", v1.PipelinePolicySpec{BannedImages: []string{"evil/*"}}))
	a := attributes(pipeline("build", "golang:1.26", "evil/x:1"), nil, "")
	a = admission.NewAttributesRecord(a.GetObject(), nil,
		v1alpha1.SchemeGroupVersion.WithKind("Pipeline"), "default", "build",
		v1alpha1.SchemeGroupVersion.WithResource("pipelines"), "", admission.Create,
		a.GetOperationOptions(), false, nil)
	const want = `: metadata.annotations[ci.rowkeeper.dev/structured]: the image "evil/x:1" is banned`
	if err := p.Validate(t.Context(), a, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func TestAdmit(t *testing.T) {
	p := admissiontesting.WithReinvocationTesting(t, plugin(t,
		policy("b", v1.PipelinePolicySpec{Mirrors: []v1.ImageMirror{{Prefix: "docker.io/",
			Replacement: "second.example.com/"},
			{Prefix: "docker.io/library/", Replacement: "library.example.com/"}}}),
		policy("a", v1.PipelinePolicySpec{Mirrors: []v1.ImageMirror{{Prefix: "docker.io/",
			Replacement: "first.example.com/"}}}),
		policy("c", v1.PipelinePolicySpec{Mirrors: []v1.ImageMirror{{Prefix: "hub/",
			Replacement: "hub/mirror/"}}}),
	))
	got := pipeline("build", "docker.io/library/golang:1.26", "", "docker.io/team/tool:1",
		"quay.io/x:1", "hub/a:1")
	if err := p.Admit(t.Context(), attributes(got, nil, ""), nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"library.example.com/golang:1.26", "first.example.com/team/tool:1",
		"quay.io/x:1", "hub/mirror/a:1"}
	for i, image := range images(got) {
		if *image.value != want[i] {
			t.Errorf("%s is %s, want %s", image.field, *image.value, want[i])
		}
	}
}

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		pattern, text string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"", "", true}, {"*", "", true}, {"*", "a/b", true},
		{"a*", "abc", true}, {"a*", "ba", false}, {"*a", "ba", true}, {"*a", "ab", false},
		{"a*b*c", "a1b2c", true}, {"a*b*c", "acb", false}, {"a*bc*c", "abcc", true},
		{"ab*ba", "aba", false}, {"a**b", "ab", true},
		{"*b*b", "ab", false}, {"*b*b", "abb", true},
	} {
		if got := matches(tc.pattern, tc.text); got != tc.want {
			t.Errorf("matches(%q, %q) = %v", tc.pattern, tc.text, got)
		}
	}
}

func TestWithoutInformers(t *testing.T) {
	registered := admission.NewPlugins()
	Register(registered)
	if _, err := registered.InitPlugin(Name, nil, admission.PluginInitializers{}); err == nil {
		t.Error("a plugin without informers is taken for initialized")
	}
}
