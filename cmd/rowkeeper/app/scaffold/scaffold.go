package scaffold

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"golang.org/x/mod/modfile"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/rowkeeper/rowkeeper/deploy"
)

// Variant says what a project is made of.
type Variant string

// The variants.
const (
	// Kinds is a server on package kinds.
	Kinds Variant = "kinds"
	// Registry is a server with strategies and registries by hand.
	Registry Variant = "registry"
	// Controller is a CustomResourceDefinition and its controller.
	Controller Variant = "controller"
)

// Variants are all variants.
var Variants = []Variant{Kinds, Registry, Controller}

// roots are the directories of templates that a variant consists of.
func (v Variant) roots() []string {
	if v == Controller {
		return []string{"all", string(v)}
	}
	return []string{"all", "server", string(v)}
}

func (v Variant) check() error {
	if !slices.Contains(Variants, v) {
		return fmt.Errorf("there is no variant %q: take %s", v, alternatives())
	}
	return nil
}

// checkVersions refuses what a variant cannot convert.
func (v Variant) checkVersions(versions []string) error {
	if v == Controller && len(versions) > 1 {
		return errors.New("the variant controller has one version, since a definition converts " +
			"between several by a webhook: give one by --versions, or take kinds or registry")
	}
	return nil
}

func alternatives() string {
	var names []string
	for _, v := range Variants {
		names = append(names, string(v))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Project is a project that is to be written.
type Project struct {
	// Variant is Kinds by default.
	Variant Variant
	// Name is that of the program, and of the Service in a cluster.
	Name string
	// Module is the path of the Go module. Default: the group and the name, which is a path that
	// nobody else has.
	Module string
	// Group, Kind and Versions make the API. With several versions, the kind looks otherwise in all
	// but the one that Kubernetes prefers.
	Group, Kind string
	Versions    []string
	// Rowkeeper is the library that the project needs.
	Rowkeeper Source
}

// Files are texts by their paths below the project's directory, with slashes.
type Files map[string]string

// goVersion is what this module needs, and so the projects; a test compares it with go.mod.
const goVersion = "1.26.0"

// modules are the modules that projects need besides, in the versions of this repository. A test
// compares them.
var modules = map[string]string{
	"k8s.io/code-generator":          "v0.37.2",
	"sigs.k8s.io/controller-runtime": "v0.25.2",
	"sigs.k8s.io/controller-tools":   "v0.23.0",
}

// templates are named as the files that they make. In parts/ are templates that others use, in all/
// the ones for every variant, in server/ the ones for servers, and in each other folder the ones
// for one variant. There is a file for each kind in place of KIND, and for versions in place of
// HUB, the version in which objects are stored, of OLDER, those in which the kind looks otherwise,
// and of VERSION, all. Registries have types of their own for the versions in which a kind looks as
// in HUB, too. GROUP and RESOURCE are those of the first kind.
//
// The pattern has the directories that begin with a dot, too.
//
//go:embed all:templates
var templates embed.FS

var functions = template.FuncMap{
	"title":     func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
	"list":      enumerate,
	"camel":     camel,
	"quotePath": modfile.AutoQuote,
	// There is room for versions between and below.
	"priority": func(i int) int { return max(1, 100-10*i) },
	// Tools take v1 at the end of a path for the version of a module, and not for a package's name.
	"alias": func(version string) string {
		if strings.Trim(version[1:], "0123456789") == "" {
			return version + " "
		}
		return ""
	},
}

// parts are the templates that others use.
var parts = template.Must(template.New("").Funcs(functions).ParseFS(templates,
	"templates/parts/*.tmpl"))

// project is what templates know, if they are not about a kind.
type project struct {
	Project
	GoVersion string
	Modules   map[string]string
	// Version is the one that a file is about, if it is about one.
	Version string
	Kind    kind
}

// kind is what templates of kinds know.
type kind struct {
	Variant             Variant
	Module, Group, Name string
	// Resource is the plural, and File the name of the kind's files without their endings.
	Resource, Singular, File string
	// Hub is the version in which the kind is stored. In those of Older it looks otherwise, and in
	// all other Versions alike.
	Hub             string
	Versions, Older []string
	// Version is the one that a file is about.
	Version string
}

// Files returns all files of the project. Its error says which name is wrong.
func (p Project) Files() (Files, error) {
	p.Variant = cmp.Or(p.Variant, Kinds)
	p.Module = cmp.Or(p.Module, p.Group+"/"+p.Name)
	versions, err := sortVersions(p.Versions)
	if err := cmp.Or(p.Variant.check(), checkName(p.Name), checkGroup(p.Group),
		checkKind(p.Group, p.Kind), err, p.Variant.checkVersions(versions),
		checkModule(p.Module)); err != nil {
		return nil, err
	}
	p.Versions = versions
	k := newKind(p.Variant, p.Module, p.Group, p.Kind, versions)
	k.Older = versions[1:]
	all := project{Project: p, GoVersion: goVersion, Modules: modules, Kind: k}

	files := Files{}
	if p.Variant != Controller {
		files = p.manifests()
	}
	return files, each(p.Variant, func(name string, t *template.Template) error {
		if isOfKind(name) {
			return k.add(files, name, t)
		}
		return k.versions(name, func(version string) error {
			all.Version, all.Kind.Version = version, version
			return files.add(k.path(name, version), t, all)
		})
	})
}

func newKind(variant Variant, module, group, name string, versions []string) kind {
	plural, singular := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: group,
		Kind: name})
	return kind{Variant: variant, Module: module, Group: group, Name: name,
		Resource: plural.Resource, Singular: singular.Resource, File: strings.ToLower(name),
		Hub: versions[0], Versions: versions}
}

// each calls a function with every template of a variant, and with the name of its file.
func each(variant Variant, f func(name string, t *template.Template) error) error {
	for _, root := range variant.roots() {
		root = "templates/" + root
		if err := fs.WalkDir(templates, root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := templates.ReadFile(name)
			if err != nil {
				return err
			}
			t, err := parts.Clone()
			if err != nil {
				return err
			}
			if t, err = t.New(name).Parse(string(text)); err != nil {
				return err
			}
			return f(strings.TrimSuffix(strings.TrimPrefix(name, root+"/"), ".tmpl"), t)
		}); err != nil {
			return err
		}
	}
	return nil
}

// isOfKind says whether there is a file of this name for each kind.
func isOfKind(name string) bool { return strings.Contains(name, "KIND") }

// addTo adds the files of a kind.
func (k kind) addTo(files Files) error {
	return each(k.Variant, func(name string, t *template.Template) error {
		if !isOfKind(name) {
			return nil
		}
		return k.add(files, name, t)
	})
}

// add adds the files that a template makes of a kind.
func (k kind) add(files Files, name string, t *template.Template) error {
	return k.versions(name, func(version string) error {
		k.Version = version
		return files.add(k.path(name, version), t, k)
	})
}

// versions calls a function for each version that has a file of its own from a template: for none,
// once, if the template is not about versions.
func (k kind) versions(name string, f func(version string) error) error {
	versions := []string{""}
	switch {
	case strings.Contains(name, "HUB") && k.Variant == Registry:
		versions = slices.DeleteFunc(slices.Clone(k.Versions), func(version string) bool {
			return slices.Contains(k.Older, version)
		})
	case strings.Contains(name, "HUB"):
		versions = []string{k.Hub}
	case strings.Contains(name, "OLDER"):
		versions = k.Older
	case strings.Contains(name, "VERSION"):
		versions = k.Versions
	}
	for _, version := range versions {
		if err := f(version); err != nil {
			return err
		}
	}
	return nil
}

// path is the name of a file that a template makes.
func (k kind) path(name, version string) string {
	return strings.NewReplacer("KIND", k.File, "GROUP", k.Group, "RESOURCE", k.Resource,
		"HUB", version, "OLDER", version, "VERSION", version).Replace(name)
}

// add adds the file that a template makes.
func (f Files) add(name string, t *template.Template, data any) error {
	if _, ok := f[name]; ok {
		return fmt.Errorf("the kind cannot have this name: %s has something else", name)
	}
	var text bytes.Buffer
	if err := t.Execute(&text, data); err != nil {
		return err
	}
	f[name] = text.String()
	if path.Ext(name) != ".go" {
		return nil
	}
	formatted, err := format.Source(text.Bytes())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f[name] = string(formatted)
	return nil
}

// metrics is what the names of the metrics of every server begin with.
const metrics, documentation = "rowkeeper_", "https://github.com/rowkeeper/rowkeeper/blob/main/docs/"

// namespace is that of a project in a cluster.
func namespace(name string) string { return name + "-system" }

// manifests are those of deploy/ that a project needs, under its own names. Metrics and the address
// of their documentation keep theirs. The Makefile knows where the certificates go.
func (p Project) manifests() Files {
	names := strings.NewReplacer(
		"rowkeeper certs --dir deploy/components/certs", "make certs",
		"rowkeeper certs --dir", "make certs",
		metrics, metrics,
		documentation, documentation,
		"ghcr.io/rowkeeper/rowkeeper", p.Name,
		"rowkeeper-system", namespace(p.Name),
		"rowkeeper", p.Name,
	)
	files := Files{}
	// The files are in this program: none of them can fail to be read.
	_ = fs.WalkDir(deploy.Manifests, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "overlays/mysql" || name == "overlays/external" {
			return cmp.Or(err, fs.SkipDir)
		}
		// These name groups and kinds, and are templates.
		if d.IsDir() || slices.Contains([]string{"base/cluster/apiservices.yaml", ownRules, roles}, name) {
			return nil
		}
		text, err := deploy.Manifests.ReadFile(name)
		files["deploy/"+name] = names.Replace(string(text))
		return err
	})
	return files
}

// roles is the file of the roles for users, and ownRules that of what a server that makes its own
// certificate may do with APIServices, below deploy/.
const (
	roles    = "base/cluster/roles-for-users.yaml"
	ownRules = "components/own-certificate/apiservices-rules.yaml"
)

// Write writes files below a directory, none of which may be there.
func (f Files) Write(dir string) error {
	names := slices.Sorted(maps.Keys(f))
	for _, name := range names {
		switch _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name))); {
		case err == nil:
			return fmt.Errorf("%s is there already, and nothing was written: files are never "+
				"overwritten", filepath.Join(dir, filepath.FromSlash(name)))
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	for _, name := range names {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		// A file that was written since then is kept.
		out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = out.WriteString(f[name])
		if err := cmp.Or(err, out.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Tidy completes the go.mod of a project, and writes its go.sum.
func Tidy(ctx context.Context, dir string) error {
	if err := run(ctx, dir, "mod", "tidy"); err != nil {
		return fmt.Errorf("the files are written, but go.mod is not complete: run go mod tidy in "+
			"%s when this is mended: %w", dir, err)
	}
	return nil
}

// Generate writes again what a project cannot be compiled without. Clients are made by make
// generate only, since not every project has them.
func Generate(ctx context.Context, dir string) error {
	if err := run(ctx, dir, "generate", "-skip=--output-dir client", "./..."); err != nil {
		return fmt.Errorf("the files are written, but what is generated of them is not: run make "+
			"generate in %s when this is mended: %w", dir, err)
	}
	return nil
}

// run calls Go in a project. Its error is the last line of what Go says.
func run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	// No workspace around the directory is meant.
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PWD="+dir, "GOWORK=off", "GOFLAGS=")
	text, err := cmd.CombinedOutput()
	if err == nil || errors.Is(err, exec.ErrNotFound) {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return errors.New(lines[len(lines)-1])
}

// enumerate joins words as in a sentence.
func enumerate(words []string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " and " + words[n]
	}
	return strings.Join(words, "")
}

// camel is the name of a kind as the beginning of a name that is not exported: GitRepo becomes
// gitRepo, DNSRecord dnsRecord, and API api.
func camel(name string) string {
	n := 1 // the capitals that begin a word are one letter, or an abbreviation
	for n < len(name) && isUpper(name[n]) && (n+1 == len(name) || isUpper(name[n+1])) {
		n++
	}
	return strings.ToLower(name[:n]) + name[n:]
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
