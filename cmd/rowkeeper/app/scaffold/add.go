package scaffold

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/mod/modfile"
)

// Added says what [AddKind] has done.
type Added struct {
	// Resource is that of the kind, and Versions those in which it is served.
	Resource string
	Versions []string
	// Written and Changed are the names of files.
	Written, Changed []string
	// Generates says that the project has generated files, which [Generate] writes again.
	Generates bool
}

// AddKind adds a kind to the project in a directory. The kind looks alike in all versions of the
// group: it has no past that an older version would have to show.
func AddKind(dir, name string) (*Added, error) {
	read := func(name string) ([]byte, error) {
		return os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	}
	mod, err := read("go.mod")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no project: it has no go.mod; rowkeeper init makes one", dir)
	}
	if err != nil {
		return nil, err
	}
	g, err := findGroup(dir)
	if err != nil {
		return nil, err
	}
	if err := checkKind(g.name, name); err != nil {
		return nil, err
	}
	k := newKind(g.variant, modfile.ModulePath(mod), g.name, name, g.versions)
	files := Files{}
	if err := k.addTo(files); err != nil {
		return nil, err
	}
	changed := map[string][]byte{}
	for _, place := range g.places(k) {
		old, err := read(place.file)
		if errors.Is(err, fs.ErrNotExist) && place.optional {
			continue
		}
		if err != nil {
			return nil, err
		}
		text, err := place.change(old)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, filepath.FromSlash(place.file)), err)
		}
		if string(text) != string(old) {
			changed[place.file] = text
		}
	}
	if err := files.Write(dir); err != nil {
		return nil, err
	}
	for name, text := range changed {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), text,
			0o644); err != nil {
			return nil, err
		}
	}
	return &Added{Resource: k.Resource, Versions: g.versions,
		Written: slices.Sorted(maps.Keys(files)), Changed: slices.Sorted(maps.Keys(changed)),
		Generates: g.variant != Kinds}, nil
}

// place is where a project has a list of its kinds, or of what belongs to them.
type place struct {
	file   string
	change func([]byte) ([]byte, error)
	// optional says that a project may be without the file.
	optional bool
}

// places are those in which another kind is named.
func (g *group) places(k kind) []place {
	types := "&" + k.Name + "{}, &" + k.Name + "List{}"
	users := func(file string) place {
		return place{file, func(old []byte) ([]byte, error) {
			return resources.ReplaceAll(old, []byte("${1}, "+k.Resource+"]")), nil
		}, true}
	}
	switch g.variant {
	case Registry:
		places := []place{
			{file: "api/register.go", change: arguments("AddKnownTypes").with(types)},
			{file: "registry/registry.go", change: elements("kinds").with(k.Name)},
			users("deploy/" + roles),
		}
		for _, version := range g.versions {
			places = append(places, place{file: "api/" + version + "/register.go",
				change: arguments("AddKnownTypes").with(types)})
		}
		return places
	case Controller:
		return []place{
			{file: g.file, change: arguments("AddKnownTypes").with(types)},
			{file: "internal/controller/controllers.go", change: list(ranged).with(
				"&" + k.Name + "Reconciler{manager.GetClient()}")},
			{file: "config/crd/kustomization.yaml", change: func(old []byte) ([]byte, error) {
				definition := "\n- bases/" + k.Group + "_" + k.Resource + ".yaml"
				if !bases.Match(old) {
					return nil, errors.New("it names no file of bases: add the definition by hand")
				}
				return bases.ReplaceAll(old, []byte("${0}"+definition)), nil
			}},
			users("config/rbac/roles-for-users.yaml"),
		}
	}
	return []place{
		{file: groupFile, change: elementsOfField("Group", "Kinds").with("kind" + k.Name)},
		// A project without clients has no such file.
		{"api/" + k.Hub + "/register.go", arguments("AddKnownTypes").with(types), true},
		users("deploy/" + roles),
	}
}

var (
	// resources is a list of resources in the roles for users that has no subresource.
	resources = regexp.MustCompile(`(?m)^(  resources: \[[a-z0-9, ]+)\]$`)
	// bases are the definitions in a list of manifests, to the last one.
	bases = regexp.MustCompile(`(?m)^- bases/.*(?:\n- bases/.*)*`)
)
