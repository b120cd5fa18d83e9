// Package linkage proves, from outside the library's module, that a program links the databases
// that it names and no others, and Kubernetes only if it serves its objects.
package linkage

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/rowkeeper/rowkeeper"

// packages are what each kind of database, and nothing else, needs.
var packages = map[string][]string{
	"postgres": {module + "/storage/postgres", "github.com/jackc/pgx/v5"},
	"mysql":    {module + "/storage/mysql", "github.com/go-sql-driver/mysql"},
	"sqlite":   {module + "/storage/sqlite", "modernc.org/sqlite"},
}

// forbidden are the beginnings of packages that no program may link that uses the library.
var forbidden = []string{
	"github.com/testcontainers/",
	"github.com/stretchr/testify",
	"github.com/anishathalye/porcupine",
	"testing",
	"k8s.io/kubernetes",
	"sigs.k8s.io/controller-runtime",
	"k8s.io/sample-apiserver",
	"go.etcd.io/etcd/server",
	module + "/pkg",
	module + "/storage/internal/test/dbtest",
	module + "/storage/storagetest",
}

// linked are the packages that a program links.
func linked(t *testing.T, program string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+program).Output()
	if err != nil {
		t.Fatalf("go list -deps: %v", err)
	}
	return strings.Fields(string(out))
}

func TestProgramsLinkTheDatabasesThatTheyName(t *testing.T) {
	for program := range packages {
		t.Run(program, func(t *testing.T) {
			linked := linked(t, program)
			for kind, names := range packages {
				for _, name := range names {
					if slices.Contains(linked, name) != (kind == program) {
						t.Errorf("the program for %s links %s: %v", program, name, kind != program)
					}
				}
			}
			for _, name := range linked {
				for _, prefix := range forbidden {
					if name == prefix || strings.HasPrefix(name, strings.TrimSuffix(prefix, "/")+
						"/") {
						t.Errorf("the program for %s links %s", program, name)
					}
				}
			}
		})
	}
}

// A program that serves etcd's API, or moves what an etcd holds, links nothing of Kubernetes.
func TestEtcdLinksNoKubernetes(t *testing.T) {
	linked := linked(t, "etcd")
	for _, name := range []string{module + "/storage/etcd", module + "/storage/etcdmove"} {
		if !slices.Contains(linked, name) {
			t.Errorf("the program does not link %s", name)
		}
	}
	for _, name := range linked {
		if strings.HasPrefix(name, "k8s.io/") || strings.HasPrefix(name, "sigs.k8s.io/") ||
			name == module+"/storage" || strings.HasPrefix(name, module+"/pkg/") {
			t.Errorf("the program links %s", name)
		}
	}
}

// Projects whose tests start databases in containers require the module that does so, and projects
// that serve definitions require the one that has Kubernetes' registries. The library requires
// nothing for that. (goose requires a client of Docker for its own tests.)
func TestWhatTheLibraryRequires(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "mod", "graph").Output()
	if err != nil {
		t.Fatalf("go mod graph: %v", err)
	}
	edges := 0
	for line := range strings.Lines(string(out)) {
		from, to, _ := strings.Cut(strings.TrimSpace(line), " ")
		ours := strings.HasPrefix(from, module+"@")
		if ours {
			edges++
		}
		if strings.HasPrefix(to, "github.com/testcontainers/") ||
			strings.HasPrefix(to, "k8s.io/kubernetes@") || strings.HasPrefix(to, module+"/") || ours &&
			(strings.HasPrefix(to, "github.com/moby/moby/") ||
				strings.HasPrefix(to, "github.com/docker/")) {
			t.Errorf("%s requires %s", from, to)
		}
	}
	if edges == 0 {
		t.Errorf("the library is not in the graph:\n%s", out)
	}
}

// The module of definitions stands on what the library promises. Who has it may have a newer
// library.
func TestDefinitionsUseWhatIsPromised(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-f",
		`{{.ImportPath}} {{join .Imports " "}}`, "./...")
	list.Dir = "../../../pkg/crds"
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	library := 0
	for line := range strings.Lines(string(out)) {
		all := strings.Fields(line)
		for _, name := range all[1:] {
			rest, ours := strings.CutPrefix(name, module+"/")
			if !ours || strings.HasPrefix(rest, "pkg/crds") {
				continue
			}
			library++
			if strings.Contains("/"+rest+"/", "/internal/") || strings.HasPrefix(rest, "pkg/support/") {
				t.Errorf("%s imports %s, which nobody promises", all[0], name)
			}
		}
	}
	if library == 0 {
		t.Errorf("pkg/crds imports nothing of the library:\n%s", out)
	}
}

// The programs can be linked, too.
func TestProgramsBuild(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", t.TempDir(),
		"./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
}
