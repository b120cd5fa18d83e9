package pipelinepolicy

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

func TestValidation(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	s := strategy{scheme, names.SimpleNameGenerator, rest.DeclarativeValidation{Scheme: scheme}}
	ctx := delegate.Request(t.Context(), "create",
		v1.SchemeGroupVersion.WithResource("pipelinepolicies"), "")
	for name, tc := range map[string]struct {
		spec ci.PipelinePolicySpec
		want string
	}{
		"valid": {ci.PipelinePolicySpec{BannedNames: []string{"tmp-*"},
			Mirrors: []ci.ImageMirror{{Prefix: "a/", Replacement: "b/"}}}, ""},
		"empty": {ci.PipelinePolicySpec{Message: "no"},
			"spec: Required value: a policy bans names or images, or has mirrors"},
		"empty pattern": {ci.PipelinePolicySpec{BannedImages: []string{""}},
			"spec.bannedImages[0]: Too short"},
		"twice": {ci.PipelinePolicySpec{BannedImages: []string{"a", "a"}},
			"spec.bannedImages[1]: Duplicate value"},
		"long pattern": {ci.PipelinePolicySpec{BannedNames: []string{strings.Repeat("x", 513)}},
			"spec.bannedNames[0]: Too long"},
		"mirror": {ci.PipelinePolicySpec{Mirrors: []ci.ImageMirror{{Prefix: "a/"}}},
			"spec.mirrors[0].replacement: Required value"},
		"mirrors": {ci.PipelinePolicySpec{Mirrors: []ci.ImageMirror{{Prefix: "a/",
			Replacement: "b"}, {Prefix: "a/", Replacement: "c"}}},
			"spec.mirrors[1]: Duplicate value"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &ci.PipelinePolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: tc.spec}
			rest.FillObjectMetaSystemFields(p)
			err := rest.BeforeCreate(s, ctx, p)
			if tc.want == "" && err != nil ||
				tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	old := &ci.PipelinePolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", ResourceVersion: "1",
		Generation: 1}, Spec: ci.PipelinePolicySpec{BannedNames: []string{"a"}}}
	p := old.DeepCopy()
	p.Spec.BannedNames = nil
	if err := rest.BeforeUpdate(s, ctx, p, old); err == nil {
		t.Error("a policy was emptied")
	}
	if p.Generation != 2 {
		t.Errorf("generation %d", p.Generation)
	}
}
