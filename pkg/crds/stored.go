package crds

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// storedIn finds what is stored in a namespace by the keys in the database. They tell what
// definitions and discovery cannot: what other servers have, who may know a definition that this
// one has not heard of, and groups that it does not serve.
type storedIn struct {
	db interface {
		FirstKey(ctx context.Context, from, before string) (string, error)
		CountKeys(ctx context.Context, from, before string) (int64, error)
	}
	prefix string
	// core has the resources of the group without a name, see prefixOf.
	core sets.Set[string]
}

// resources returns the resources that have keys in the namespace, in the order of their keys. It
// takes two looks into an index for each resource that has any keys.
//
// A key is prefix/group/resource/namespace/name, or without the group for the core API. That of an
// object in no namespace has nothing below what would be its namespace.
func (s storedIn) resources(ctx context.Context, namespace string) ([]schema.GroupResource, error) {
	var found []schema.GroupResource
	first, end := s.prefix+"/", s.prefix+"0" // '0' is the successor of '/'
	for {
		key, err := s.db.FirstKey(ctx, first, end)
		if err != nil || key == "" {
			return found, err
		}
		parts := strings.Split(strings.TrimPrefix(key, s.prefix+"/"), "/")
		resource := schema.GroupResource{Resource: parts[0]}
		if !s.core.Has(parts[0]) && len(parts) > 1 {
			resource = schema.GroupResource{Group: parts[0], Resource: parts[1]}
		}
		directory := s.prefix + "/" + prefixOf(resource)
		inNamespace := directory + "/" + namespace
		switch key, err = s.db.FirstKey(ctx, inNamespace+"/", inNamespace+"0"); {
		case err != nil:
			return nil, err
		case key != "":
			found = append(found, resource)
		}
		first = directory + "0"
	}
}

// count is a [builtin.Count].
func (s storedIn) count(ctx context.Context, resource schema.GroupResource,
	namespace string) (int64, error) {
	if resource.Group == "" && !s.core.Has(resource.Resource) {
		return 0, nil // the key might be another group's
	}
	inNamespace := s.prefix + "/" + prefixOf(resource) + "/" + namespace
	return s.db.CountKeys(ctx, inNamespace+"/", inNamespace+"0")
}
