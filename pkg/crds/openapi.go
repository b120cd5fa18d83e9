package crds

import (
	"maps"
	"sync"

	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-openapi/pkg/common"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/rowkeeper/rowkeeper/pkg/crds/internal/builtin"
	"github.com/rowkeeper/rowkeeper/pkg/openapi"
)

// referred are definitions with the references that are in them.
type referred struct {
	definitions map[string]common.OpenAPIDefinition
	references  map[string]string
}

// referredBy are the definitions of this process by how the references in them begin: there are two
// kinds of documents. Upstream makes all 1,600 that it has at a time, for each document of each
// server.
var referredBy sync.Map

// definitionsOf returns upstream's definitions of what is served here.
func definitionsOf(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	begin := ref("")
	found, ok := referredBy.Load(begin.String())
	if !ok || !found.(*referred).has(ref) {
		found = refer(ref)
		referredBy.Store(begin.String(), found)
	}
	all := maps.Clone(found.(*referred).definitions)
	for name, d := range all { // builders add to the extensions
		d.Schema.Extensions = maps.Clone(d.Schema.Extensions)
		all[name] = d
	}
	return all
}

// has tells whether the references are what a callback makes. An author may give types other names.
func (r *referred) has(ref common.ReferenceCallback) bool {
	for name, reference := range r.references {
		if now := ref(name); now.String() != reference {
			return false
		}
	}
	return true
}

// refer makes the definitions of the kinds that are served, and of all that they refer to.
func refer(ref common.ReferenceCallback) *referred {
	wanted := sets.KeySet(apiextensionsopenapi.GetOpenAPIDefinitions(ref)).UnsortedList()
	for kind, t := range builtin.Scheme.AllKnownTypes() {
		if builtin.Serves(kind) {
			wanted = append(wanted, openapi.TypeName(t))
		}
	}
	all := generatedopenapi.GetOpenAPIDefinitions(ref)
	r := &referred{map[string]common.OpenAPIDefinition{}, map[string]string{}}
	for len(wanted) > 0 {
		name := wanted[0]
		wanted = wanted[1:]
		d, ok := all[name]
		if _, twice := r.definitions[name]; twice || !ok {
			continue
		}
		r.definitions[name] = d
		for _, other := range d.Dependencies {
			reference := ref(other)
			r.references[other] = reference.String()
			wanted = append(wanted, other)
		}
	}
	return r
}
