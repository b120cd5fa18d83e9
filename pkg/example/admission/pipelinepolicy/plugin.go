// Package pipelinepolicy is the admission plugin that enforces PipelinePolicies on pipelines. It
// replaces images by those of the mirrors, and refuses banned names and images. It knows the
// policies by an informer, so no request waits for reading them.
package pipelinepolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1alpha1"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/validation"
	informers "github.com/rowkeeper/rowkeeper/pkg/example/generated/informers/externalversions"
	listers "github.com/rowkeeper/rowkeeper/pkg/example/generated/listers/ci/v1"
)

// Name is the plugin's name.
const Name = "PipelinePolicy"

// Register makes the plugin known to those who choose plugins by name.
func Register(plugins *admission.Plugins) {
	plugins.Register(Name, func(io.Reader) (admission.Interface, error) { return New(), nil })
}

// Plugin mutates and validates pipelines.
type Plugin struct {
	*admission.Handler
	policies listers.PipelinePolicyLister
}

var (
	_ admission.MutationInterface       = &Plugin{}
	_ admission.ValidationInterface     = &Plugin{}
	_ admission.InitializationValidator = &Plugin{}
	_ WantsInformers                    = &Plugin{}
)

// New returns a plugin that has no policies yet.
func New() *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update)}
}

// WantsInformers is a plugin that asks for informers of this API.
type WantsInformers interface {
	admission.InitializationValidator
	SetInformers(informers.SharedInformerFactory)
}

// Initializer gives the informers to the plugins that ask for them.
type Initializer struct {
	Informers informers.SharedInformerFactory
}

// Initialize implements admission.PluginInitializer.
func (i Initializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(WantsInformers); ok {
		wants.SetInformers(i.Informers)
	}
}

// SetInformers makes the plugin follow the policies. Requests wait until it knows them.
func (p *Plugin) SetInformers(factory informers.SharedInformerFactory) {
	policies := factory.Ci().V1().PipelinePolicies()
	p.policies = policies.Lister()
	p.SetReadyFunc(policies.Informer().HasSynced)
}

// ValidateInitialization implements admission.InitializationValidator.
func (p *Plugin) ValidateInitialization() error {
	if p.policies == nil {
		return errors.New("the admission plugin " + Name + " was given no informers")
	}
	return nil
}

// Admit replaces the beginnings of images that have a mirror. Of several that fit, the longest
// counts, and of several policies that have it the first by name.
func (p *Plugin) Admit(_ context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	pipeline, ok := pipelineOf(a)
	if !ok {
		return nil
	}
	policies, err := p.list(a)
	if err != nil {
		return err
	}
	for _, image := range images(pipeline) {
		*image.value = mirrored(*image.value, policies)
	}
	return nil
}

// Validate refuses what is banned. An update is refused only for what it brings, so that a pipeline
// that was there before the ban can still be changed.
func (p *Plugin) Validate(_ context.Context, a admission.Attributes,
	_ admission.ObjectInterfaces) error {
	pipeline, ok := pipelineOf(a)
	if !ok {
		return nil
	}
	policies, err := p.list(a)
	if err != nil {
		return err
	}
	before := sets.New[string]()
	if old, ok := a.GetOldObject().(*ci.Pipeline); ok && old != nil {
		for _, image := range images(old) {
			before.Insert(*image.value)
		}
	}
	for _, policy := range policies {
		if a.GetOperation() == admission.Create &&
			matchesAny(policy.Spec.BannedNames, pipeline.Name) {
			return admission.NewForbidden(a,
				banned(policy, fmt.Sprintf("the name %q", pipeline.Name)))
		}
		for _, image := range images(pipeline) {
			if !before.Has(*image.value) && matchesImage(policy.Spec.BannedImages, *image.value) {
				name := image.field
				if a.GetKind().GroupVersion() == v1alpha1.SchemeGroupVersion {
					name = v1alpha1.FieldName(pipeline, name)
				}
				return admission.NewForbidden(a,
					banned(policy, fmt.Sprintf("%s: the image %q", name, *image.value)))
			}
		}
	}
	return nil
}

func banned(policy *v1.PipelinePolicy, what string) error {
	if policy.Spec.Message == "" {
		return fmt.Errorf("%s is banned by the PipelinePolicy %s", what, policy.Name)
	}
	return fmt.Errorf("%s is banned by the PipelinePolicy %s: %s", what, policy.Name,
		policy.Spec.Message)
}

// pipelineOf returns the pipeline that is about to be written. Those who write its status or scale
// change nothing that a policy rules.
func pipelineOf(a admission.Attributes) (*ci.Pipeline, bool) {
	pipeline, ok := a.GetObject().(*ci.Pipeline)
	return pipeline, ok && pipeline != nil && a.GetSubresource() == ""
}

// list returns the policies in the order of their names.
func (p *Plugin) list(a admission.Attributes) ([]*v1.PipelinePolicy, error) {
	if !p.WaitForReady() {
		return nil, admission.NewForbidden(a,
			errors.New("the policies for pipelines are not known yet: try again"))
	}
	policies, err := p.policies.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(policies, func(a, b *v1.PipelinePolicy) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return policies, nil
}

// image is an image in a pipeline, and the field of v1 that it is in.
type image struct {
	field string
	value *string
}

// images returns the images that are not empty.
func images(p *ci.Pipeline) []image {
	all := []image{{"spec.image", &p.Spec.Image}}
	for i := range p.Spec.Steps {
		all = append(all, image{fmt.Sprintf("spec.steps[%d].image", i), &p.Spec.Steps[i].Image})
	}
	return slices.DeleteFunc(all, func(i image) bool { return *i.value == "" })
}

func mirrored(image string, policies []*v1.PipelinePolicy) string {
	var best v1.ImageMirror
	for _, policy := range policies {
		for _, mirror := range policy.Spec.Mirrors {
			if strings.HasPrefix(mirror.Replacement, mirror.Prefix) &&
				strings.HasPrefix(image, mirror.Replacement) {
				continue // it was replaced when it came in before
			}
			if len(mirror.Prefix) > len(best.Prefix) && strings.HasPrefix(image, mirror.Prefix) {
				best = mirror
			}
		}
	}
	return best.Replacement + strings.TrimPrefix(image, best.Prefix)
}

// matchesImage tells whether one of the patterns is for an image. An image without tag and digest
// runs as the one with the tag latest, so that a ban of that tag is for it, too.
func matchesImage(patterns []string, image string) bool {
	return matchesAny(patterns, image) ||
		validation.Untagged(image) && matchesAny(patterns, image+validation.LatestTag)
}

func matchesAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return matches(pattern, text)
	})
}

// matches tells whether the text is what the pattern says, in which * stands for any text.
func matches(pattern, text string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		// The first place is the best one: it leaves the most text to the parts that follow.
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, last)
}
