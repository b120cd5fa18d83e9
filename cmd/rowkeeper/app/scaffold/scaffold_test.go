package scaffold

import (
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// pipelines is a project with two versions.
var pipelines = Project{Name: "my-api", Group: "ci.example.com", Kind: "Pipeline",
	Versions: []string{"v1alpha1", "v1"}, Rowkeeper: Source{Version: "v0.1.0"}}

func filesOf(t *testing.T, p Project) Files {
	t.Helper()
	files, err := p.Files()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// written returns what is below a directory.
func written(t *testing.T, dir string) Files {
	t.Helper()
	files := Files{}
	if err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		rel, _ := filepath.Rel(dir, name)
		files[filepath.ToSlash(rel)] = string(text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// TestNames: what Kubernetes or Go would refuse is one sentence that names it.
func TestNames(t *testing.T) {
	for _, test := range []struct {
		change func(*Project)
		want   string // empty for a name that is right
	}{
		{func(*Project) {}, ""},
		{func(p *Project) { p.Name = "a" + strings.Repeat("b", 55) }, ""},
		{func(p *Project) { p.Name = "a" + strings.Repeat("b", 56) }, "its namespace"},
		{func(p *Project) { p.Name = "My_API" }, `cannot be named "My_API", because a Service cannot: `},
		{func(p *Project) { p.Name = "1st" }, `cannot be named "1st"`},
		{func(p *Project) { p.Group = "" }, "give --group, such as ci.example.com"},
		{func(p *Project) { p.Group = "CI.example.com" }, `the group cannot be named "CI.example.com"`},
		{func(p *Project) { p.Group = "ci" }, "such as ci.example.com"},
		{func(p *Project) { p.Group = "ci.k8s.io" }, "belong to Kubernetes"},
		{func(p *Project) { p.Group = "kubernetes.io" }, "belong to Kubernetes"},
		{func(p *Project) { p.Group = "notk8s.io" }, ""},
		{func(p *Project) { p.Kind = "" }, "the kind has no name"},
		{func(p *Project) { p.Kind = "pipeline" }, "begins with a capital letter"},
		{func(p *Project) { p.Kind = "Pipe-Line" }, "has letters and digits"},
		{func(p *Project) { p.Kind = "Ünit" }, "has letters and digits"},
		{func(p *Project) { p.Kind = "A" + strings.Repeat("b", 63) }, "no more than 63"},
		{func(p *Project) { p.Kind = "PipelineList" }, `a list of the kind "Pipeline"`},
		{func(p *Project) { p.Kind = "WatchEvent" }, "every API group has a kind of that name"},
		{func(p *Project) { p.Kind = "API" }, "api/api.go has something else"},
		{func(p *Project) { p.Versions = nil }, "give --versions"},
		{func(p *Project) { p.Versions = []string{"1"} }, `the version cannot be named "1"`},
		{func(p *Project) { p.Versions = []string{"v1-beta1"} }, `cannot be named "v1-beta1"`},
		{func(p *Project) { p.Versions = []string{"v1", "v1"} }, "the version v1 is there twice"},
		{func(p *Project) { p.Variant = Registry }, ""},
		{func(p *Project) { p.Variant = "crd" }, `no variant "crd": take kinds, registry or controller`},
		{func(p *Project) { p.Module = "github.com/acme/my-api" }, ""},
		{func(p *Project) { p.Module = "my api/x.y" }, `the module cannot be named "my api/x.y"`},
		{func(p *Project) { p.Module = "my-api" }, "such as example.com/my-api"},
		{func(p *Project) { p.Module = "example.com/api/v1" }, "from /v2 on"},
	} {
		p := pipelines
		test.change(&p)
		_, err := p.Files()
		if (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(),
			test.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s %s %s %v %s: got %v, want one line with %q", p.Name, p.Group, p.Kind,
				p.Versions, p.Module, err, test.want)
		}
	}
}

// TestFiles looks at every variant: what can be known without a compiler.
func TestFiles(t *testing.T) {
	for _, variant := range Variants {
		for _, versions := range [][]string{
			{"v1"}, {"v1beta1"}, {"v1alpha1", "v1"}, {"v1", "v2", "v1beta1", "v2alpha1"},
		} {
			t.Run(fmt.Sprint(variant, versions), func(t *testing.T) {
				p := pipelines
				p.Variant, p.Versions = variant, versions
				if variant == Controller && len(versions) > 1 {
					if _, err := p.Files(); err == nil || !strings.Contains(err.Error(), "a webhook") {
						t.Errorf("several versions: %v", err)
					}
					return
				}
				for name, text := range filesOf(t, p) {
					checkFile(t, name, text)
				}
			})
		}
	}
}

func checkFile(t *testing.T, name, text string) {
	t.Helper()
	for _, bad := range []string{"<no value>", "TODO", "FIXME", "rowkeeper-system", "{{"} {
		if strings.Contains(text, bad) {
			t.Errorf("%s has %q", name, bad)
		}
	}
	own := strings.NewReplacer(metrics, "", documentation, "").Replace(text)
	if strings.HasPrefix(name, "deploy/") && strings.Contains(own, "rowkeeper") {
		t.Errorf("%s has another server's names", name)
	}
	for _, place := range []string{"KIND", "GROUP", "RESOURCE", "HUB", "OLDER", "VERSION"} {
		if strings.Contains(name, place) {
			t.Errorf("%s has no name", name)
		}
	}
	if !strings.HasSuffix(text, "\n") || strings.HasSuffix(text, "\n\n") {
		t.Errorf("%s does not end with one line break", name)
	}
	switch path.Ext(name) {
	case ".go":
		if formatted, err := format.Source([]byte(text)); err != nil ||
			string(formatted) != text {
			t.Errorf("%s is not formatted: %v", name, err)
		}
	case ".yaml":
		documents := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
		var err error
		for err == nil {
			var object any // a patch is a list
			err = documents.Decode(&object)
		}
		if err.Error() != "EOF" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVersions: the version that Kubernetes prefers is stored, and the others become it.
func TestVersions(t *testing.T) {
	p := pipelines
	p.Versions = []string{"v1alpha1", "v1beta1", "v1", "v1beta2"}
	files := filesOf(t, p)
	if want := `Versions: []string{"v1", "v1beta2", "v1beta1", "v1alpha1"}`; !strings.Contains(
		files["api/api.go"], want) {
		t.Errorf("api/api.go is not about %s:\n%s", want, files["api/api.go"])
	}
	for _, version := range []string{"v1beta2", "v1beta1", "v1alpha1"} {
		if !strings.Contains(files["api/"+version+"/pipeline.go"], "func PipelineToV1(") ||
			!strings.Contains(files["deploy/base/cluster/apiservices.yaml"], version+".ci.example.com") ||
			!strings.Contains(files["deploy/"+ownRules], version+".ci.example.com") {
			t.Errorf("%s is not whole", version)
		}
	}
}

// TestNeverOverwrites: one file that is there keeps all others from being written.
func TestNeverOverwrites(t *testing.T) {
	files := filesOf(t, pipelines)
	for _, name := range []string{"main.go", "deploy/base/cluster/rbac.yaml"} {
		dir := t.TempDir()
		mine := Files{name: "mine", "LICENSE": "mine, too"}
		if err := mine.Write(dir); err != nil {
			t.Fatal(err)
		}
		if err := files.Write(dir); err == nil || !strings.Contains(err.Error(),
			filepath.FromSlash(name)+" is there already, and nothing was written") {
			t.Errorf("with %s: %v", name, err)
		}
		if got := written(t, dir); !maps.Equal(got, mine) {
			t.Errorf("with %s, there are %v", name, slices.Sorted(maps.Keys(got)))
		}
	}
	dir := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(dir, "Makefile")); err != nil {
		t.Fatal(err)
	}
	if err := files.Write(dir); err == nil {
		t.Error("a link that leads nowhere was written through")
	}
}

// project writes a project.
func (p Project) write(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := filesOf(t, p).Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAddKind: the command says what it writes and changes, in every variant, and a kind that is
// refused changes nothing.
func TestAddKind(t *testing.T) {
	for _, test := range []struct {
		variant  Variant
		versions []string
		written  []string
		lines    map[string]string // in the files that are changed
	}{
		{Kinds, []string{"v1alpha1", "v1"},
			[]string{"api/policy.go", "api/policy_test.go", "api/v1/policy.go",
				"examples/policy.yaml"},
			map[string]string{
				"api/v1/register.go": "&PipelineList{},\n\t\t&Policy{}, &PolicyList{})\n",
				"api/api.go":         "\t\tkindPipeline,\n\t\tkindPolicy,\n\t},\n",
				"deploy/base/cluster/roles-for-users.yaml": "  resources: [pipelines, policies]\n",
			}},
		{Registry, []string{"v1alpha1", "v1"},
			[]string{"api/policy.go", "api/v1/policy.go", "api/v1alpha1/policy.go",
				"apiserver/policy_test.go", "examples/policy.yaml", "registry/policy.go",
				"registry/policy_test.go"},
			map[string]string{
				"api/register.go":                          "&PipelineList{},\n\t\t&Policy{}, &PolicyList{})\n",
				"api/v1/register.go":                       "&PipelineList{},\n\t\t&Policy{}, &PolicyList{})\n",
				"api/v1alpha1/register.go":                 "&PipelineList{},\n\t\t&Policy{}, &PolicyList{})\n",
				"registry/registry.go":                     "\tPipeline,\n\tPolicy,\n}\n",
				"deploy/base/cluster/roles-for-users.yaml": "  resources: [pipelines, policies]\n",
			}},
		{Controller, []string{"v1beta1"},
			[]string{"api/v1beta1/policy_types.go", "config/samples/policy.yaml",
				"internal/controller/policy_controller.go",
				"internal/controller/policy_controller_test.go"},
			map[string]string{
				"api/v1beta1/groupversion_info.go": "&PipelineList{},\n\t\t&Policy{}, " +
					"&PolicyList{})\n",
				"internal/controller/controllers.go": "\t\t&PipelineReconciler{manager.GetClient()}" +
					",\n\t\t&PolicyReconciler{manager.GetClient()},\n",
				"config/crd/kustomization.yaml": "- bases/ci.example.com_pipelines.yaml\n" +
					"- bases/ci.example.com_policies.yaml\n",
				"config/rbac/roles-for-users.yaml": "  resources: [pipelines, policies]\n",
			}},
	} {
		t.Run(string(test.variant), func(t *testing.T) {
			p := pipelines
			p.Variant, p.Versions = test.variant, test.versions
			dir := p.write(t)
			before := written(t, dir)
			added, err := AddKind(dir, "Policy")
			if err != nil {
				t.Fatal(err)
			}
			if added.Resource != "policies" || !slices.Equal(added.Written, test.written) ||
				!slices.Equal(added.Changed, slices.Sorted(maps.Keys(test.lines))) ||
				len(added.Versions) != len(test.versions) {
				t.Errorf("added was %+v", added)
			}
			after := written(t, dir)
			for name, text := range before {
				if changed := slices.Contains(added.Changed, name); changed == (after[name] == text) {
					t.Errorf("%s: changed is %t, and the command says otherwise", name, !changed)
				}
			}
			for name, want := range test.lines {
				if !strings.Contains(after[name], want) {
					t.Errorf("%s lacks %q:\n%s", name, want, after[name])
				}
			}
			for _, name := range added.Written {
				checkFile(t, name, after[name])
			}

			if _, err := AddKind(dir, "Policy"); err == nil ||
				!strings.Contains(err.Error(), "is there already, and nothing was written") {
				t.Errorf("the kind again: %v", err)
			}
			if _, err := AddKind(dir, "task"); err == nil || !strings.Contains(err.Error(), `"task"`) {
				t.Errorf("a name that is wrong: %v", err)
			}
			if !maps.Equal(written(t, dir), after) {
				t.Error("a kind that was refused has changed files")
			}
		})
	}
}

// TestAddKindByHand: a project whose author has changed the lists of kinds is left alone.
func TestAddKindByHand(t *testing.T) {
	for _, test := range []struct {
		variant         Variant
		file, old, text string
	}{
		{Registry, "api/register.go", "GroupName = ", "OtherName = "},
		{Registry, "apiserver/apiserver.go", "SetVersionPriority(", "SetPriority("},
		{Registry, "registry/registry.go", "var kinds = ", "var others = "},
		{Registry, "api/v1/register.go", "AddKnownTypes(", "AddTypes("},
		{Controller, "api/v1/groupversion_info.go", "var GroupVersion", "var Version"},
		{Controller, "config/crd/kustomization.yaml", "- bases/", "- other/"},
	} {
		p := pipelines
		p.Variant, p.Versions = test.variant, []string{"v1"}
		dir := p.write(t)
		name := filepath.Join(dir, filepath.FromSlash(test.file))
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.ReplaceAll(string(source), test.old, test.text)
		if err := os.WriteFile(name, []byte(changed), 0o644); err != nil {
			t.Fatal(err)
		}
		before := written(t, dir)
		if _, err := AddKind(dir, "Task"); err == nil ||
			!strings.Contains(err.Error(), filepath.FromSlash(test.file)) {
			t.Errorf("%+v: %v", test, err)
		}
		if !maps.Equal(written(t, dir), before) {
			t.Errorf("%+v: files were changed", test)
		}
	}
}

// TestCamel: names of kinds begin names that are not exported.
func TestCamel(t *testing.T) {
	for name, want := range map[string]string{"Pipeline": "pipeline", "GitRepo": "gitRepo",
		"DNSRecord": "dnsRecord", "API": "api", "V2Thing": "v2Thing", "X": "x"} {
		if got := camel(name); got != want {
			t.Errorf("%s becomes %s, want %s", name, got, want)
		}
	}
}

// TestAddKindElsewhere: authors write their groups in other ways, too.
func TestAddKindElsewhere(t *testing.T) {
	const begin = "package api\n\nvar Group = kinds.Group{Name: \"example.com\", Versions: " +
		"[]string{\"v1\"}, Kinds: []kinds.Definition{"
	for kinds, want := range map[string]string{
		"}}\n":            "{\n\tkindTask,\n}}\n",
		"a}}\n":           "{a,\n\tkindTask}}\n",
		"\n\ta, b,\n}}\n": "{\n\ta, b,\n\tkindTask,\n}}\n",
	} {
		dir := t.TempDir()
		files := Files{"go.mod": "module example.com/x\n", "api/api.go": begin + kinds}
		if err := files.Write(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := AddKind(dir, "Task"); err != nil {
			t.Fatal(err)
		}
		if got := written(t, dir)["api/api.go"]; !strings.HasSuffix(got, want) {
			t.Errorf("%q becomes\n%s", kinds, got)
		}
	}
	for text, want := range map[string]string{
		"":                                 "no project: it has no go.mod",
		"package api":                      "add the kind by hand",
		"package api\nvar Group = other()": "add the kind by hand",
		"package":                          "expected 'IDENT'",
	} {
		dir := t.TempDir()
		files := Files{"go.mod": "module example.com/x\n", "api/api.go": text}
		if text == "" {
			files = nil
		}
		if err := files.Write(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := AddKind(dir, "Task"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		if !maps.Equal(written(t, dir), files) {
			t.Errorf("%q: files were written", text)
		}
	}
}

// TestBuilt: go.mod names a version only if Go can ask for it.
func TestBuilt(t *testing.T) {
	clone, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	const pseudo = "v0.1.1-0.20261122112333-1b2d67d0c0de"
	inClone := Source{Version: "v0.0.0", Dir: clone}
	for _, test := range []struct {
		version string
		ofClone bool
		dir     string
		want    Source
	}{
		{"v0.1.0", false, "", Source{Version: "v0.1.0"}},
		{"v0.1.0-rc.1", true, clone, Source{Version: "v0.1.0-rc.1"}},
		{pseudo, false, "", Source{Version: pseudo}},
		{pseudo, true, clone, inClone},
		{pseudo + "+dirty", true, clone, inClone},
		{"v0.1.0-3-g1b2d67d", false, clone, inClone},
		{"devel", false, clone, inClone},
		{"devel", false, "github.com/rowkeeper/rowkeeper", Source{}},
		{"devel", false, t.TempDir(), Source{}},
	} {
		got, err := built(test.version, test.ofClone, test.dir)
		if got != test.want || (err != nil) != (got == Source{}) {
			t.Errorf("%s in %q: got %v, %v", test.version, test.dir, got, err)
		}
	}
	if got, err := Built(); err != nil || got != inClone {
		t.Errorf("this test was built from %v, %v", got, err)
	}
	if _, err := Clone(t.TempDir()); err == nil {
		t.Error("an empty directory is a clone")
	}
}

// TestGoMod: projects have the Go and the Kubernetes of this module.
func TestGoMod(t *testing.T) {
	ours, err := os.ReadFile("../../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse("go.mod", ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := pipelines
	p.Rowkeeper = Source{Version: "v0.0.0", Dir: "/a directory"}
	theirs, err := modfile.Parse("go.mod", []byte(filesOf(t, p)["go.mod"]), nil)
	if err != nil {
		t.Fatal(err)
	}
	if theirs.Go.Version != mod.Go.Version || theirs.Module.Mod.Path != "ci.example.com/my-api" ||
		theirs.Replace[0].New.Path != "/a directory" {
		t.Errorf("go.mod is\n%s", filesOf(t, p)["go.mod"])
	}
}

// TestCommand: a project runs the program in the version that it has of the library.
func TestCommand(t *testing.T) {
	for source, want := range map[Source]string{
		{Version: "v0.1.0"}:                      "go run github.com/rowkeeper/rowkeeper/cmd/rowkeeper@v0.1.0",
		{Version: "v0.0.0", Dir: "/a directory"}: `go run -C "/a directory" ./cmd/rowkeeper`,
	} {
		p := pipelines
		p.Rowkeeper = source
		for _, p.Variant = range Variants {
			if p.Versions = p.Versions[:1]; p.Variant != Controller {
				p.Versions = pipelines.Versions
			}
			files := filesOf(t, p)
			if !strings.Contains(files["README.md"], "    "+want+" add kind Task") {
				t.Errorf("%s: the README does not say %q:\n%s", p.Variant, want, files["README.md"])
			}
			if strings.Contains(files["go.mod"], "cmd/rowkeeper") {
				t.Errorf("%s: the program is in the module:\n%s", p.Variant, files["go.mod"])
			}
			if p.Variant == Controller &&
				!strings.Contains(files["Makefile"], "ROWKEEPER ?= "+want+"\n") {
				t.Errorf("the Makefile does not run %q:\n%s", want, files["Makefile"])
			}
		}
	}
}

// TestModules: projects have the modules that stand for those of other projects here.
func TestModules(t *testing.T) {
	text, err := os.ReadFile("../../../../hack/compat/kubebuilder/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, version := range modules {
		if !slices.ContainsFunc(mod.Require, func(r *modfile.Require) bool {
			return r.Mod.Path == path && r.Mod.Version == version
		}) {
			t.Errorf("%s %s is not what hack/compat/kubebuilder requires", path, version)
		}
	}
}

// TestTidyWithoutGo: the files stay, and the error says what is left to do.
func TestTidyWithoutGo(t *testing.T) {
	t.Setenv("PATH", "")
	if err := Tidy(t.Context(), t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "run go mod tidy in") {
		t.Errorf("without Go: %v", err)
	}
	if err := errors.Unwrap(Tidy(t.Context(), t.TempDir())); err == nil {
		t.Error("the error does not say why")
	}
}
