package history

import "strings"

// Split splits a key into its resource, namespace and name.
func Split(key string) (resource, namespace, name string) {
	resource, rest, _ := strings.Cut(key, "/")
	namespace, name, _ = strings.Cut(rest, "/")
	return resource, namespace, name
}

// Matches tells whether an object is selected.
func (s Selector) Matches(o Object) bool {
	resource, namespace, name := Split(o.Key)
	for _, c := range [][2]string{{s.Resource, resource}, {s.Namespace, namespace}, {s.Name, name},
		{s.Colour, o.Colour}, {s.Image, o.Image}} {
		if c[0] != "" && c[0] != c[1] {
			return false
		}
	}
	return true
}
