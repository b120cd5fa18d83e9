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

// Project is a project that is to be written.
type Project struct {
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

// templates has the directories that begin with a dot, too.
//
//go:embed all:templates
var templates embed.FS

var functions = template.FuncMap{
	"title":     func(s string) string { return strings.ToUpper(s[:1]) + s[1:] },
	"list":      enumerate,
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

var parsed = template.Must(template.New("").Funcs(functions).ParseFS(templates,
	"templates/kind/*.tmpl"))

// project is what templates of projects know.
type project struct {
	Project
	GoVersion string
	Kind      kind
}

// kind is what templates of kinds know.
type kind struct {
	Module, Group, Name string
	// Resource is the plural, and File the name of the kind's files without their endings.
	Resource, File string
	// Hub is the version in which the kind is stored. In those of Older it looks otherwise.
	Hub   string
	Older []string
	// First says that there is no other kind yet, and Version is the one of Older that a file is
	// about.
	First   bool
	Version string
}

// Files returns all files of the project. Its error says which name is wrong.
func (p Project) Files() (Files, error) {
	p.Module = cmp.Or(p.Module, p.Group+"/"+p.Name)
	versions, err := sortVersions(p.Versions)
	if err := cmp.Or(checkName(p.Name), checkGroup(p.Group), checkKind(p.Group, p.Kind), err,
		checkModule(p.Module)); err != nil {
		return nil, err
	}
	p.Versions = versions
	k := newKind(p.Module, p.Group, p.Kind, versions[0])
	k.Older, k.First = versions[1:], true
	all := project{Project: p, GoVersion: goVersion, Kind: k}

	files := p.manifests()
	const root = "templates/project"
	err = fs.WalkDir(templates, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := templates.ReadFile(name)
		if err != nil {
			return err
		}
		t, err := template.New(name).Funcs(functions).Parse(string(text))
		if err != nil {
			return err
		}
		return files.add(strings.TrimSuffix(strings.TrimPrefix(name, root+"/"), ".tmpl"), t, all)
	})
	return files, cmp.Or(err, k.addTo(files))
}

func newKind(module, group, name, hub string) kind {
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: group, Kind: name})
	return kind{Module: module, Group: group, Name: name, Resource: plural.Resource,
		File: strings.ToLower(name), Hub: hub}
}

// addTo adds the files of a kind.
func (k kind) addTo(files Files) error {
	errs := []error{
		files.add("api/"+k.File+".go", parsed.Lookup("kind.go.tmpl"), k),
		files.add("api/"+k.File+"_test.go", parsed.Lookup("kind_test.go.tmpl"), k),
		files.add("api/"+k.Hub+"/"+k.File+".go", parsed.Lookup("types.go.tmpl"), k),
		files.add("examples/"+k.File+".yaml", parsed.Lookup("example.yaml.tmpl"), k),
	}
	for _, k.Version = range k.Older {
		errs = append(errs,
			files.add("api/"+k.Version+"/"+k.File+".go", parsed.Lookup("older.go.tmpl"), k),
			files.add("examples/"+k.File+"-"+k.Version+".yaml",
				parsed.Lookup("example-older.yaml.tmpl"), k))
	}
	return cmp.Or(errs...)
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
		// Whoever has written the file since then keeps it.
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
	tidy := exec.CommandContext(ctx, "go", "mod", "tidy")
	// No workspace around the directory is meant.
	tidy.Dir, tidy.Env = dir, append(os.Environ(), "PWD="+dir, "GOWORK=off", "GOFLAGS=")
	text, err := tidy.CombinedOutput()
	if err == nil {
		return nil
	}
	if !errors.Is(err, exec.ErrNotFound) {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		err = errors.New(lines[len(lines)-1])
	}
	return fmt.Errorf("the files are written, but go.mod is not complete: run go mod tidy in %s "+
		"when this is mended: %w", dir, err)
}

// enumerate joins words as in a sentence.
func enumerate(words []string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " and " + words[n]
	}
	return strings.Join(words, "")
}
