package scaffold

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/version"
)

var (
	kindName    = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	versionName = regexp.MustCompile(`^v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?$`)
)

// checkName tells whether a project can have this name, which its Service, its namespace and its
// program have, too.
func checkName(name string) error {
	if wrong := validation.IsDNS1035Label(name); len(wrong) > 0 {
		return fmt.Errorf("the project cannot be named %q, because a Service cannot: %s", name,
			wrong[0])
	}
	if wrong := validation.IsDNS1123Label(namespace(name)); len(wrong) > 0 {
		return fmt.Errorf("the project cannot be named %q, because its namespace %s cannot: %s",
			name, namespace(name), wrong[0])
	}
	return nil
}

// checkGroup asks of a group what Kubernetes asks of those of CustomResourceDefinitions.
func checkGroup(group string) error {
	switch wrong := validation.IsDNS1123Subdomain(group); {
	case group == "":
		return errors.New("the API group has no name: give --group, such as ci.example.com")
	case len(wrong) > 0:
		return fmt.Errorf("the group cannot be named %q: %s", group, wrong[0])
	case !strings.Contains(group, "."):
		return fmt.Errorf("the group cannot be named %q: without a dot it would be one of "+
			"Kubernetes' own; take a domain of yours, such as %s.example.com", group, group)
	case slices.ContainsFunc([]string{"k8s.io", "kubernetes.io"}, func(domain string) bool {
		return group == domain || strings.HasSuffix(group, "."+domain)
	}):
		return fmt.Errorf("the group cannot be named %q: k8s.io and kubernetes.io belong to "+
			"Kubernetes; take a domain of yours", group)
	}
	return nil
}

func checkKind(group, kind string) error {
	if kind == "" {
		return errors.New("the kind has no name: give one such as Pipeline")
	}
	if !kindName.MatchString(kind) {
		return fmt.Errorf("the kind cannot be named %q: a kind's name has letters and digits, and "+
			"begins with a capital letter, such as Pipeline", kind)
	}
	if wrong := validation.IsDNS1035Label(strings.ToLower(kind)); len(wrong) > 0 {
		return fmt.Errorf("the kind cannot be named %q: %s", kind, wrong[0])
	}
	if strings.HasSuffix(kind, "List") {
		return fmt.Errorf("the kind cannot be named %q: that would be a list of the kind %q", kind,
			strings.TrimSuffix(kind, "List"))
	}
	scheme, gv := runtime.NewScheme(), schema.GroupVersion{Group: group, Version: "v1"}
	metav1.AddToGroupVersion(scheme, gv)
	if scheme.Recognizes(gv.WithKind(kind)) {
		return fmt.Errorf("the kind cannot be named %q: every API group has a kind of that name",
			kind)
	}
	return nil
}

// sortVersions checks versions and puts those first that Kubernetes prefers: v2, v1, v1beta1.
func sortVersions(versions []string) ([]string, error) {
	if len(versions) == 0 {
		return nil, errors.New("the group has no versions: give --versions, such as v1alpha1,v1")
	}
	for i, v := range versions {
		if !versionName.MatchString(v) {
			return nil, fmt.Errorf("the version cannot be named %q: versions are named as v1, "+
				"v1beta1 and v1alpha1 are", v)
		}
		if wrong := validation.IsDNS1035Label(v); len(wrong) > 0 {
			return nil, fmt.Errorf("the version cannot be named %q: %s", v, wrong[0])
		}
		if slices.Contains(versions[:i], v) {
			return nil, fmt.Errorf("the version %s is there twice", v)
		}
	}
	return slices.SortedFunc(slices.Values(versions), func(a, b string) int {
		return version.CompareKubeAwareVersionStrings(b, a)
	}), nil
}

func checkModule(path string) error {
	if err := module.CheckImportPath(path); err != nil {
		return fmt.Errorf("the module cannot be named %q: %w", path, errors.Unwrap(err))
	}
	if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
		return fmt.Errorf("the module cannot be named %q: without a dot in %s it would be one of "+
			"Go's own; give --module a path such as example.com/%s", path, first, path)
	}
	if _, _, ok := module.SplitPathVersion(path); !ok {
		return fmt.Errorf("the module cannot be named %q: a path ends with a major version only "+
			"from /v2 on", path)
	}
	return nil
}
