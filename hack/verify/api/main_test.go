package main

import "testing"

func TestPromised(t *testing.T) {
	for pkg, want := range map[string]bool{
		"storage":                      true,
		"storage/etcd":                 true,
		"storage/internal/mvcc":        false,
		"pkg/server/commands":          true,
		"pkg/testkit/containers":       true,
		"pkg/internal/access":          false,
		"pkg/support":                  false,
		"pkg/support/test/dbserver":    false,
		"pkg/supporters":               true,
		"pkg/example/apis/ci/v1":       false,
		"pkg/internals":                true,
		"pkg/options/internal/helpers": false,
	} {
		if got := promised(pkg); got != want {
			t.Errorf("promised(%q) = %v, want %v", pkg, got, want)
		}
	}
}

// A package is found wherever it stands, also in a module of its own.
func TestLibrary(t *testing.T) {
	t.Chdir("../../..")
	modules, err := library()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range modules {
		for _, p := range m.packages {
			found[p] = m.dir
			if !promised(p) {
				t.Errorf("%s is listed", p)
			}
		}
	}
	for p, dir := range map[string]string{"storage": ".", "storage/etcd": ".",
		"pkg/kinds/deepcopy": ".", "pkg/testkit/containers": "pkg/testkit/containers",
		"pkg/testkit/process": "pkg/testkit/process"} {
		if got, ok := found[p]; !ok || got != dir {
			t.Errorf("%s is found in %q, want %q", p, got, dir)
		}
	}
}
